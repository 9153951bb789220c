"""Steps of a tiny model under torch's parallel wrappers, as a user writes them. As a script it is one of two real ranks and prints
the peaks of its first step and of later ones: `python parallel.py RANK FILE KIND...`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, TOKENS, WORDS = 128, 3, 128, 2048
PARAMETERS = 2 * WORDS * WIDTH + WORDS + LAYERS * (8 * WIDTH * WIDTH + 7 * WIDTH)
"""Of the whole network."""
FLUSHES = 8
"""Each of gloo's threads keeps the last tensors that it has worked on until it works on others."""
STEPS = 3
"""DistributedDataParallel makes its buckets anew in the second step, or, of a static graph, in the third."""
ROUNDS = 3
"""How often they are measured: gloo's threads let go of a tensor a moment after it is done, now and then too late, so that the least of several counts."""
ACCUMULATED = "ddp-accumulated"
Step = Callable[[], None]


class Block(nn.Module):
    """A layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Recomputed(Block):
    """A layer that backward runs again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Model(nn.Module):
    """A network, or one stage of it."""

    def __init__(self, block: type[nn.Module] = Block, *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH) if first else nn.Identity()
        self.layers = nn.ModuleList(block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS) if last else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Unused(Model):
    """A network of which one layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = Block()


def build(kind: str, device: str) -> Step:
    """One step of training under the wrapper that `kind` names."""
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if kind.removesuffix(ASKING) in SCHEDULES:
        return pipeline(kind, device)
    model = WRAPPED[kind](device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, WORDS, (2, TOKENS), device=device)

    def step() -> None:
        for last in (False, True) if kind == ACCUMULATED else (True,):
            with contextlib.nullcontext() if last else model.no_sync():
                functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(FLUSHES):
            dist.all_reduce(torch.zeros(1, device=device))

    return step


def replicated(device: str, network: type[nn.Module] = Model, **settings: Any) -> nn.parallel.DistributedDataParallel:
    return nn.parallel.DistributedDataParallel(network().to(device), **settings)


def compressed(device: str, *, built_in: bool = False) -> nn.Module:
    model = replicated(device)
    if built_in:
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    else:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def sharded(device: str, block: type[nn.Module] = Block, **settings: Any) -> nn.Module:
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = Model(block).to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def flat(device: str, **settings: Any) -> nn.Module:
    return FullyShardedDataParallel(Model().to(device), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device(device), **settings)


def tensor_parallel(device: str, shards: bool = False) -> nn.Module:
    size = dist.get_world_size()
    mesh = init_device_mesh(device, (size // 2, 2), mesh_dim_names=("dp_shard", "tp"))
    model = Model().to(device)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if shards:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["dp_shard"])
        fully_shard(model, mesh=mesh["dp_shard"])
    return model


MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WRAPPED: dict[str, Callable[[str], nn.Module]] = {
    "ddp": replicated,
    "ddp-views": lambda device: replicated(device, gradient_as_bucket_view=True),
    "ddp-static": lambda device: replicated(device, static_graph=True, bucket_cap_mb=0.5),
    "ddp-unused": lambda device: replicated(device, Unused, find_unused_parameters=True),
    "ddp-fp16": compressed,
    "ddp-built-in": lambda device: compressed(device, built_in=True),
    ACCUMULATED: replicated,
    "fsdp2": sharded,
    "fsdp2-mixed": lambda device: sharded(device, mp_policy=MIXED),
    "fsdp2-kept": lambda device: sharded(device, reshard_after_forward=False),
    "fsdp2-recomputed": lambda device: sharded(device, Recomputed),
    "fsdp1": flat,
    "fsdp1-named": lambda device: flat(device, use_orig_params=True),
    "tp": tensor_parallel,
    "tp-fsdp2": lambda device: tensor_parallel(device, shards=True),
}
SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}
ASKING = "-asking"
"""Ends the names of pipelines whose stages find out themselves which shapes they send."""

ASKED = tuple(kind + ASKING for kind in SCHEDULES)


def pipeline(kind: str, device: str) -> Step:
    """Stages of a pipeline with eight micro-batches; interleaved ones are two on each rank."""
    schedule = SCHEDULES[kind.removesuffix(ASKING)]
    rank, size = dist.get_rank(), dist.get_world_size()
    twice = not issubclass(schedule, PipelineScheduleSingle)
    final = (2 * size if twice else size) - 1
    second = final - rank if schedule is ScheduleZBVZeroBubble else rank + size
    numbers = [rank, second] if twice else [rank]
    stages = [_stage(number, final, device, asks=kind.endswith(ASKING)) for number in numbers]
    loss = lambda out, target: functional.cross_entropy(out.flatten(0, 1), target.flatten())  # noqa: E731
    made = schedule(stages if twice else stages[0], n_microbatches=8, loss_fn=loss)
    optimizer = torch.optim.AdamW([parameter for stage in stages for parameter in stage.submod.parameters()], foreach=False)
    tokens = torch.randint(0, WORDS, (8, TOKENS), device=device)

    def step() -> None:
        given = (tokens,) if rank == 0 else ()
        made.step(*given, **({"target": tokens} if final in numbers else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


def _stage(number: int, final: int, device: str, *, asks: bool) -> PipelineStage:
    model = Model(first=number == 0, last=number == final).to(device)
    given = torch.empty(1, TOKENS, dtype=torch.long, device=device) if number == 0 else _hidden(WIDTH, device)
    shapes = {} if asks else {"input_args": given, "output_args": _hidden(WORDS if number == final else WIDTH, device)}
    return PipelineStage(model, number, final + 1, torch.device(device), **shapes)


def _hidden(width: int, device: str) -> torch.Tensor:
    return torch.empty(1, TOKENS, width, device=device, requires_grad=True)


def _target(kind: str) -> Callable[[], Step]:
    return lambda: build(kind, "cuda")


globals().update({kind.replace("-", "_"): _target(kind) for kind in (*WRAPPED, *SCHEDULES, *ASKED)})

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.trace.peaks import measured

    rank, file, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2)
    found = {}
    for kind in kinds:
        first, *later = zip(*(measured(build(kind, "cpu"), STEPS) for _ in range(ROUNDS)), strict=True)
        found[kind] = (min(first), min(min(step) for step in later))
    print(json.dumps(found))
    dist.destroy_process_group()
