"""One layout of a training job: every choice that a plan makes."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record


class Policy(Record, frozen=True):
    """What is recomputed in the backward pass."""

    policy: str = "none"
    modules: tuple[str, ...] = ()
    """Of selective recomputation in Megatron."""
    layers: int = 0
    """Layers of each chunk that are recomputed (Megatron's method `block`); 0: all of them."""

    @property
    def label(self) -> str:
        """`none`, `selective mlp`, `block 4`, `full`."""
        if self.layers:
            return f"block {self.layers}"
        return " ".join((self.policy, ",".join(self.modules))).strip()


NOTHING = Policy()


class Layout(Record, frozen=True, kw_only=True):
    """Sizes of the axes, and how a rank works. gpus = tp·cp·pp·dp."""

    gpus: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    micro_batch: int = 1
    grad_accum: int = 1
    virtual: int = 1
    """Chunks of layers on one pipeline rank."""
    recompute: Policy = NOTHING
    sharding: str = "none"
    offload: str = "none"
    """What waits in host memory: none, optimizer, or params (weights and optimizer)."""
    precision: str = ""
    """Empty: the framework's default, or what the job says."""
    grads: str = ""
    """Type of the gradients; empty: as the framework has it, or as the job says."""
    moments: str = ""
    """Type of the optimizer's moments; empty likewise."""

    @property
    def mesh(self) -> Mesh:
        """The sizes of the axes: what stays when only the rest is changed."""
        return (self.gpus, self.tp, self.cp, self.pp, self.ep, self.etp, self.dp)

    @property
    def group(self) -> Group:
        """Mesh, sharding, what waits on the host and what products run in: of layouts that share them one is shown."""
        return (self.mesh, self.sharding, self.offload, self.precision)

    @property
    def frame(self) -> Frame:
        """Mesh and precision: within them more recomputation, smaller micro-batches and narrower states never need more."""
        return (self.mesh, self.precision)

    @property
    def words(self) -> str:
        """`tp 8 pp 4 dp 2`: the axes that are used."""
        axes = (("tp", self.tp), ("cp", self.cp), ("pp", self.pp), ("ep", self.ep), ("etp", self.etp if self.ep > 1 else 1), ("dp", self.dp))
        used = [f"{name} {size}" for name, size in axes if size > 1]
        return " ".join(used) or "1 GPU"


Mesh = tuple[int, ...]
"""(gpus, tp, cp, pp, ep, etp, dp)."""
Frame = tuple[Mesh, str]
Group = tuple[Mesh, str, str, str]

AXES = ("tp", "cp", "pp", "ep", "etp", "dp", "micro_batch", "grad_accum", "virtual", "recompute", "sharding", "offload", "precision", "grads", "moments")
"""What a plan chooses, by the names that `--fix` knows."""
SPOKEN = {"mb": "micro_batch", "v": "virtual", "vpp": "virtual", "accum": "grad_accum", "ga": "grad_accum"}
"""Short names of them."""


def chosen(layout: Layout) -> dict[str, Any]:
    """The choices by name, recomputation as its label; empty ones are left out."""
    found = {name: getattr(layout, name) for name in AXES}
    found["recompute"] = layout.recompute.label
    return {name: value for name, value in found.items() if value != ""}
