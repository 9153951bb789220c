"""What the decoder families have in common: the frame around the blocks, and fields that many of them write alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everybyte.layers.blocks.transformer import FinalNorm
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network, Run
from everybyte.layers.recording.size import Dims
from everybyte.models.config import Config
from everybyte.models.patterns import runs_of


class Places(NamedTuple):
    """Where the frame's modules are."""

    embed: str = "model.embed_tokens"
    layers: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"


def decoder(
    c: Config,
    block: Any = None,
    *,
    tied: bool,
    norm: Norm | None = None,
    layers: Sequence[Any] = (),
    runs: tuple[Run, ...] = (),
    scaled: bool = False,
    places: Places = Places(),  # noqa: B008 - a constant
    stem: Any = None,
    tail: Any = None,
    head: Head | None = None,
    head_dims: Dims = (),
    width: int = 0,
    experts: tuple[int, int] = (0, 0),
) -> Network:
    """A decoder of equal blocks, of `layers` given one by one, or of given `runs`, between a token embedding and a head.

    `experts`: (number, used by one token).
    """
    hidden = c.integer("hidden_size", "n_embd", "d_model")
    vocab = c.integer("vocab_size")
    if not runs:
        runs = runs_of(places.layers, layers or [block] * layer_count(c))
    return Network(
        c.name,
        c.model_type,
        width or hidden,
        vocab,
        runs,
        stem or Embedding(vocab, hidden, places.embed, scaled=scaled),
        tail or FinalNorm(norm or Norm(), places.norm),
        head or Head(hidden, vocab, tied, places.head),
        tied,
        dtype=c.dtype(),
        max_positions=c.integer("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=0, least=0),
        experts=experts[0],
        top_k=experts[1],
        head_dims=head_dims,
    )


def layer_count(c: Config) -> int:
    """Number of blocks, under any of the names that the families give it."""
    return c.integer("num_hidden_layers", "n_layer", "num_layers")


def tied(c: Config, default: bool) -> bool:
    """Whether the head's weight is the embedding's; `default` is that of the family's configuration class."""
    return c.flag("tie_word_embeddings", default)


def rotary_dim(c: Config, head_dim: int, default: float = 1.0) -> int:
    """Numbers of a head that turn (`partial_rotary_factor`, `rotary_pct`, or inside `rope_parameters`)."""
    inner = c.fields.get("rope_parameters")
    share = c.number("partial_rotary_factor", "rotary_pct", default=-1.0)
    if share < 0 and isinstance(inner, Mapping):
        share = Config(inner, f"{c.path}.rope_parameters", c.name).number("partial_rotary_factor", default=-1.0)
    return int(head_dim * (default if share < 0 else share))


def window(c: Config, default: int = 0) -> int:
    """`sliding_window`: null means none; `default` where the file is silent."""
    if "sliding_window" in c.fields:
        return c.integer("sliding_window", default=0, least=0)
    return default


def expert_counts(c: Config) -> tuple[int, int]:
    """(number of routed experts, experts that one token uses), under any of the names that the families and transformers' own files give them."""
    count = c.integer("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    return count, c.integer("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k")
