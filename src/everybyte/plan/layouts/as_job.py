"""The job that a layout makes of the one that was asked about."""

from __future__ import annotations

from typing import Any

from everybyte.job import Job, job_to_dict, read_job
from everybyte.plan.layouts.asked import Asked
from everybyte.plan.layouts.layout import Layout, Policy
from everybyte.rules.parallel.stages import weighted

SHARDED_TWICE = ("hsdp",)
LAID_OUT = ("micro_batch", "grad_accum", "mesh", "sharding", "pipeline", "recompute", "offload", "tokens")
"""Settings of a job that a plan replaces."""


class Jobs:
    """Makes jobs of layouts; what they share is read once."""

    def __init__(self, asked: Asked) -> None:
        raw = job_to_dict(asked.job)
        self.asked = asked
        self.train = {key: value for key, value in raw["train"].items() if key not in LAID_OUT}
        self.rest = {key: value for key, value in raw.items() if key != "train"}
        self.offload = raw["train"].get("offload") or {}

    def __call__(self, layout: Layout) -> Job:
        """The whole job of a layout. Raises BadInput where its settings contradict one another."""
        hardware = {**self.rest["hardware"], "gpus": layout.gpus, "gpus_per_node": self.asked.node}
        return read_job({**self.rest, "hardware": hardware, "train": self._train(layout)})

    def _train(self, layout: Layout) -> dict[str, Any]:
        train: dict[str, Any] = {**self.train, "micro_batch": layout.micro_batch, "grad_accum": layout.grad_accum, "sharding": layout.sharding}
        mesh = _mesh(layout, self.asked)
        if mesh:
            train["mesh"] = mesh
        if layout.pp > 1:
            train["pipeline"] = _pipeline(layout, self.asked.layers)
        train["recompute"] = _recompute(layout.recompute, self.asked.family_name)
        if layout.offload != "none":
            train["offload"] = {"optimizer": "cpu", **({"params": "cpu"} if layout.offload == "params" else {})}
        if layout.precision:
            train["precision"] = layout.precision
        if layout.grads:
            train["dtypes"] = {**(train.get("dtypes") or {}), "grads": layout.grads}
        if layout.moments:
            optimizer = train.get("optimizer") or {}
            train["optimizer"] = {**(optimizer if isinstance(optimizer, dict) else {"name": optimizer}), "state_dtype": layout.moments}
        return train


def _mesh(layout: Layout, asked: Asked) -> dict[str, Any]:
    mesh: dict[str, Any] = {axis: size for axis in ("tp", "cp", "pp", "ep") if (size := getattr(layout, axis)) > 1}
    if layout.tp > 1:
        mesh["sp"] = True
        if asked.shape.expert_parameters and "etp" in asked.family.axes:
            mesh["etp"] = layout.etp
    return mesh


def _pipeline(layout: Layout, layers: int) -> dict[str, Any]:
    """Schedule and split; where stages are not equal, the embedding and the loss each count as a layer."""
    pipeline: dict[str, Any] = {"schedule": "1f1b"} if layout.virtual == 1 else {"schedule": "interleaved", "virtual": layout.virtual}
    chunks = layout.pp * layout.virtual
    if layers % chunks:
        pipeline["layers"] = list(weighted(layers, chunks))
    return pipeline


def _recompute(policy: Policy, family: str) -> Any:
    if family != "megatron" or policy.policy == "none":
        return policy.policy
    if policy.layers:
        return {"policy": "full", "method": "block", "layers": policy.layers}
    if policy.policy == "full":
        return {"policy": "full", "method": "uniform", "layers": 1}
    return {"policy": "selective", "modules": list(policy.modules)}
