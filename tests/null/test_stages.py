"""Pipeline stages: which layers each rank holds, for every way of saying it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.basics.errors import BadInput
from everybyte.job import Train, read_job
from everybyte.job.words import Schedule
from everybyte.models.source import network_of
from everybyte.rules.parallel.schedules import Plan, planned, unrolled
from everybyte.rules.parallel.stages import Split, Stage, dealt, stages_of, weighted


def plan(pp: int, virtual: int = 1, schedule: Schedule | None = None) -> Plan:
    """A plan with enough micro-batches for any schedule."""
    return Plan(schedule or ("interleaved" if virtual > 1 else "1f1b"), pp, virtual, 4 * pp, pp)


def chunks(stages: tuple[Stage, ...]) -> list[tuple[tuple[int, ...], ...]]:
    """The layers of each chunk of each stage."""
    return [stage.chunks for stage in stages]


def ends(stages: tuple[Stage, ...]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(stage, chunk) of the embeddings and of the heads."""
    return [(s.index, s.embedding) for s in stages if s.has_embedding], [(s.index, s.head) for s in stages if s.has_head]


def test_even_stages() -> None:
    """Layers go down the stages in order; the first has the embedding, the last the head."""
    stages = dealt(8, plan(4))
    assert chunks(stages) == [((0, 1),), ((2, 3),), ((4, 5),), ((6, 7),)]
    assert ends(stages) == ([(0, 0)], [(3, 0)])


def test_interleaved_chunks() -> None:
    """Chunk 0 of all ranks comes before chunk 1 of all ranks, as Megatron-LM's comment on virtual stages draws it."""
    stages = dealt(8, plan(2, 2))
    assert chunks(stages) == [((0, 1), (4, 5)), ((2, 3), (6, 7))]
    assert ends(stages) == ([(0, 0)], [(1, 1)])
    assert stages[1].layers == (2, 3, 6, 7)


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_folded_schedules_come_back(schedule: Schedule) -> None:
    """With zb-v and dualpipe-v rank i holds stages i and 2p-1-i, so that the first rank has both the embedding and the head."""
    stages = dealt(12, plan(3, 2, schedule))
    assert chunks(stages) == [((0, 1), (10, 11)), ((2, 3), (8, 9)), ((4, 5), (6, 7))]
    assert ends(stages) == ([(0, 0)], [(0, 1)])


def test_dualpipe_holds_the_opposite_stage_too() -> None:
    """With dualpipe each rank holds its own stage and that of the opposite rank: all weights are there twice, embedding and head as well."""
    stages = dealt(8, plan(4, 1, "dualpipe"))
    assert chunks(stages) == [((0, 1), (6, 7)), ((2, 3), (4, 5)), ((4, 5), (2, 3)), ((6, 7), (0, 1))]
    assert ends(stages) == ([(0, 0), (3, 1)], [(0, 1), (3, 0)])


def test_counts_of_stages_and_chunks() -> None:
    """Counts name the layers of each stage, whose chunks share them evenly, or of each chunk in the order of the model."""
    assert chunks(dealt(12, plan(4), (2, 4, 4, 2))) == [((0, 1),), ((2, 3, 4, 5),), ((6, 7, 8, 9),), ((10, 11),)]
    assert chunks(dealt(6, plan(2, 2), (4, 2))) == [((0, 1), (3, 4)), ((2,), (5,))]
    assert chunks(dealt(6, plan(2, 2), (1, 2, 3, 0))) == [((0,), (3, 4, 5)), ((1, 2), ())]


def test_embedding_and_loss_count_as_layers() -> None:
    """Where the embedding and the loss count as layers, the first and the last chunk have one less; the job may state the counts beside it."""
    split = Split(embedding=True, loss=True)
    assert chunks(dealt(6, plan(4, 2), None, 0, split)) == [((), (3,)), ((0,), (4,)), ((1,), (5,)), ((2,), ())]
    assert dealt(6, plan(4, 2), (1, 2, 2, 1), 0, split) == dealt(6, plan(4, 2), None, 0, split)
    assert chunks(dealt(6, plan(4), None, 0, split)) == [((0,),), ((1, 2),), ((3, 4),), ((5,),)]


def test_uneven_ends() -> None:
    """The first or last stage may have its own number; the others share the rest."""
    assert [len(s.layers) for s in dealt(14, plan(4), None, 0, Split(first=2))] == [2, 4, 4, 4]
    assert [len(s.layers) for s in dealt(14, plan(4, 2), None, 0, Split(first=4, last=2))] == [4, 4, 4, 2]


def test_layout_text() -> None:
    """Megatron-LM's layout text: repetitions, empty pieces, prediction blocks where the m stands."""
    assert unrolled("Et*3|(tt|)*6mL") == "Ettt|tt|tt|tt|tt|tt|tt|mL"
    assert unrolled("E,(t|m)*2,L") == "Et|mt|mL"
    stages = dealt(15, plan(2, 4), "Et*3|(tt|)*6mL", 1)
    assert chunks(stages) == [((0, 1, 2), (5, 6), (9, 10), (13, 14)), ((3, 4), (7, 8), (11, 12), ())]
    assert (stages[1].mtp, stages[1].mtp_chunk, stages[1].head) == (1, 3, 3)
    alone = dealt(4, plan(4), "Ett|tt|mm|L", 2)
    assert [(s.mtp, s.mtp_chunk, s.has_head) for s in alone] == [(0, -1, False), (0, -1, False), (2, 0, False), (0, -1, True)]


def test_prediction_blocks_are_on_the_last_stage() -> None:
    """Without a layout text blocks of multi-token prediction are in the last chunk."""
    assert [(s.mtp, s.mtp_chunk) for s in dealt(8, plan(2, 2), None, 2)] == [(0, -1), (2, 1)]


def test_torchtitan_counts_the_ends_as_layers() -> None:
    """torchtitan's split of Llama 3.1 405B over 8 stages is 15, 16 six times, 15; a rest goes to the first stages."""
    assert weighted(126, 8) == (15, 16, 16, 16, 16, 16, 16, 15)
    assert weighted(32, 4) == (8, 9, 8, 7)
    assert weighted(5, 1) == (5,)
    assert [len(s.layers) for s in dealt(126, plan(8), weighted(126, 8))] == [15, 16, 16, 16, 16, 16, 16, 15]
    with pytest.raises(BadInput, match="too many"):
        weighted(2, 8)


REFUSED: list[tuple[int, Plan, Any, int, Split, str]] = [
    (10, plan(4), None, 0, Split(), "10 layers are not divisible by pp 4 × virtual 1"),
    (12, plan(4, 2), None, 0, Split(), "not divisible by pp 4 × virtual 2"),
    (12, plan(4), None, 0, Split(embedding=True), "13 layers with the embedding and the loss"),
    (12, plan(4), (3, 3, 3, 2), 0, Split(), "3 + 3 + 3 + 2 = 11 layers, but the model has 12"),
    (12, plan(4), (6, 6), 0, Split(), "2 numbers for 4 stages"),
    (12, plan(4, 2), (3, 3, 3, 3), 0, Split(), "3 layers of stage 0 are not divisible by its 2 chunks"),
    (12, plan(4), "Et*3|ttt|ttt|tttL", 0, Split(loss=True), "does not go with"),
    (12, plan(4), "Et*3|ttt|ttt|ttL", 0, Split(), "has 11 layers, but the model has 12"),
    (3, plan(3), "t|t|tL", 0, Split(), "must begin with the one E"),
    (3, plan(3), "Et|Et|tL", 0, Split(), "must begin with the one E"),
    (3, plan(3), "Et|tL|t", 0, Split(), "must begin with the one E"),
    (3, plan(3), "Et|t|tmL", 0, Split(), "has 1 blocks of multi-token prediction, but the model has 0"),
    (3, plan(3), "Et|mt|tL", 1, Split(), "behind all layers"),
    (3, plan(3), "Ettt|m|mL", 2, Split(), "stand in one piece"),
    (3, plan(3), "Et|q|ttL", 0, Split(), "'q'"),
    (3, plan(3), "Et|t*99999999|L", 0, Split(), ""),
    (12, plan(4), None, 0, Split(first=1), "train.extra.decoder-first-pipeline-num-layers: leaves 11 of 12 layers, which 3 further stages"),
    (12, plan(2), None, 0, Split(first=4, last=4), "leaves 4 of 12 layers, which 0 further stages"),
    (12, plan(4), None, 0, Split(first=3, embedding=True), "does not go with"),
]


@pytest.mark.parametrize(("layers", "how", "given_layers", "mtp", "split", "words"), REFUSED)
def test_impossible_splits_are_refused(layers: int, how: Plan, given_layers: Any, mtp: int, split: Split, words: str) -> None:
    """A split that cannot be is refused with the rule that it breaks."""
    with pytest.raises(BadInput) as refused:
        dealt(layers, how, given_layers, mtp, split)
    assert words in str(refused.value)


def job(framework: str = "megatron", **keys: Any) -> Train:
    """A train section with two stages."""
    read = read_job({"model": "m", "train": {"framework": framework, "mesh": {"pp": 2}, **keys}}).train
    assert read is not None
    return read


def test_the_job_says_it() -> None:
    """Layers, prediction blocks and Megatron-LM's settings, with hyphens or underscores, are read from the job."""
    network = network_of({"shape": {"family": "gpt", "layers": 6, "hidden": 64, "ffn": 256, "heads": 4, "vocab": 100, "max_positions": 64, "mtp": 1}})
    plain = job()
    assert [(len(s.layers), s.mtp) for s in stages_of(plain, network, planned(plain, 2))] == [(3, 0), (3, 1)]
    for key in ("decoder-first-pipeline-num-layers", "decoder_first_pipeline_num_layers"):
        uneven = job(extra={key: 2})
        assert [len(s.layers) for s in stages_of(uneven, network, planned(uneven, 2))] == [2, 4]
    text = job(pipeline={"layers": "Et|tt|tt|tmL"})
    assert planned(text, 2) == Plan("interleaved", 2, 2, 2, 2)
    assert chunks(stages_of(text, network, planned(text, 2))) == [((0,), (3, 4)), ((1, 2), (5,))]
    own = job("torchtitan")
    assert [len(s.layers) for s in stages_of(own, network, planned(own, 2), weighted(6, 2, 2, 2))] == [3, 3]
    with pytest.raises(BadInput, match="expected a whole number from 1"):
        stages_of(job(extra={"decoder-last-pipeline-num-layers": "two"}), network, planned(plain, 2))
    with pytest.raises(BadInput, match="3 pieces between its bars, which 2 stages"):
        planned(job(pipeline={"layers": "Et|t|tL"}), 2)
    with pytest.raises(BadInput, match="has 2 chunks for each of 2 stages, but virtual is 3"):
        planned(job(pipeline={"layers": "Et|t|t|tL", "virtual": 3}), 2)


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.integers(0, 9), min_size=24, max_size=24),
    st.integers(0, 2),
    st.sampled_from(["1f1b", "zb-v", "dualpipe", "text"]),
)
def test_every_layer_has_its_place(pp: int, virtual: int, sizes: list[int], mtp: int, kind: Any) -> None:
    """However chunks are sized, every layer is held once (by dualpipe twice), in ascending order along the model, and the embedding stands before the head."""
    pp = 2 * pp if kind == "dualpipe" else pp
    virtual = {"zb-v": 2, "dualpipe": 1}.get(kind, virtual)
    counts = tuple(sizes[index % 24] for index in range(pp * virtual))
    text = "E" + "|".join("t" * count for count in counts) + "m" * mtp + "L"
    schedule: Any = ("interleaved" if virtual > 1 else "1f1b") if kind in ("1f1b", "text") else kind
    stages = dealt(sum(counts), Plan(schedule, pp, virtual, 4 * pp, pp), text if kind == "text" else counts, mtp)
    held = sorted(layer for stage in stages for layer in stage.layers)
    assert held == sorted([*range(sum(counts))] * (2 if kind == "dualpipe" else 1))
    assert all(list(chunk) == sorted(chunk) for stage in stages for chunk in stage.chunks)
    assert sum(stage.mtp for stage in stages) == mtp * (2 if kind == "dualpipe" else 1)
    assert all(len(places) == (2 if kind == "dualpipe" else 1) for places in ends(stages))
