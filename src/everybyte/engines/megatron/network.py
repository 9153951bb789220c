"""What one pipeline stage runs on one rank, as a Network of Megatron Core's own layers with the sizes of that rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.bert import BertEntry, BertLoss, BertReceived
from everybyte.engines.megatron.layers.block import Checkpoint, TransformerLayer
from everybyte.engines.megatron.layers.embedding_and_head import Entry, FinalNorm, Loss, Received
from everybyte.engines.megatron.layers.prediction import Prediction
from everybyte.engines.megatron.sizes import Sizes, Split, layers_of, learned_positions, prediction_of
from everybyte.engines.megatron.style import Style
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import Dim, Dims
from everybyte.rules.parallel.stages import Stage

PREFIX = "decoder.layers"


class Recomputed(Record, frozen=True):
    """Whole layers that backward runs again. `uniform`: every so many layers are one checkpoint; `block`: so many of each chunk are one each."""

    method: str
    layers: int


class StagePlan(NamedTuple):
    """A stage's network, and the pieces of it that belong to each chunk."""

    network: Network
    labels: tuple[tuple[str, ...], ...]


@lru_cache(maxsize=4096)
def stage_plan(network: Network, stage: Stage, split: Split, style: Style, vocab: int, full: Recomputed | None, order: tuple[int, ...]) -> StagePlan:
    """The local network of a stage, or of some of its chunks: with the embedding if that is in one of them, with the loss if that ends the last."""
    dims, inside = _hidden_states(split.tokens, network.hidden), split.inside
    by_chunk = [_chunk(network, stage, chunk, inside, style, vocab, full) for chunk in range(len(stage.chunks))]
    first, last = stage.embedding in order, stage.head == order[-1]
    both = first and last
    entry, received, loss = (BertEntry, BertReceived, BertLoss) if network.family == "bert" else (Entry, Received, Loss)
    at_ends, alone = style.at_ends, split.at_ends
    stem: Any = received(network.hidden, network.dtype, alone, at_ends, vocab // split.tp if stage.mtp and not network.tied else 0)
    if first:
        stem = entry(network.hidden, vocab, learned_positions(network), alone, at_ends)
    head = loss(vocab, inside.at_ends, at_ends, tied=network.tied and both, reads_kept=bool(stage.mtp)) if last else None
    local = Network(
        network.name,
        "megatron",
        network.hidden,
        vocab,
        tuple(run for chunk in order for run in by_chunk[chunk]),
        stem,
        None,
        head,
        tied=network.tied and both,
        head_dims=dims,
        dtype=network.dtype,
        max_positions=network.max_positions,
        experts=network.experts,
        top_k=network.top_k,
        mtp=min(stage.mtp, 1),
    )
    ends = [("embed",) if chunk == stage.embedding else () for chunk in range(len(by_chunk))]
    tails = [("head",) if chunk == stage.head else () for chunk in range(len(by_chunk))]
    labels = tuple((*end, *(run.label for run in runs), *tail) for end, runs, tail in zip(ends, by_chunk, tails, strict=True))
    return StagePlan(local, labels)


def _chunk(network: Network, stage: Stage, chunk: int, split: Split, style: Style, vocab: int, full: Recomputed | None) -> list[Run]:
    """The layers of a chunk, the final norm behind the last, blocks of multi-token prediction behind that."""
    sizes = layers_of(network)
    dims = _hidden_states(split.tokens, network.hidden)
    runs = _runs([(index, _layer(sizes[index], split, style)) for index in stage.chunks[chunk]], full, dims)
    if chunk == stage.head:
        runs.append(Run("final_layernorm", -1, 1, FinalNorm(sizes[-1].norm, style.at_ends), dims))
    inner = prediction_of(network)
    if chunk == stage.mtp_chunk and inner:
        layers = tuple(_layer(one, split, style) for one in inner)
        runs.append(Run("mtp", -1, 1, Prediction(layers, vocab, stage.mtp, style.mtp_repeated), dims))
    return runs


@lru_cache(maxsize=64)
def _hidden_states(tokens: Dim, hidden: int) -> Dims:
    return tokens, Dim("h", hidden)


@lru_cache(maxsize=4096)
def _layer(sizes: Sizes, split: Split, style: Style) -> TransformerLayer:
    return TransformerLayer(sizes, split, style)


def _runs(layers: Sequence[tuple[int, TransformerLayer]], full: Recomputed | None, dims: Dims) -> list[Run]:
    """Runs of equal layers of one chunk; recomputed ones in groups."""
    found: list[tuple[int, Any]] = []
    place = 0
    while place < len(layers):
        index, layer = layers[place]
        count = 1
        if full is None or (full.method == "block" and place >= full.layers):
            found.append((index, layer))
        else:
            group = [other for _, other in layers[place : place + (full.layers if full.method == "uniform" else 1)]]
            count = next((n for n, other in enumerate(group) if other != layer), len(group))
            found.append((index, Checkpoint(layer, count)))
        place += count
    runs: list[Run] = []
    for index, layer in found:
        if runs and runs[-1].layer == layer:
            runs[-1] = Run(PREFIX, runs[-1].first, runs[-1].count + 1, layer, dims)
        else:
            runs.append(Run(PREFIX, index, 1, layer, dims))
    return runs
