"""Starting points: what is taken for a person who leaves settings open, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.engines.registry import TRAIN
from everybyte.estimator import accounted
from everybyte.job import job_to_dict, read_job
from everybyte.plan.answer import answered
from everybyte.plan.start.points import all_points, shardings_of
from everybyte.plan.start.start import started
from everybyte.plan.start.taken import get

OWN_DEFAULTS = ("nanogpt", "textbook", "unsloth", "xtuner", "prime-rl")
"""Frameworks whose engine already states the defaults of their own scripts."""
POINTS = [(point, framework) for point in all_points() for framework in point.frameworks]


def job_of(framework: str | None, *, adapter: bool = False, image: bool = False, gpus: int = 1, **train: Any) -> Any:
    named = {"framework": framework} if framework else {}
    model = "black-forest-labs/FLUX.1-dev" if image else "meta-llama/Llama-3.2-1B"
    kind = {"adapter": "lora"} if adapter else {}
    return read_job({"model": model, "hardware": {"gpu": "h100", "gpus": gpus}, "train": {**named, **kind, **train}})


@pytest.mark.parametrize(("point", "framework"), POINTS, ids=[f"{framework}-{'-'.join(point.when) or 'usual'}" for point, framework in POINTS])
def test_every_point_is_what_its_framework_takes(point: Any, framework: str) -> None:
    """Each setting of an example is of the job's form, the framework answers it, and the job says it; source and version are named."""
    assert point.source
    assert point.version
    found = started(job_of(framework, adapter=point.when.get("adapter", False), image=point.when.get("image", False)))
    raw = job_to_dict(found.job)
    for path, value in point.set.items():
        assert get(raw, path) == value, path
        assert found.taken[path] == point.origin
    accounted(found.job)


def test_every_framework_has_a_point_or_its_own_defaults() -> None:
    """A framework that is answered starts from its own example."""
    known = {framework for point in all_points() for framework in point.frameworks}
    assert sorted(set(TRAIN) - known) == sorted(OWN_DEFAULTS)


def test_what_is_stated_stays() -> None:
    """A given setting is never replaced, and what says the same in another way is not set beside it."""
    found = started(job_of(None, precision="fp32", tokens=2048, recompute="none"))
    raw = job_to_dict(found.job)
    assert get(raw, "train.precision") == "fp32"
    assert get(raw, "train.recompute.policy") == "none"
    assert get(raw, "train.micro_batch") is None
    assert not {"train.precision", "train.tokens", "train.recompute.policy", "train.seq_len"} & set(found.taken)


@pytest.mark.parametrize(
    ("model", "section", "chosen"),
    [
        ("meta-llama/Llama-3.2-1B", {"train": {}}, "trl"),
        ("openai/whisper-large-v3", {"train": {}}, "transformers"),
        ("black-forest-labs/FLUX.1-dev", {"train": {}}, "pytorch"),
        ("meta-llama/Llama-3.1-8B", {"train": {"mesh": {"tp": 2}}}, "megatron"),
        ("meta-llama/Llama-3.1-8B", {"serve": {}}, "vllm"),
        ("meta-llama/Llama-3.1-8B", {"serve": {"weights": "q4_k_m"}}, "llama.cpp"),
        ("meta-llama/Llama-3.1-8B", {"serve": {"weights": {"format": "exl3", "bits": 4.0}}}, "exllama"),
        ("openai/whisper-large-v3", {"serve": {}}, "transformers"),
    ],
)
def test_the_framework_that_is_meant(model: str, section: dict[str, Any], chosen: str) -> None:
    """It follows from the model and from settings that only one has, and the answer says that it was taken."""
    found = started(read_job({"model": model, "hardware": {"gpu": "h100", "gpus": 2 if "mesh" in str(section) else 1}, **section}))
    key = "train.framework" if "train" in section else "serve.engine"
    assert get(job_to_dict(found.job), key) == chosen
    assert key in found.taken


@pytest.mark.parametrize("framework", ["trl", "deepspeed", "llama-factory", "megatron", "nemo", "axolotl", "ms-swift"])
def test_several_gpus_are_laid_out(framework: str) -> None:
    """A 70B that one GPU does not hold is divided over 64, and the answer says how."""
    job = read_job({"model": "meta-llama/Llama-3.1-70B", "hardware": {"gpu": "h100", "gpus": 64}, "train": {"framework": framework}})
    found = started(job)
    answer = answered(found.job, found.taken, advise=False)
    assert answer.fits
    if shardings_of(framework):
        assert "train.sharding" in found.taken
    assert not [setting for setting in answer.settings if setting.origin == "given" and setting.key != "train.framework"]


def test_a_server_shares_its_weights() -> None:
    """Tensor parallelism inside a node, stages over nodes; a stated mesh stays."""
    for gpus, mesh in ((4, {"tp": 4}), (16, {"tp": 8, "pp": 2})):
        job = read_job({"model": "meta-llama/Llama-3.1-70B", "hardware": {"gpu": "h100", "gpus": gpus}, "serve": {"engine": "vllm", "context": 8192}})
        answer = answered(job)
        assert {axis: answer.job["serve"]["mesh"][axis] for axis in mesh} == mesh
        assert [setting.origin for setting in answer.settings if setting.key == "serve.mesh.tp"] != ["given"]


@pytest.mark.parametrize("section", [{"train": {}}, {"serve": {}}])
def test_nothing_is_given_where_nothing_is_stated(section: dict[str, Any]) -> None:
    """No default of an empty section is shown as given, and each stands among the assumptions."""
    answer = answered(read_job({"model": "meta-llama/Llama-3.2-1B", "hardware": {"gpu": "h100"}, **section}))
    assert not [setting for setting in answer.settings if setting.origin == "given"]
    assert any(text.startswith("default of ") for text in answer.assumptions)


def test_megatron_never_takes_all_positions() -> None:
    """Its sequences have 4,096 tokens where the job is silent, not the model's 131,072."""
    job = read_job({"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "h100"}, "train": {"framework": "megatron"}})
    assert answered(job, advise=False).job["train"]["seq_len"] == 4096
