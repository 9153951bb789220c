"""Runs that were measured on several GPUs have meshes that are possible."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.job import read_job
from everybyte.measure.truth import load_records
from everybyte.models.source import network_of
from everybyte.rules.accounting.conventions import CORE, PLAIN
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.parallel.mesh import mesh_of
from everybyte.rules.parallel.schedules import plan_of
from everybyte.rules.parallel.stages import stages_of, weighted


def test_every_measured_mesh_is_accepted() -> None:
    """The mesh of each measured run fills its GPUs, and its stages hold every layer once; refused are only models that are not built."""
    accepted = 0
    for record in load_records():
        if "train" not in record["job"] or (record["job"].get("hardware") or {}).get("gpus", 1) < 2:
            continue
        job = read_job(record["job"])
        try:
            network = network_of(job.model)
        except BadInput:
            continue
        assert job.train is not None
        conventions = CORE if job.train.framework in ("megatron", "nemo") else PLAIN
        mesh = mesh_of(job.train, job.hardware, network, ResolvedSettings(), conventions=conventions)
        assert mesh.gpus == mesh.tp * mesh.cp * mesh.ulysses * mesh.pp * mesh.dp, record["id"]
        accepted += 1
        if mesh.pp > 1:
            plan = plan_of(job.train, mesh.pp, ResolvedSettings(), conventions)
            counts = weighted(network.layers, plan.pp * plan.virtual) if job.train.framework == "torchtitan" else None
            stages = stages_of(job.train, network, plan, counts)
            assert sorted(layer for stage in stages for layer in stage.layers) == list(range(network.layers)), record["id"]
    assert accepted > 300
