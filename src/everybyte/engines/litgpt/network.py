"""A network as LitGPT builds it: blocks of its own, an output that is not tied to the embedding, and the loss as a part of its own."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.catalog.releases import Release
from everybyte.engines.litgpt.block import LitBlock, LitNorm
from everybyte.engines.litgpt.head import LitLoss, LitOutput
from everybyte.engines.litgpt.sizes import Sizes, sizes_of
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.network import Embedding, Network, Run
from everybyte.layers.recording.size import TOKENS, Dim
from everybyte.layers.recording.tape import Tape, Value


class Script(Record, frozen=True):
    """What a script and its settings decide about the model."""

    release: Release
    chunk: int
    """Tokens that go through the head at once; 0: all."""
    loss_chunk: int
    prompt: int = 0
    """Learned tokens of LLaMA-Adapter."""
    start: int = 0
    """First block that has them."""
    stable_embedding: bool = False
    compiled: bool = False
    converts: bool = True
    """Fabric turns the model's result into fp32."""
    assumed_parallel: bool = False
    """A shape does not say how branches are joined: LitGPT's Config puts them side by side, with rotary positions on a quarter of each head."""


class StableEmbedding(Record, frozen=True):
    """bitsandbytes nn/modules.py StableEmbedding: a LayerNorm behind the table."""

    embedding: Embedding

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n, h)."""
        out = self.embedding.forward(t, x)
        out = Value(out.storage, out.dims, out.dtype, grad=t.setup.grad)
        return layer_norm(t, out, "transformer.wte.norm")


@lru_cache(maxsize=64)
def rendition(network: Network, script: Script) -> Network:
    """LitGPT's form of a network. Raises Unsupported for one that its model files cannot be."""
    layers = [(run, _adjusted(sizes_of(run.layer), script)) for run in network.runs]
    first = layers[0][1]
    norm = LitNorm(first.norm, first.unit_offset, script.release.has("half_product"), script.compiled)
    head = network.head
    capped = bool(head and head.softcap) and (script.release.has("caps_chunks") or not script.chunk)
    table = Embedding(network.vocab, network.hidden, "transformer.wte", scaled=bool(getattr(network.stem, "scaled", False)))
    return Network(
        network.name,
        "litgpt",
        network.hidden,
        network.vocab,
        tuple(_runs(layers, norm, script)),
        StableEmbedding(table) if script.stable_embedding else table,
        LitOutput(norm, network.vocab, bool(head and head.bias), capped, script.chunk, script.converts),
        LitLoss(network.vocab, listed=bool(script.chunk), chunk=script.loss_chunk),
        tail_label="output",
        dtype=network.dtype,
        max_positions=network.max_positions,
        head_dims=(TOKENS, Dim("V", network.vocab)),
    )


def _adjusted(sizes: Sizes, script: Script) -> Sizes:
    if not script.assumed_parallel:
        return sizes
    return replace(sizes, parallel=True, shared_norm=False, rotary=sizes.head_size // 4)


def _runs(layers: list[tuple[Run, Sizes]], norm: LitNorm, script: Script) -> list[Run]:
    """Runs of equal blocks, cut where the learned tokens begin."""
    found = []
    for run, sizes in layers:
        plain = min(max(script.start - run.first, 0), run.count) if script.prompt else run.count
        parts = ((run.first, plain, 0), (run.first + plain, run.count - plain, script.prompt))
        found += [Run("transformer.h", first, count, LitBlock(sizes, norm, script.release, prompt)) for first, count, prompt in parts if count]
    return found
