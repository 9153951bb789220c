"""What holds for every ledger: rows add up, formulas give their bytes, more work never needs less, an answer survives being read back."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from arithmetic_of_rows import calculate
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from small_jobs import model, servings, trainings

from everybyte import estimate, headline
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.job import job_to_dict, read_job
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.entry import OUTSIDE_ALLOCATOR, Entry
from everybyte.report.as_json import answer_object

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
JOBS = trainings() | servings()


def answer(job: dict[str, Any]) -> Answer:
    """The answer; a combination that the product refuses is not an example, nor are targets that a family calls otherwise."""
    try:
        return estimate(job)
    except BadInput as error:
        if isinstance(error, Unsupported) or error.path == "train.adapter.targets":
            reject()
        raise


def inside(rank: RankAnswer, phase: str) -> list[Entry]:
    """The rows that the allocator holds in a phase."""
    return [e for e in rank.ledger if phase in e.phases and e.category not in OUTSIDE_ALLOCATOR]


@given(JOBS)
@some
def test_rows_add_up(job: dict[str, Any]) -> None:
    """The rows of each phase add up to its total, the highest phase is peak.allocated, and the three figures are in order."""
    found = answer(job)
    for rank in found.ranks:
        for phase in rank.phases:
            assert sum(e.bytes for e in inside(rank, phase.name)) == phase.allocated
        highest = max(rank.phases, key=lambda p: p.allocated)
        assert (rank.peak_phase, rank.figures["peak.allocated"]) == (highest.name, highest.allocated)
        outside = sum(e.bytes for e in rank.ledger if e.category in OUTSIDE_ALLOCATOR and rank.peak_phase in e.phases)
        assert rank.figures["peak.device"] == rank.figures["peak.reserved"] + outside
    figures = found.figures
    assert figures["static.allocated"] <= figures["peak.allocated"] <= figures["peak.reserved"] <= figures["peak.device"]


@given(JOBS)
@some
def test_every_row_explains_itself(job: dict[str, Any]) -> None:
    """Every row has a positive size, a source and a formula; with the numbers of its symbols the formula gives the row's bytes."""
    for rank in answer(job).ranks:
        for e in rank.ledger:
            assert e.bytes > 0, e.id
            assert e.source, e.id
            assert calculate(e.formula, e.symbols) == e.bytes, (e.id, e.formula, e.symbols, e.bytes)


@given(JOBS)
@some
def test_numbers_are_the_formula_with_its_symbols(job: dict[str, Any]) -> None:
    """What a reader sees beside the formula needs no letters any more and comes to the row's bytes."""
    for rank in answer(job).ranks:
        for e in rank.ledger:
            bare = e.numbers().replace(", ", ";").replace(",", "").replace(";", ", ")
            assert calculate(bare, {}) == e.bytes, (e.id, e.numbers())


@given(JOBS)
@some
def test_rows_have_one_name(job: dict[str, Any]) -> None:
    """In one phase an id of one category is one row, so that two ledgers can be laid side by side."""
    for rank in answer(job).ranks:
        for phase in rank.phases:
            names = [(e.id, e.category) for e in inside(rank, phase.name)]
            assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
            assert all(e.phases.count(phase.name) == 1 for e in inside(rank, phase.name))


GROWTH = st.sampled_from([("micro_batch", 1), ("micro_batch", 3), ("seq_len", 1), ("seq_len", 40)])


@given(trainings(), GROWTH)
@some
def test_a_larger_batch_never_needs_less(job: dict[str, Any], growth: tuple[str, int]) -> None:
    """More sequences or more tokens: neither the peak nor what stays between steps goes down."""
    more = copy.deepcopy(job)
    more["train"][growth[0]] += growth[1]
    assert_not_less(answer(job), answer(more))


@given(JOBS, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM", "GPT2LMHeadModel"]))
@some
def test_more_layers_never_need_less(job: dict[str, Any], layers: int, added: int, architecture: str) -> None:
    """A deeper network of the same blocks."""
    less, more = copy.deepcopy(job), copy.deepcopy(job)
    less["model"], more["model"] = model(architecture, layers), model(architecture, layers + added)
    assert_not_less(answer(less), answer(more))


def assert_not_less(before: Answer, after: Answer) -> None:
    """No allocated figure goes down."""
    for name in ("peak.allocated", "static.allocated"):
        assert before.figures[name] <= after.figures[name], name


@given(servings(), st.integers(1, 50))
@some
def test_a_longer_context_or_more_sequences_never_need_less(job: dict[str, Any], added: int) -> None:
    """Inference: weights stay, cache and working memory grow."""
    longer, wider = copy.deepcopy(job), copy.deepcopy(job)
    longer["serve"]["context"] += added
    wider["serve"]["sequences"] += 1
    start = answer(job)
    for more in (answer(longer), answer(wider)):
        assert start.figures["weights"] == more.figures["weights"]
        assert start.figures.get("kv.bytes", 0) <= more.figures.get("kv.bytes", 0)
        assert start.figures["peak.allocated"] <= more.figures["peak.allocated"]


def cache_of(architecture: str, context: int, sequences: int = 1, kv_dtype: str = "auto") -> dict[str, int]:
    """Figures of generation up to a context."""
    serve = {"engine": "transformers", "context": context, "sequences": sequences, "weights": "bf16", "kv_dtype": kv_dtype}
    return estimate({"model": model(architecture, 4), "serve": serve}).figures


@given(st.integers(3, 400), st.integers(1, 50), st.integers(1, 4), st.sampled_from(["LlamaForCausalLM", "Qwen3ForCausalLM", "DeepseekV3ForCausalLM"]))
@some
def test_a_plain_cache_grows_linearly(context: int, added: int, sequences: int, architecture: str) -> None:
    """Each token of each sequence costs kv.bytes_per_token."""
    before, after = cache_of(architecture, context, sequences), cache_of(architecture, context + added, sequences)
    assert before["kv.bytes"] == before["kv.bytes_per_token"] * context * sequences
    assert after["kv.bytes"] - before["kv.bytes"] == before["kv.bytes_per_token"] * added * sequences


@given(st.integers(24, 400), st.integers(1, 50), st.sampled_from(["Gemma3ForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM"]))
@some
def test_a_window_is_full_at_its_length(context: int, added: int, architecture: str) -> None:
    """From the window's length on a layer with a window holds the same; only the others grow: half of the layers."""
    before, after = cache_of(architecture, context), cache_of(architecture, context + added)
    assert before["kv.swa_bytes"] == after["kv.swa_bytes"]
    assert after["kv.bytes"] - before["kv.bytes"] == added * before["kv.bytes_per_token"] // 2


@given(JOBS)
@some
def test_an_answer_survives_json(job: dict[str, Any]) -> None:
    """An answer that is written as JSON and read back is the same, and its job, with all defaults, is a job."""
    first = answer(job)
    assert msgspec.json.decode(msgspec.json.encode(first), type=Answer) == first
    printed = json.loads(msgspec.json.encode(answer_object(first)))
    assert printed["figures"] == first.figures
    assert job_to_dict(read_job(printed["job"])) == job_to_dict(read_job(first.job))


@given(JOBS)
@some
def test_the_filled_in_job_gives_the_same_answer(job: dict[str, Any]) -> None:
    """Defaults that are written out change nothing."""
    first = answer(job)
    second = estimate(first.job)
    assert first.figures == second.figures
    assert first.ranks == second.ranks


@given(JOBS)
@some
def test_headline_figures_are_those_of_the_answer(job: dict[str, Any]) -> None:
    """The quick way to the figures gives the same ones."""
    figures = answer(job).figures
    quick = headline(job)
    assert quick == {name: figures[name] for name in quick}
    assert {"peak.allocated", "static.allocated"} <= set(quick)
