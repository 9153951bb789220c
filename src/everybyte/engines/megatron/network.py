"""What one pipeline stage runs on one rank, as a Network of Megatron Core's own layers with the sizes of that rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
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
    runs = _runs([(first, count, _layer(one, split, style)) for first, count, one in _spans(network, stage.chunks[chunk])], full, dims)
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


@lru_cache(maxsize=4096)
def _spans(network: Network, layers: tuple[int, ...]) -> tuple[tuple[int, int, Sizes], ...]:
    """(first, count, sizes) of equal layers in a row."""
    sizes, found = layers_of(network), []
    for one, members in groupby(layers, key=lambda index: sizes[index]):
        indices = list(members)
        found.append((indices[0], len(indices), one))
    return tuple(found)


def _runs(spans: Sequence[tuple[int, int, TransformerLayer]], full: Recomputed | None, dims: Dims) -> list[Run]:
    """Runs of one chunk; recomputed layers in groups, which begin anew where layers are others."""
    runs: list[Run] = []
    place = 0
    for first, count, layer in spans:
        again = 0 if full is None else count if full.method == "uniform" else min(count, max(full.layers - place, 0))
        size = full.layers if full is not None and full.method == "uniform" else 1
        whole, rest = divmod(again, size)
        if whole:
            runs.append(Run(PREFIX, first, whole, Checkpoint(layer, size), dims))
        if rest:
            runs.append(Run(PREFIX, first + whole * size, 1, Checkpoint(layer, rest), dims))
        if count > again:
            runs.append(Run(PREFIX, first + again, count - again, layer, dims))
        place += count
    return runs
