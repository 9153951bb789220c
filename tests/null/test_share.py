"""Which values of memory_fraction work, against made-up rules whose answer is known, and of real engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_answers import answer, rank

from everybyte.basics.errors import BadInput
from everybyte.cli.app import run
from everybyte.job import Job, read_job
from everybyte.ledger.answer import Answer
from everybyte.plan.fit import fit
from everybyte.plan.keys import gpu_step, resolve_key, with_value
from everybyte.plan.share import feasible

BASE = rank().figures["peak.device"]


def served(**serve: object) -> Job:
    return read_job({"model": "meta-llama/Meta-Llama-3.1-8B", "hardware": {"gpu": "a100-80gb"}, "serve": {"engine": "sglang", "version": "0.5.13", **serve}})


def estimator(works: Callable[[int], bool]) -> Callable[[Job], Answer]:
    def estimate(asked: Job) -> Answer:
        assert asked.serve is not None
        part = round((asked.serve.memory_fraction or 0) * 1000)
        return answer(capacity=BASE + (10 if works(part) else -1000), figures={"kv.tokens": part})

    return estimate


@pytest.mark.parametrize("borders", [[(200, 900)], [(10, 1000)], [(203, 204)], [(110, 333), (412, 987)], []])
def test_all_intervals_to_the_thousandth(borders: list[tuple[int, int]]) -> None:
    """Nothing is assumed about their number; one that holds no hundredth may be missed."""
    result = feasible(served(), estimator(lambda part: any(low <= part <= high for low, high in borders)))
    expected = [(low / 1000, high / 1000) for low, high in borders if any(mark % 10 == 0 for mark in range(low, high + 1))]
    assert [(found.low, found.high) for found in result.intervals] == expected
    assert [found.tokens for found in result.intervals] == [(round(1000 * low), round(1000 * high)) for low, high in expected]


def test_why_the_neighbours_do_not_work() -> None:
    """Below and above each interval stands the reason; at the ends of the scale there is none."""
    result = feasible(served(), estimator(lambda part: 200 <= part <= 900))
    assert "too much" in (result.below or "")
    assert "too much" in (result.above or "")
    assert feasible(served(), estimator(lambda _: True)).above is None


def test_no_value_works() -> None:
    """A model that is too large has no interval, and both ends say why."""
    job = read_job({"model": "Qwen/Qwen2.5-72B", "hardware": {"gpu": "rtx-4090"}, "serve": {"engine": "sglang"}})
    result = feasible(job)
    assert result.intervals == ()
    assert "no mem_fraction_static works" in (result.below or "")


def test_a_real_engine() -> None:
    """SGLang: from the first token of cache to what activations and graphs need."""
    result = feasible(served())
    assert len(result.intervals) == 1
    found = result.intervals[0]
    assert 0.18 < found.low < 0.21
    assert 0.9 < found.high < 1
    assert "must be above" in (result.below or "")


def test_memory_fraction_has_no_largest_value() -> None:
    """It is a share, and asked for by its name alone or whole."""
    assert resolve_key(served(), "memory_fraction") == "serve.memory_fraction"
    with pytest.raises(BadInput, match="interval"):
        fit(served(), "memory_fraction")


def test_a_device_is_needed() -> None:
    """Without one nothing can be said."""
    with pytest.raises(BadInput, match="name a GPU"):
        feasible(read_job({"model": "gpt2", "serve": {"engine": "sglang"}}))


def test_the_longest_context_is_what_the_cache_holds() -> None:
    """One token more is refused, and it is said why."""
    result = fit(served(), "context")
    assert result.answer is not None
    assert result.value == result.answer.figures["kv.tokens"]
    assert "too small for" in (result.stop.why or "") if result.stop else False


def test_sequences_are_those_that_the_cache_holds_at_once() -> None:
    """An engine would start with more and let them wait."""
    result = fit(served(context=8192), "sequences")
    assert result.answer is not None
    assert result.value is not None
    assert result.value <= result.answer.figures["kv.concurrency"] < result.value + 1
    assert result.stop is not None
    assert "the cache holds" in (result.stop.why or "")


def test_gpus_of_a_server_share_its_weights() -> None:
    """The fewest GPUs: tensor parallel grows with them, stages stay as they are; numbers that do not divide the heads are passed over."""
    job = read_job({"model": "Qwen/Qwen2.5-72B", "hardware": {"gpu": "a100-40gb", "gpus": 8}, "serve": {"engine": "sglang", "mesh": {"tp": 8}}})
    assert gpu_step(job) == 1
    changed = with_value(job, "hardware.gpus", 4)
    assert changed.serve is not None
    assert changed.serve.mesh is not None
    assert changed.serve.mesh.tp == 4
    assert fit(job, "-gpus").value == 8


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`fit --grow memory_fraction`: exit 0 with the intervals, 1 where none works; one line of JSON."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": "meta-llama/Meta-Llama-3.1-8B", "hardware": {"gpu": "a100-80gb"}, "serve": {"engine": "sglang"}}), encoding="utf-8")
    assert run(["fit", str(job), "--grow", "memory_fraction", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["key"] == "serve.memory_fraction"
    assert found["intervals"][0]["low"] < found["intervals"][0]["high"]
    job.write_text(json.dumps({"model": "Qwen/Qwen2.5-72B", "hardware": {"gpu": "rtx-4090"}, "serve": {"engine": "sglang"}}), encoding="utf-8")
    assert run(["fit", str(job), "--grow", "memory_fraction"]) == 1
    assert "no memory_fraction works" in capsys.readouterr().out


def test_a_longer_context_may_start_where_a_shorter_one_is_refused() -> None:
    """vLLM 0.6 profiles prompts of the whole context up to 32,768 tokens: Llama-3.1-8B on 24 GB starts with 20,000, not with 29,000, again with 35,000."""
    card = {"gpu": {"name": "RTX-3090", "memory_bytes": 25_318_832_210}, "gpus": 1}
    job = read_job({"model": "meta-llama/Meta-Llama-3.1-8B", "hardware": card, "serve": {"engine": "vllm", "version": "0.6.4", "context": 20_000}})
    result = fit(job, "context")
    assert result.value is not None
    assert result.value > 35_000
    assert [hole for hole in result.holes if 20_000 < hole < 32_768]
