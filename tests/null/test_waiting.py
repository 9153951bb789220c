"""Micro-batches in flight beside the one that runs, in a pipeline."""

from __future__ import annotations

from everybyte.engines.pytorch.train import defaults
from everybyte.job import read_job
from everybyte.models.source import network_of
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.recipe import recipe_of
from everybyte.rules.step.timeline import StepTimeline

JOB = {
    "model": {"shape": {"family": "llama", "layers": 4, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 96}},
    "train": {"framework": "pytorch", "micro_batch": 2, "seq_len": 16, "precision": "bf16"},
}


def test_what_waits_is_there_in_every_phase() -> None:
    """The kept tensors of three waiting micro-batches raise the peaks of forward and of backward by their bytes: three times what one keeps in four layers."""
    job = read_job(JOB)
    assert job.train is not None
    network = network_of(job.model)
    recipe = recipe_of(job.train, network, defaults(job.train), ResolvedSettings())
    alone = StepTimeline(network, recipe)
    place = next(index for index, segment in enumerate(alone.row) if segment.copies == 4)
    waiting = StepTimeline(network, recipe, waiting=((alone.row[place].part, 3),))
    more = 3 * 4 * alone.measures[place].kept
    assert more > 0
    for phase in ("forward", "backward"):
        assert waiting.peaks()[phase].bytes == alone.peaks()[phase].bytes + more
