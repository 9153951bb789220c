"""What DeepSpeed and torchao keep in host memory, for one rank: the tensors that offloading puts there while training runs.

Tensors are pinned by torch's CachingHostAllocator, which rounds every request up to a power of two and never gives a block back
(aten/src/ATen/core/CachingHostAllocator.h). The process itself, its libraries and the loading of a checkpoint are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Category
from everybyte.rules.sharding.zero.partitions import pieces, trained_numels
from everybyte.rules.sharding.zero.stages import Zero
from everybyte.rules.sharding.zero.zero3 import CUT, ZeroCut
from everybyte.rules.sharding.zero.zero12 import FLAT, ZeroFlat
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.recipe import Recipe

SWAP = "deepspeed runtime/swap_tensor: page-locked buffers between memory and disk, exactly as large as asked for"

TORCHAO = "torchao optim/cpu_offload.py CPUOffloadOptimizer"


def host_lines(layout: Layout, network: Network, recipe: Recipe) -> tuple[Line, ...]:
    """Rows of host memory of one rank. `network` as the training has it, adapters and all."""
    if not isinstance(layout, Zero):
        return ()
    found: list[Line] = []
    if isinstance(layout, ZeroFlat) and layout.settings.optimizer != "none":
        found += _flat(layout, network, recipe)
    elif isinstance(layout, ZeroCut):
        found += _cut_states(layout, network, recipe) if layout.settings.optimizer != "none" else ()
        found += _cut_params(layout, network, recipe) if layout.settings.params != "none" else ()
    return tuple(line for line in found if line.bytes)


def states_on_host(network: Network, recipe: Recipe) -> tuple[Recipe, tuple[Line, ...]]:
    """torchao's CPUOffloadOptimizer: a pinned copy of each trained weight and of its gradient on the host, where the optimizer runs. The device sees a
    step without states. (recipe of the device, rows of host memory)"""
    width = recipe.setup.weights.block_bytes
    sizes = [width * n for n in trained_numels(network, recipe.setup)]
    plan = recipe.optimizer
    states = [size for n in trained_numels(network, recipe.setup) for size in plan.state_tensors((n,), recipe.setup.weights)]
    rows = (
        tensors_on_host("host/weights", "parameter", sizes, f"{TORCHAO}: p_host", pinned=True),
        tensors_on_host("host/gradients", "gradient", sizes, f"{TORCHAO}: p_host.grad", pinned=True),
        tensors_on_host("host/optimizer", "optimizer_state", states, f"{plan.rule.citation}; {TORCHAO}"),
    )
    return replace(recipe, optimizer=replace(plan, name="sgd", impl="fused", state=None, master=None)), rows


def _flat(layout: ZeroFlat, network: Network, recipe: Recipe) -> Iterator[Line]:
    settings, group = layout.settings, layout.group(network, recipe)
    master, width, n, pinned = settings.master.block_bytes, recipe.setup.weights.block_bytes, group.partition, settings.pinned
    yield tensors_on_host("host/master", "optimizer_state", [master * n], f"{FLAT}: single_partition_of_fp32_groups", pinned=pinned)
    yield tensors_on_host("host/gradients", "gradient", [master * n], f"{FLAT}: gradient of the partition in the master's type", pinned=pinned)
    yield _states(recipe, layout, [n])
    yield tensors_on_host("host/weights", "parameter", [width * n], f"{FLAT}: param_buffer_of_bit16_for_cpu_offload_groups", pinned=pinned)
    yield tensors_on_host("host/largest gradient", "gradient", [width * group.largest], f"{FLAT}: temp_grad_buffer_for_cpu_offload", pinned=pinned)
    if settings.accumulates:
        source = f"{FLAT} async_accumulate_grad_in_cpu_via_gpu: whole gradients of the parameters in the partition"
        yield tensors_on_host("host/accumulated gradients", "gradient", [width * numel for numel in group.own], source, pinned=pinned)


def _cut_states(layout: ZeroCut, network: Network, recipe: Recipe) -> Iterator[Line]:
    """The master partition and the states are ordinary memory, the gradients pinned; on NVMe, the swap buffers of one sub-group at a time."""
    settings, share = layout.settings, layout.share(network, recipe)
    master, pinned = settings.master.block_bytes, settings.pinned
    away = share.sub_groups[len(layout.stepped(network, recipe)) :]
    if settings.optimizer == "cpu":
        yield tensors_on_host("host/master", "optimizer_state", [master * n for n in away], f"{CUT}: fp32_partitioned_groups_flat")
        yield tensors_on_host("host/gradients", "gradient", [master * n for n in away], f"{CUT}: gradients in the master's type, by sub-group", pinned=pinned)
        yield _states(recipe, layout, away)
    else:
        buffers, largest = settings.optimizer_buffers, max(away, default=0)
        text = plain("buffers·e·S", buffers=buffers, e=master, S=largest)
        yield Line("host/optimizer swap buffers", "optimizer_state", buffers * master * largest, text, f"{SWAP}; of the largest sub-group", "formula")
    kind = settings.accumulation or recipe.setup.weights
    yield tensors_on_host("host/gradients flat", "gradient", [kind.block_bytes * share.numel], f"{CUT}: grad_partitions_flat_buffer", pinned=pinned)


def _cut_params(layout: ZeroCut, network: Network, recipe: Recipe) -> Iterator[Line]:
    """Trained parameters move from memory of their own into one flat tensor, which is always pinned; pinned blocks that they leave stay cached."""
    settings, share, width = layout.settings, layout.share(network, recipe), recipe.setup.weights.block_bytes
    own = {True: [0], False: [0]}
    for piece in pieces(network, recipe.setup):
        part = piece.dtype.nbytes(ceil_div(piece.numel, settings.degree))
        own[piece.trained] += [part] * piece.copies
    if settings.params == "cpu":
        yield tensors_on_host("host/weights", "parameter", [width * share.numel], f"{CUT}: param_groups_fp16_flat_cpu_memory", pinned=True)
        yield tensors_on_host("host/frozen weights", "parameter", own[False], f"{CUT}: a tensor for each parameter", pinned=settings.pinned)
        if settings.pinned:
            source = f"{CUT}: pinned blocks in which the trained parameters were before they moved into the flat tensor; the allocator keeps them"
            yield tensors_on_host("host/cached blocks", "unknown", own[True], source, pinned=True)
        return
    held = min(share.numel, settings.max_in_cpu)
    yield tensors_on_host("host/weights", "parameter", [width * held], f"{CUT}: at most max_in_cpu numbers stay in memory", pinned=True)
    count, size = settings.param_buffers, settings.param_buffer
    text = plain("buffers·e·B", buffers=count, e=width, B=size)
    yield Line("host/parameter swap buffers", "parameter", count * width * size, text, SWAP, "formula")
    if held < share.numel:
        yield tensors_on_host("host/sub-group buffer", "parameter", [width * share.sub_group], f"{SWAP}: reserve_partitioned_swap_space")


def _states(recipe: Recipe, layout: Zero, numels: Iterable[int]) -> Line:
    """DeepSpeedCPUAdam makes its states in ordinary memory."""
    plan, master = recipe.optimizer, layout.settings.master
    sizes = [size for n in numels for size in plan.state_tensors((n,), master, "partition")]
    return tensors_on_host("host/optimizer", "optimizer_state", sizes, f"{plan.rule.citation}; deepspeed ops/adam/cpu_adam.py")


def tensors_on_host(name: str, category: Category, sizes: Iterable[int], source: str, *, pinned: bool = False) -> Line:
    """Tensors in host memory: pinned ones are as large as the next power of two."""
    exact = [size for size in sizes if size]
    total = sum(1 << (size - 1).bit_length() for size in exact) if pinned else sum(exact)
    rounding = total - sum(exact)
    text = plain("E + rounding" if rounding else "E", E=sum(exact), rounding=rounding)
    return Line(name, category, total, text, f"{source}; {'pinned' if pinned else 'pageable'}", "formula")
