"""Pipeline stages: which layers each rank holds, chunk by chunk, and where the embedding, the head and the prediction blocks are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.job import Train
from everybyte.job.extra import Section, section
from everybyte.job.form import Count
from everybyte.layers.network import Network
from everybyte.rules.parallel.schedules import FOLDED, Plan, unrolled

PATH = "train.pipeline.layers"
EMBEDDING, LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
"""Keys of train.extra, as Megatron-LM's command line has them."""


class SplitKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra about uneven splits (Megatron-LM)."""

    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    decoder_first_pipeline_num_layers: Count | None = None
    decoder_last_pipeline_num_layers: Count | None = None


class Stage(Record, frozen=True):
    """What the ranks of one pipeline position hold."""

    index: int
    chunks: tuple[tuple[int, ...], ...]
    """Indices of the network's layers in each chunk, in the order in which a micro-batch meets the chunks."""
    embedding: int = -1
    """The chunk with the token embedding, -1 for none."""
    head: int = -1
    """The chunk with the final norm, the head and the loss, -1 for none."""
    mtp: int = 0
    """Blocks of multi-token prediction."""
    mtp_chunk: int = -1
    """The chunk that they are in, -1 for none."""

    @property
    def has_embedding(self) -> bool:
        """Whether the token embedding is here. Blocks of multi-token prediction need a copy of it where they are."""
        return self.embedding >= 0

    @property
    def has_head(self) -> bool:
        """Whether the final norm, the head and the loss are here."""
        return self.head >= 0

    @property
    def layers(self) -> tuple[int, ...]:
        """All layers of the rank, chunk by chunk."""
        return tuple(layer for chunk in self.chunks for layer in chunk)


class Split(Record, frozen=True):
    """How layers are dealt out where the job gives no list of them: evenly, but for what these say."""

    embedding: bool = False
    """The embedding counts as a layer of the first chunk."""
    loss: bool = False
    """The loss counts as a layer of the last chunk."""
    first: int | None = None
    """Layers of the first stage."""
    last: int | None = None
    """Layers of the last stage."""


class Piece(Record, frozen=True):
    """One chunk in the order of the model: the layers, and what stands beside them."""

    layers: tuple[int, ...]
    embedding: bool = False
    head: bool = False
    mtp: int = 0


EVEN = Split()


def stages_of(train: Train, network: Network, plan: Plan, counts: tuple[int, ...] | None = None) -> tuple[Stage, ...]:
    """The stages of a job, first to last. `counts`: how the engine splits the layers where the job does not say (see `weighted`); without it evenly.

    Raises BadInput where the layers cannot be dealt out as the job says.
    """
    given = train.pipeline.layers if train.pipeline is not None else None
    return dealt(network.layers, plan, counts if given is None else given, network.mtp, split_of(train))


def split_of(train: Train) -> Split:
    """Megatron-LM's settings for uneven splits, from train.extra."""
    keys = section(train.extra, SplitKeys)
    embedding, loss = keys.account_for_embedding_in_pipeline_split, keys.account_for_loss_in_pipeline_split
    return Split(embedding, loss, keys.decoder_first_pipeline_num_layers, keys.decoder_last_pipeline_num_layers)


@lru_cache(maxsize=4096)
def dealt(layers: int, plan: Plan, given: tuple[int, ...] | str | None = None, mtp: int = 0, split: Split = EVEN) -> tuple[Stage, ...]:
    """The stages of `layers` layers and `mtp` blocks behind them. `given`: layers of each stage, layers of each chunk in the order of the model
    (chunk 0 of all ranks, chunk 1 of all ranks, ...), or Megatron-LM's layout text.

    Raises BadInput with the rule that is broken.
    """
    if isinstance(given, str):
        return _placed(plan, _pieces_of_text(given, layers, mtp, split))
    counts = list(given) if given is not None and len(given) == plan.pp * plan.virtual else _by_stage(layers, plan, given, split)
    if len(counts) == plan.pp and plan.virtual > 1:
        counts = _by_chunk(counts, plan, split)
    if sum(counts) != layers:
        raise BadInput(PATH, f"{' + '.join(map(str, counts))} = {sum(counts)} layers, but the model has {layers}")
    return _placed(plan, _pieces_of_counts(counts, mtp))


@lru_cache(maxsize=4096)
def kinds(network: Network, stages: tuple[Stage, ...]) -> tuple[Hashable, ...]:
    """What the bytes of each stage follow from: equal for stages that hold the same."""
    layers = [run.layer for run in network.runs for _ in range(run.count)]
    return tuple(
        (tuple(_row(layers[index] for index in chunk) for chunk in stage.chunks), stage.embedding, stage.head, stage.mtp, stage.mtp_chunk) for stage in stages
    )


def _row(layers: Iterable[Any]) -> tuple[tuple[Any, int], ...]:
    return tuple((layer, len(list(group))) for layer, group in groupby(layers))


# -- counts ------------------------------------------------------------------------------------------------------------------
def _by_stage(layers: int, plan: Plan, given: tuple[int, ...] | None, split: Split) -> list[int]:
    """Layers of each stage (Megatron-LM transformer_block.py get_num_layers_to_build), the embedding and the loss included where they count."""
    if given is not None:
        if len(given) != plan.pp:
            chunks = f" or {plan.pp * plan.virtual} chunks" if plan.virtual > 1 else ""
            raise BadInput(PATH, f"{len(given)} numbers for {plan.pp} stages{chunks}")
        return list(given)
    if split.first is not None or split.last is not None:
        return _uneven_ends(layers, plan, split)
    total = layers + split.embedding + split.loss
    beside = " with the embedding and the loss that count as layers" if total > layers else ""
    if total % (plan.pp * plan.virtual):
        raise BadInput(PATH, f"{total} layers{beside} are not divisible by pp {plan.pp} × virtual {plan.virtual}; give the layers of each stage")
    return [total // plan.pp - (split.embedding and rank == 0) - (split.loss and rank == plan.pp - 1) for rank in range(plan.pp)]


def _uneven_ends(layers: int, plan: Plan, split: Split) -> list[int]:
    """The first and the last stage as stated, the others evenly."""
    if split.embedding or split.loss:
        raise BadInput(f"train.extra.{EMBEDDING if split.embedding else LOSS}", f"does not go with {FIRST} or {LAST}: say one or the other")
    stated = [n for n in (split.first, split.last) if n is not None]
    others, rest = plan.pp - len(stated), layers - sum(stated)
    if rest < 0 or others < 0 or bool(rest) != bool(others) or (others and rest % others):
        key = FIRST if split.first is not None else LAST
        raise BadInput(f"train.extra.{key}", f"leaves {rest} of {layers} layers, which {others} further stages cannot share equally")
    middle = [rest // others] * others if others else []
    return [*([split.first] if split.first is not None else []), *middle, *([split.last] if split.last is not None else [])]


def _by_chunk(counts: Sequence[int], plan: Plan, split: Split) -> list[int]:
    """Layers of each chunk in the order of the model, every stage's divided evenly among its chunks."""
    pp, virtual = plan.pp, plan.virtual
    table = []
    for rank, count in enumerate(counts):
        first, last = split.embedding and rank == 0, split.loss and rank == pp - 1
        if (count + first + last) % virtual:
            raise BadInput(PATH, f"the {count} layers of stage {rank} are not divisible by its {virtual} chunks; give the layers of each chunk")
        even = (count + first + last) // virtual
        table.append([even - (first and chunk == 0) - (last and chunk == virtual - 1) for chunk in range(virtual)])
    if any(size < 0 for sizes in table for size in sizes):
        raise BadInput(PATH, f"{sum(counts)} layers are too few for {pp} stages of {virtual} chunks")
    return [table[rank][chunk] for rank, chunk in _order(plan)]


def weighted(layers: int, stages: int, before: int = 1, behind: int = 1) -> tuple[int, ...]:
    """Layers of each of `stages` stages in the order of the model, the embedding counted as `before` layers and the head as `behind`; the first
    stages get one more where the division leaves a rest (torchtitan distributed/pipeline_parallel.py _generate_llm_fqn_per_model_part)."""
    even, more = divmod(layers + before + behind, stages)
    counts = [even + (stage < more) for stage in range(stages)]
    if stages > 1 and (before > even or behind > even or not even):
        raise BadInput("train.mesh.pp", f"{stages} stages are too many for {layers} layers, an embedding and a head")
    counts[0] -= before
    counts[-1] -= behind
    return tuple(counts)


# -- pieces ------------------------------------------------------------------------------------------------------------------
def _pieces_of_counts(counts: Sequence[int], mtp: int) -> list[Piece]:
    ends = [sum(counts[:stage]) for stage in range(len(counts) + 1)]
    last = len(counts) - 1
    return [Piece(tuple(range(ends[stage], ends[stage + 1])), stage == 0, stage == last, mtp if stage == last else 0) for stage in range(len(counts))]


def _pieces_of_text(layout: str, layers: int, mtp: int, split: Split) -> list[Piece]:
    """Megatron-LM pipeline_parallel_layer_layout.py: pieces between bars, with the rules of validate_layer_layout."""
    if split != EVEN:
        raise BadInput(PATH, "a layout text does not go with other settings of the split in train.extra")
    text = unrolled(layout)
    letters = text.replace("|", "")
    if letters.count("E") != 1 or letters[0] != "E" or letters.count("L") != 1 or letters[-1] != "L":
        raise BadInput(PATH, f"{layout!r} must begin with the one E (embedding) and end with the one L (loss)")
    if letters.count("t") != layers:
        raise BadInput(PATH, f"{layout!r} has {letters.count('t')} layers, but the model has {layers}")
    if letters.count("m") != mtp:
        raise BadInput(PATH, f"{layout!r} has {letters.count('m')} blocks of multi-token prediction, but the model has {mtp}")
    if mtp and (letters.rfind("t") > letters.index("m") or "m" * mtp not in text):
        raise BadInput(PATH, f"{layout!r}: blocks of multi-token prediction stand in one piece, behind all layers")
    pieces, first = [], 0
    for piece in text.split("|"):
        count = piece.count("t")
        pieces.append(Piece(tuple(range(first, first + count)), "E" in piece, "L" in piece, piece.count("m")))
        first += count
    return pieces


# -- places ------------------------------------------------------------------------------------------------------------------
def _order(plan: Plan) -> Iterable[tuple[int, int]]:
    """(rank, chunk) of each piece in the order of the model: down the ranks again and again, or down and back."""
    for chunk in range(plan.virtual):
        ranks = range(plan.pp)
        for rank in reversed(ranks) if plan.schedule in FOLDED and chunk % 2 else ranks:
            yield rank, chunk


def _placed(plan: Plan, pieces: Sequence[Piece]) -> tuple[Stage, ...]:
    held: list[list[Piece]] = [[] for _ in range(plan.pp)]
    for (rank, _), piece in zip(_order(plan), pieces, strict=True):
        held[rank].append(piece)
    if plan.schedule == "dualpipe":  # the opposite direction's stage beside each rank's own
        held = [[held[rank][0], held[plan.pp - 1 - rank][0]] for rank in range(plan.pp)]
    return tuple(_stage(rank, chunks) for rank, chunks in enumerate(held))


def _stage(index: int, chunks: Sequence[Piece]) -> Stage:
    def place(flags: Iterable[bool]) -> int:
        return next((chunk for chunk, flag in enumerate(flags) if flag), -1)

    return Stage(
        index,
        tuple(piece.layers for piece in chunks),
        place(piece.embedding for piece in chunks),
        place(piece.head for piece in chunks),
        sum(piece.mtp for piece in chunks),
        place(piece.mtp > 0 for piece in chunks),
    )
