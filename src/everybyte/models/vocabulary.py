"""A vocabulary with more tokens than the checkpoint's: `resize_token_embeddings`, which trainers call when they add a padding token."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network


@lru_cache(maxsize=64)
def with_added_tokens(network: Network, count: int, path: str) -> Network:
    """The network with `count` more rows in its embedding and its head (transformers modeling_utils.py resize_token_embeddings, nothing padded).

    Raises Unsupported at `path` for a network whose ends are not one table of tokens and one head.
    """
    stem, head = network.stem, network.head
    if not isinstance(stem, Embedding) or not isinstance(head, Head):
        raise Unsupported(
            path, f"the ends of {network.family} are not a table of tokens and a head of its size; give the model's config with its new vocab_size"
        )
    vocab = network.vocab + count
    return replace(network, vocab=vocab, stem=replace(stem, vocab=stem.vocab + count), head=replace(head, vocab=head.vocab + count))
