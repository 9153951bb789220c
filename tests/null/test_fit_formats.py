"""The search for the widest format of weights, against made-up sizes whose answer is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from made_answers import answer, rank

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.job import Job, read_job
from everybyte.ledger.answer import Answer
from everybyte.plan.formats import BY_ENGINE, GGUF, PACKED, fit_format
from everybyte.rules.quantization.gguf.types import MIXTURES, block_of

BASE = rank().figures["peak.device"]


def job(engine: str = "vllm") -> Job:
    return read_job({"model": "m", "hardware": {"gpu": "a"}, "serve": {"engine": engine, "context": 4096}})


def estimator(fitting: set[str], refused: set[str] = frozenset()) -> Callable[[Job], Answer]:
    """Answers in which only some formats fit, and some are refused by the engine."""

    def estimate(asked: Job) -> Answer:
        assert asked.serve is not None
        assert asked.serve.weights is not None
        word = asked.serve.weights.format or ""
        if word in refused:
            raise Unsupported("serve.weights.format", f"{word!r} is not answered here")
        return answer(capacity=BASE + (10 if word in fitting else -1000))

    return estimate


def test_the_widest_that_fits_is_found_from_above() -> None:
    """The first format that fits on the way down is the answer; those before it are shown with their shortage."""
    result = fit_format(job("llama.cpp"), estimator({"q5_k_m", "q4_k_m", "q2_k"}))
    assert result.value == "q5_k_m"
    assert [t.format for t in result.trials] == ["bf16", "q8_0", "q6_k", "q5_k_m"]
    assert [t.short_by for t in result.trials] == [1000, 1000, 1000, None]


def test_formats_that_the_engine_refuses_are_passed_over() -> None:
    """A refusal is no failure to fit, and is told."""
    result = fit_format(job(), estimator({"awq"}, {"fp8", "int8"}))
    assert result.value == "awq"
    assert [t.refused is not None for t in result.trials[:3]] == [False, True, True]


def test_nothing_fits() -> None:
    """When no format fits there is no value, and every format was tried."""
    result = fit_format(job(), estimator(set()))
    assert (result.value, result.answer, len(result.trials)) == (None, None, len(PACKED))


def test_what_cannot_be_searched_is_refused() -> None:
    """A training job, a job without a GPU, and an engine that refuses all formats get one message with the place."""
    with pytest.raises(BadInput, match="--grow: weights is a setting of serving jobs"):
        fit_format(read_job({"model": "m", "hardware": {"gpu": "a"}, "train": {}}))
    with pytest.raises(BadInput, match=r"hardware.gpu"):
        fit_format(read_job({"model": "m", "serve": {}}))
    with pytest.raises(BadInput, match="every format is refused; bf16:"):
        fit_format(job(), estimator(set(), set(PACKED)))


def test_formats_of_gguf_are_in_the_order_of_their_bits() -> None:
    """Down the list, base types never take more bits; mixtures of one base type follow one another."""

    def bits(word: str) -> float:
        elements, size, _ = block_of(MIXTURES[word])
        return size / elements

    order = [bits(word) for word in GGUF if word != "q2_k"]  # its mixture has more of Q3_K and Q4_K in it than its name says
    assert all(a >= b for a, b in itertools.pairwise(order))
    assert set(GGUF) <= set(MIXTURES)
    assert BY_ENGINE["ollama"] is BY_ENGINE["llama.cpp"]
