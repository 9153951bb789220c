"""Sweeps over one setting: the border is the one that `fit` finds, refused values have no size, and the picture shows both."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from made_answers import RTX_4090, answer

from everybyte.basics.errors import BadInput
from everybyte.estimator import estimate
from everybyte.job import Job, load, read_job
from everybyte.ledger.answer import Answer
from everybyte.plan.fit import fit
from everybyte.plan.keys import with_value
from everybyte.plan.sweep import Sweep, sweep
from everybyte.report import charts

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = [
    ("llama-3.1-8b-lora-24gb.yaml", "micro_batch"),
    ("llama-3.1-8b-lora-24gb.yaml", "seq_len"),
    ("llama-3.1-8b-lora-24gb.yaml", "adapter.rank"),
    ("serving/llama-3.1-8b-vllm-l40s.yaml", "context"),
    ("serving/llama-3.1-8b-vllm-l40s.yaml", "sequences"),
    ("long-context-generation.yaml", "context"),
    ("several-gpus/llama-2-13b-zero2-8xa100-40.yaml", "gpus"),
    ("serving/qwen3-30b-a3b-llamacpp-4090.yaml", "context"),
]


@cache
def job_of(name: str) -> Job:
    return load(str(EXAMPLES / name)).job()


@cache
def sweep_of(name: str, key: str) -> Sweep:
    return sweep(job_of(name), key)


@pytest.mark.parametrize(("name", "key"), CASES)
def test_border_is_what_fit_finds(name: str, key: str) -> None:
    """The marked value is `fit`'s answer; it is a point that fits, and where there is a border larger points do not."""
    found, made = fit(job_of(name), key), sweep_of(name, key)
    points = {point.value: point for point in made.points}
    if found.unlimited:
        assert made.unlimited
        assert made.last is None
    elif found.value is not None:
        assert made.last == found.value
        assert points[found.value].fits
        assert any(value > found.value and not point.fits for value, point in points.items())
    assert list(points) == sorted(points)
    assert len(points) <= 40
    assert made.current is None or made.current in points


@pytest.mark.parametrize(("name", "key"), CASES)
def test_points_are_answers(name: str, key: str) -> None:
    """Each answered point needs what an estimate of that value says, and its parts add up to it."""
    job, made = job_of(name), sweep_of(name, key)
    assert all(sum(point.parts.values()) == point.needed for point in made.points if point.needed is not None)
    for point in made.points[:: len(made.points) // 2]:
        if point.needed is not None:
            assert point.needed == estimate(with_value(job, made.key, point.value)).figures["peak.device"]


def made_estimator(job: Job) -> Answer:
    """Needs 2 GiB a sequence; refuses multiples of three."""
    assert job.train is not None
    count = job.train.micro_batch or 1
    if count % 3 == 0:
        raise BadInput("train.micro_batch", "not by threes")
    figures = {**answer().figures, "peak.device": count * 2**31}
    return answer(figures=figures, headroom=RTX_4090 - count * 2**31, fits=count * 2**31 <= RTX_4090)


JOB = read_job(
    {
        "model": "meta-llama/Meta-Llama-3.1-8B",
        "hardware": {"gpu": "rtx-4090"},
        "train": {"framework": "trl", "micro_batch": 2, "seq_len": 128, "precision": "bf16"},
    }
)


def test_refused_values_have_no_size_and_no_column() -> None:
    """A refused value says why, and the picture has a cross but no column for it."""
    pytest.importorskip("vl_convert")
    made = sweep(JOB, "micro_batch", made_estimator)
    assert made.last == 11
    refused = [point.value for point in made.points if point.refused]
    assert refused == [value for value in (p.value for p in made.points) if value % 3 == 0]
    assert all(point.needed is None and not point.parts for point in made.points if point.refused)
    spec = charts.knob(made)
    columns = {row["value"] for row in spec["layer"][0]["data"]["values"]}
    crosses = {row["value"] for row in spec["layer"][1]["data"]["values"]}
    assert columns == {p.value for p in made.points} - crosses
    assert crosses == set(refused)
    assert "× refused" in spec["title"]["subtitle"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "key"), CASES)
def test_knob_is_drawn(name: str, key: str, theme: charts.Theme) -> None:
    """The picture marks the border that the sweep has, in its words and its description."""
    pytest.importorskip("vl_convert")
    made = sweep_of(name, key)
    spec = charts.knob(made, theme=theme)
    drawn = charts.draw(spec, ".svg").decode()
    assert "NaN" not in drawn
    assert float(drawn.split('width="')[1].split('"')[0]) <= 800
    if made.last is not None:
        assert f"fits up to {made.last:,}" in drawn
        assert f"{made.last:,}" in spec["description"]


def test_doublings_are_equally_far_apart_where_values_double() -> None:
    """Over several doublings the scale is logarithmic; a few neighbouring values stand on a plain one."""
    assert charts.knob(sweep_of("serving/llama-3.1-8b-vllm-l40s.yaml", "context"))["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    assert charts.knob(sweep(JOB, "micro_batch", made_estimator))["layer"][0]["encoding"]["x"]["scale"]["type"] == "linear"


def test_sizes_of_a_mesh_go_by_doublings() -> None:
    """Of tensor-parallel ranks only powers of two are tried."""
    job = read_job(
        {
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": {"gpu": "l40s", "gpus": 2},
            "serve": {"engine": "vllm", "context": 8192, "mesh": {"tp": 2}},
        }
    )
    values = [point.value for point in sweep(job, "mesh.tp").points]
    assert values
    assert all(value & (value - 1) == 0 for value in values)


def test_without_a_gpu_nothing_is_marked() -> None:
    """A sweep needs no GPU; then there is no border."""
    made = sweep(read_job({"model": "Qwen/Qwen2.5-7B", "serve": {"engine": "transformers", "context": 8192, "sequences": 1}}), "context")
    assert made.capacity is None
    assert made.last is None
    assert len(made.points) > 5


def test_unknown_settings_and_refused_jobs() -> None:
    """An unknown setting names the nearest ones; where every value is refused the first refusal is the message."""

    def refuses(job: Job) -> Answer:
        raise BadInput("train", "no")

    with pytest.raises(BadInput, match="did you mean"):
        sweep(JOB, "micro_bach")
    with pytest.raises(BadInput, match="train: no"):
        sweep(JOB, "micro_batch", refuses)
    with pytest.raises(BadInput, match=r"train\.tokens"):
        sweep(job_of("several-gpus/llama-2-13b-zero2-8xa100-40.yaml"), "train.tokens")


def test_where_everything_fits_the_sweep_goes_beyond_the_job() -> None:
    """A setting without a border is shown well beyond its value, and nothing is marked."""
    made = sweep(job_of("llama-3.1-8b-lora-24gb.yaml"), "grad_accum")
    assert made.unlimited
    assert made.points[-1].value >= 16 * (made.current or 1)
    assert "every value tried fits" in charts.knob(made)["title"]["text"]
