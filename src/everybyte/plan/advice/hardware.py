"""Other hardware for a job: more GPUs, or a larger one."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu, all_gpus, find_gpu
from everybyte.plan.advice.facts import Facts
from everybyte.plan.advice.move import Move, Settings

DOUBLINGS = 5
MOST_CARDS = 3
"""Larger GPUs that are tried."""
OLDEST = 2020


def _more_gpus(f: Facts) -> Iterator[Settings]:
    count, engine = f.gpus, f.word("serve.engine")
    # said again where one flag may have said both: --gpu 2x4090
    name = {"hardware.gpu": f.get("hardware.gpu")} if count > 1 and isinstance(f.get("hardware.gpu"), str) else {}
    if engine in ("transformers", "mlx"):
        return
    for k in range(1, DOUBLINGS + 1):
        gpus = count * 2**k
        if f.answer.job.get("serve") is None or engine in ("llama.cpp", "ollama", "exllama"):
            yield {**name, "hardware.gpus": gpus}
        else:
            stages = int(f.get("serve.mesh.pp", 1))
            yield {**name, "hardware.gpus": gpus, "serve.mesh.tp": int(f.get("serve.mesh.tp", 1)) * 2**k, **({"serve.mesh.pp": stages} if stages > 1 else {})}


def _larger_gpu(f: Facts) -> Iterator[Settings]:
    name = f.get("hardware.gpu")
    if not isinstance(name, str):
        return
    try:
        own = find_gpu(name)
    except BadInput:
        return
    larger = sorted((gpu for gpu in all_gpus() if _is_step_up(gpu, own, f.capacity)), key=lambda gpu: (gpu.capacity, gpu.segment != own.segment))
    sizes: dict[int, Gpu] = {}
    for gpu in larger:
        sizes.setdefault(round(gpu.memory_gb_marketing), gpu)
    enough = [gpu for gpu in sizes.values() if gpu.capacity >= f.needs] or list(sizes.values())[-1:]
    count = {"hardware.gpus": f.gpus} if f.gpus > 1 else {}
    yield from ({"hardware.gpu": gpu.name, **count} for gpu in (enough if f.needs > f.capacity else list(sizes.values()))[:MOST_CARDS])


def _is_step_up(gpu: Gpu, own: Gpu, capacity: int) -> bool:
    return gpu.capacity > capacity and gpu.vendor == own.vendor and gpu.launch_year >= OLDEST and gpu.confidence != "low" and gpu.segment != "unified"


HARDWARE: tuple[Move, ...] = (
    Move("more GPUs", 8, "more GPUs", _more_gpus, restarts=True, excludes=("larger GPU",)),
    Move("larger GPU", 9, "a larger GPU", _larger_gpu, restarts=True, excludes=("more GPUs",)),
)
