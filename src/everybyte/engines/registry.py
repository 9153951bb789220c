"""Which folder answers which framework or serving engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from everybyte.basics.errors import Unsupported
from everybyte.engines.account import Account
from everybyte.job import Job
from everybyte.layers.network import Network

TRAIN: dict[str, str] = {
    "pytorch": "pytorch", "accelerate": "pytorch", "transformers": "transformers", "trl": "transformers", "axolotl": "transformers",
    "llama-factory": "transformers", "litgpt": "litgpt", "torchtune": "torchtune", "nanogpt": "nanogpt", "textbook": "textbook",
}  # fmt: skip
"""framework -> folder."""

SERVE: dict[str, str] = {"transformers": "transformers"}
"""engine -> folder."""


class Device(NamedTuple):
    """The GPU of a job as far as an engine needs it."""

    name: str
    capacity: int
    compute_capability: str


def account(job: Job, network: Network, device: Device) -> Account:
    """Lets the engine of a job account for it. Raises Unsupported for one that is not answered yet."""
    if job.train is not None:
        name, table, path, module = job.train.framework or "pytorch", TRAIN, "train.framework", "train"
    else:
        assert job.serve is not None
        name, table, path, module = job.serve.engine or "transformers", SERVE, "serve.engine", "serve"
    folder = table.get(name)
    if folder is None:
        raise Unsupported(path, f"{name!r} is not answered yet; answered are {', '.join(sorted(table))}")
    engine: Any = import_module(f"everybyte.engines.{folder}.{module}")
    found: Account = engine.account(job, network, device)
    return found
