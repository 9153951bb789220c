"""What lives from step to step: weights, buffers, gradients, optimizer states."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from everybyte.basics.dtypes import DType
from everybyte.basics.units import MiB, round_up
from everybyte.layers.network import Network
from everybyte.layers.setup import Setup
from everybyte.layers.size import elements
from everybyte.layers.tape import Parameter
from everybyte.ledger.build import Line, Text
from everybyte.models.count import Declared, declared
from everybyte.rules.optimizer import OptimizerPlan, Shape
from everybyte.rules.quantization import FORMATS, packed_tensors

ALLOCATOR = "pytorch c10/cuda/CUDACachingAllocator.cpp: blocks are multiples of 512 B; a rest of up to 1 MiB of a 2 MiB-rounded segment stays in its block"
DECLARED = "shapes that the layers declare; equal to the parameters of the reference classes (tests/null/test_parameters.py)"


def block_bytes(nbytes: int) -> int:
    """Bytes that the caching allocator counts for a tensor that gets memory of its own: multiples of 512; from 10 MiB on segments are
    multiples of 2 MiB and a rest of up to 1 MiB is not split off."""
    size = round_up(nbytes, 512)
    if size < 10 * MiB:
        return size
    segment = round_up(size, 2 * MiB)
    return segment if segment - size <= MiB else size


class Group(NamedTuple):
    """Equal parameters of one module in all copies of a piece of the network."""

    place: str
    """`layers.0-31/mlp`."""
    copies: int
    members: tuple[Parameter, ...]


@lru_cache(maxsize=256)
def groups(network: Network, setup: Setup) -> tuple[Group, ...]:
    """The network's parameters by piece and module, adapters apart."""
    found: dict[tuple[str, int], list[Parameter]] = {}
    for row in declared(network, setup):
        found.setdefault((f"{row.part}/{_module(row)}", row.copies), []).append(row.parameter)
    return tuple(Group(place, copies, tuple(members)) for (place, copies), members in found.items())


def _module(row: Declared) -> str:
    parts = row.parameter.name.split(".")
    if row.parameter.adapter:
        return "adapters"
    return parts[0] if len(parts) > 1 else row.part


@lru_cache(maxsize=65536)
def tensor_bytes(parameter: Parameter, setup: Setup) -> int:
    """Bytes of one of the `count` tensors of a parameter, as the allocator counts them."""
    count, _ = elements(parameter.dims)
    if parameter.packed and setup.packed is not None:
        rows, cols = (parameter.dims[0].size, parameter.dims[-1].size)
        copies = count // (rows * cols)
        return copies * sum(block_bytes(n) for n in packed_tensors(setup.packed, rows, cols))
    return block_bytes(parameter.dtype.nbytes(count))


def shape(parameter: Parameter) -> Shape:
    """Sizes of a parameter's dimensions."""
    return tuple(d.size for d in parameter.dims)


@lru_cache(maxsize=256)
def weight_lines(network: Network, setup: Setup) -> tuple[Line, ...]:
    """Weights and buffers, one line a module."""
    return tuple(_weight_lines(network, setup))


def _weight_lines(network: Network, setup: Setup) -> Iterator[Line]:
    packed = f"; packed: {FORMATS[setup.packed.format][1]}" if setup.packed is not None else ""
    for group in groups(network, setup):
        size = group.copies * sum(tensor_bytes(p, setup) * p.count for p in group.members)
        name = "adapters" if group.members[0].adapter else "weights"
        place = group.place.removesuffix("/adapters")
        source = DECLARED + (packed if any(p.packed for p in group.members) else "")
        yield Line(f"{name}/{place}", "parameter", size, lambda g=group: weights_text(g, setup), source)  # type: ignore[misc]


def weights_text(group: Group, setup: Setup) -> Text:
    """`32·2·(A·h + 2·K·h)`: copies, bytes a number, numbers."""
    by_type: dict[str, dict[str, int]] = {}
    symbols: dict[str, int] = {}
    for p in group.members:
        kind = setup.packed.format if p.packed and setup.packed else str(p.dtype.block_bytes)
        terms = by_type.setdefault(kind, {})
        key = "·".join(sorted(d.letter for d in p.dims)) or "1"
        terms[key] = terms.get(key, 0) + p.count
        symbols.update({d.letter: d.size for d in p.dims})
    parts = []
    for kind, terms in by_type.items():
        body = " + ".join(key if count == 1 else f"{count}·{key}" for key, count in terms.items())
        whole = f"({body})" if len(terms) > 1 else body
        parts.append(f"{kind}·{whole}" if kind.isdigit() else f"{kind}_bytes({body})")
    text = " + ".join(parts)
    return Text(f"{group.copies}·({text})" if len(parts) > 1 else f"{group.copies}·{text}", symbols)


class Trained(NamedTuple):
    """What is trained: bytes of gradients, states, master copies and the largest tensor, summed."""

    numel: int
    weight_bytes: int
    gradient_bytes: int
    largest_bytes: int
    largest_gradient: int


@lru_cache(maxsize=256)
def trained(network: Network, setup: Setup, gradient: DType | None, stepped: DType | None) -> Trained:
    """Totals over the trained parameters. `stepped`: type of the tensors that the optimizer steps (a master copy), None for the weights' own."""
    numel = weights = gradients = largest = largest_gradient = 0
    for row in declared(network, setup):
        p = row.parameter
        if not p.trainable or p.buffer:
            continue
        one = elements(p.dims)[0]
        kind = stepped or p.dtype
        copies = row.copies * p.count
        numel += one * copies
        weights += round_up(kind.nbytes(one), 512) * copies
        gradients += round_up((gradient or p.dtype).nbytes(one), 512) * copies
        largest = max(largest, kind.nbytes(one))
        largest_gradient = max(largest_gradient, round_up((gradient or p.dtype).nbytes(one), 512))
    return Trained(numel, weights, gradients, largest, largest_gradient)


@lru_cache(maxsize=256)
def state_lines(network: Network, setup: Setup, plan: OptimizerPlan) -> tuple[Line, ...]:
    """Optimizer states and master copies, one line a module."""
    return tuple(_state_lines(network, setup, plan))


def _state_lines(network: Network, setup: Setup, plan: OptimizerPlan) -> Iterator[Line]:
    rule = plan.rule
    for group in groups(network, setup):
        members = [p for p in group.members if p.trainable and not p.buffer]
        if not members:
            continue
        place = group.place.removesuffix("/adapters")
        number = sum(p.numel for p in members)
        size = group.copies * sum(round_up(_state(plan, p), 512) * p.count for p in members)
        text = Text(f"{group.copies}·({rule.formula})", {"P": number, "e": (plan.state or plan.master or members[0].dtype).block_bytes})
        yield Line(f"optimizer/{place}", "optimizer_state", size, lambda t=text: t, str(rule.citation))  # type: ignore[misc]
        if plan.master is not None:
            copy = group.copies * sum(round_up(plan.master.nbytes(p.numel // p.count), 512) * p.count for p in members)
            master = Text(f"{group.copies}·{plan.master.block_bytes}·P", {"P": number})
            yield Line(f"master/{place}", "optimizer_state", copy, lambda t=master: t, "a copy of the weights in the master type")  # type: ignore[misc]


@lru_cache(maxsize=65536)
def _state(plan: OptimizerPlan, parameter: Parameter) -> int:
    return plan.state_bytes(shape(parameter), parameter.dtype)


@lru_cache(maxsize=256)
def gradient_lines(network: Network, setup: Setup, gradient: DType | None) -> tuple[Line, ...]:
    """Gradients of all trained parameters, one line a module."""
    return tuple(_gradient_lines(network, setup, gradient))


def _gradient_lines(network: Network, setup: Setup, gradient: DType | None) -> Iterator[Line]:
    for group in groups(network, setup):
        members = [p for p in group.members if p.trainable and not p.buffer]
        if not members:
            continue
        size = group.copies * sum(round_up((gradient or p.dtype).nbytes(p.numel // p.count), 512) * p.count for p in members)
        text = Text(f"{group.copies}·e·P", {"P": sum(p.numel for p in members), "e": (gradient or members[0].dtype).block_bytes})
        yield Line(f"gradients/{group.place.removesuffix('/adapters')}", "gradient", size, lambda t=text: t, "torch autograd: a gradient has the type of its parameter")  # type: ignore[misc]
