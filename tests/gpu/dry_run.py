"""Checks the jobs without a GPU: each is a job that everybyte answers and that fits 24 GB, and the code that runs it runs, small, on the CPU.

What the small twin keeps for backward must be what is predicted for it: to the byte for each added layer, and for a whole convolution network. Its trace
must have the peak that torch's profiler saw.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE), str(HERE.parent / "oracle")]

from jobs import Measured, tiny  # noqa: E402 - the path is set above, so that the script runs from a bare checkout

Fields = dict[str, Any]
CARD = "rtx-4090"
MOST_BYTES = 22 * 2**30
"""What a job may need on a card of 24 GB."""
SCALARS = 16
"""The loss and the weights that it was divided by."""


@dataclass(frozen=True)
class Check:
    """What was found for one job."""

    name: str
    ok: bool
    text: str
    details: tuple[str, ...] = ()


def missing(measured: Measured) -> list[str]:
    """Packages that a job needs and this environment has not."""
    return [name for name in measured.needs if importlib.util.find_spec(name) is None]


def dry_run(jobs: list[Measured]) -> Iterator[Check]:
    """Checks one job after the other."""
    import loop  # noqa: F401 - imports torch and transformers
    import torch

    torch.set_num_threads(1)  # twins are too small for more
    gc.freeze()  # what is imported is not searched again at each collection
    for measured in jobs:
        try:
            yield check(measured)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with one job is shown, and the others are still checked
            yield Check(measured.name, ok=False, text=f"{type(error).__name__}: {error}")
        gc.collect()


def check(measured: Measured, *, traces: bool = True) -> Check:
    """Predicts the job, runs its small twin, and compares what it keeps, and its trace."""
    need = predicted_need(measured.job)
    if need > MOST_BYTES:
        return Check(measured.name, ok=False, text=f"needs {need / 2**30:.1f} GiB, more than fits a card of 24 GB")
    found = f"{need / 2**30:6.2f} GiB predicted"
    if missing(measured):
        return Check(measured.name, ok=True, text=f"{found}; not run: {', '.join(missing(measured))} is not installed")
    twin = tiny(measured).job
    ok, compared = check_inference(twin) if "serve" in twin else check_training(twin)
    same, traced, details = check_trace(measured.name, twin) if traces else (True, "not traced", ())
    return Check(measured.name, ok and same, f"{found}; {compared}; {traced}", details)


def predicted_need(job: Fields) -> int:
    """peak.device on a card of 24 GB."""
    from everybyte import estimate

    return estimate({**job, "hardware": {"gpu": CARD, "gpus": 1}}).figures["peak.device"]


# -- training ---------------------------------------------------------------------------------------------------------------------
def check_training(twin: Fields) -> tuple[bool, str]:
    """Steps of the twin; for models of transformers at two depths, so that what is made once a step (tables of positions, masks) drops out."""
    if "shape" in twin["model"]:
        measured, predicted = kept_on_cpu(twin), kept_predicted(twin)
        return abs(measured - predicted) <= SCALARS, f"kept {measured:,} bytes, predicted {predicted:,}"
    period = twin["model"]["config"].get("sliding_window_pattern", 1)
    pair = [deeper(twin, depth) for depth in (period, 2 * period)]
    measured, predicted = (kept(pair[1]) - kept(pair[0]) for kept in (kept_on_cpu, kept_predicted))
    return measured == predicted, f"{period} more layers keep {measured:,} bytes, predicted {predicted:,}"


def deeper(twin: Fields, layers: int) -> Fields:
    """The twin with another number of layers."""
    job = copy.deepcopy(twin)
    config = job["model"]["config"]
    config["n_layer" if "n_layer" in config else "num_hidden_layers"] = layers
    return job


def kept_on_cpu(job: Fields) -> int:
    """Bytes that live more after the forward pass of a second step than before it."""
    from live_bytes import LiveBytes
    from loop import Training

    training, live = Training(job, "cpu"), LiveBytes()
    seen: list[int] = []

    def look(_: Any) -> None:
        gc.collect()
        seen.append(live.live)

    with live:
        training.step()
        gc.collect()
        start = live.live
        training.step(look)
    return seen[0] - start


def kept_predicted(job: Fields) -> int:
    """The same by our account, with what PyTorch's CPU kernels keep."""
    from msgspec.structs import replace

    from everybyte.engines.pytorch.train import defaults
    from everybyte.job import read_job
    from everybyte.models.source import network_of
    from everybyte.rules.accounting.resolved_settings import ResolvedSettings
    from everybyte.rules.from_job.recipe import recipe_of
    from everybyte.rules.step.timeline import StepTimeline

    asked = read_job(job)
    assert asked.train is not None
    network = network_of(asked.model)
    recipe = recipe_of(asked.train, network, defaults(asked.train), ResolvedSettings())
    setup = replace(recipe.setup, kernels=replace(recipe.setup.kernels, device="cpu"))
    course = StepTimeline(network, replace(recipe, setup=setup))
    return sum(segment.copies * measure.kept for segment, measure in zip(course.row, course.measures, strict=True))


# -- inference --------------------------------------------------------------------------------------------------------------------
def check_inference(twin: Fields) -> tuple[bool, str]:
    """Runs the twin; its cache has the predicted size. The last token that is generated is never put into the cache."""
    from loop import Inference

    from everybyte import estimate

    measured = Inference(twin, "cpu").run()
    job = copy.deepcopy(twin)
    if "new_tokens" in job["serve"]["extra"]:
        job["serve"]["context"] -= 1
        job["serve"]["extra"]["new_tokens"] -= 1
    predicted = estimate(job).figures.get("kv.bytes", 0)
    return measured == predicted, f"cache of {measured:,} bytes, predicted {predicted:,}"


# -- trace ------------------------------------------------------------------------------------------------------------------------
def check_trace(name: str, twin: Fields) -> tuple[bool, str, tuple[str, ...]]:
    """The twin's run beside its trace: the peaks are the same; how many events agree, and where others do not."""
    from against import against_cpu, details

    from everybyte.trace.run import TraceFailed

    try:
        found = against_cpu(name, twin)
    except TraceFailed as failed:
        return True, f"no trace: {failed.failed.message}", ()
    last, (real, traced) = found.parts[-1], found.peaks
    text = f"{last.share:.2%} of {last.events[0]} events agree, peak {real:,} bytes, traced {traced:,}"
    return real == traced, text, tuple(details(found))
