"""What lives from step to step: weights, buffers, gradients, optimizer states."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple, Protocol

from everybyte.basics.dtypes import DType
from everybyte.basics.units import MiB, round_up
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import elements
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, Text
from everybyte.ledger.entry import Category
from everybyte.models.count import Declared, declared
from everybyte.rules.optimizers.plan import OptimizerPlan, Tensor
from everybyte.rules.optimizers.states import Shape
from everybyte.rules.quantization.packed import FORMATS, packed_tensors
from everybyte.rules.step.persistent_state_text import gradients_text, states_text, weights_text

ALLOCATOR = "pytorch c10/cuda/CUDACachingAllocator.cpp: blocks are multiples of 512 B; a rest of up to 1 MiB of a 2 MiB-rounded segment stays in its block"
GRADIENT = "torch autograd: a gradient has the type of its parameter"
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
    letters: tuple[tuple[str, int], ...]
    """Sizes of the piece by their letters."""

    @property
    def part(self) -> str:
        """The piece of the network: `layers.0-31`."""
        return self.place.partition("/")[0]

    @property
    def trained(self) -> tuple[Parameter, ...]:
        """The members that get a gradient."""
        return tuple(p for p in self.members if p.trainable and not p.buffer)


class Share(Protocol):
    """What of the parameters one rank holds (`step.layout` has them)."""

    def __hash__(self) -> int:
        """Equal shares give the same rows, which are worked out once."""
        ...

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The groups as they lie on this rank."""
        ...


@lru_cache(maxsize=256)
def groups(network: Network, setup: Setup, share: Share) -> tuple[Group, ...]:
    """The network's parameters by piece and module, adapters apart, as they lie on one rank."""
    found: dict[tuple[str, int], list[Declared]] = {}
    for row in declared(network, setup):
        found.setdefault((f"{row.part}/{module_of(row.parameter, row.part)}", row.copies), []).append(row)
    return share.local(tuple(Group(place, copies, tuple(row.parameter for row in rows), rows[0].letters) for (place, copies), rows in found.items()), setup)


def module_of(p: Parameter, part: str) -> str:
    """The module of a parameter by its name; the piece of the network itself where it stands in none."""
    parts = p.name.split(".")
    if p.adapter:
        return "adapters"
    return parts[0] if len(parts) > 1 else part


def tensor_bytes(parameter: Parameter, setup: Setup) -> int:
    """Bytes of one of the `count` tensors of a parameter, as the allocator counts them."""
    return sum(map(block_bytes, parameter_tensors(parameter, setup)))


def _stored_bytes(parameter: Parameter, setup: Setup) -> int:
    """The same without rounding."""
    return sum(parameter_tensors(parameter, setup))


@lru_cache(maxsize=65536)
def parameter_tensors(parameter: Parameter, setup: Setup) -> list[int]:
    """Bytes of the tensors that stand for one of the `count` tensors of a parameter: several if it is packed."""
    if parameter.packed and setup.packed is not None:
        *joined, rows, cols = (d.size for d in parameter.dims)
        return [prod(joined) * size for size in packed_tensors(setup.packed, rows, cols)]
    return [parameter.dtype.nbytes(elements(parameter.dims)[0])]


def weight_bytes(group: Group, setup: Setup) -> int:
    """Bytes of one copy of a group."""
    return sum(tensor_bytes(p, setup) * p.count for p in group.members)


def shape(parameter: Parameter) -> Shape:
    """Sizes of a parameter's dimensions."""
    return tuple(d.size for d in parameter.dims)


@lru_cache(maxsize=256)
def weight_lines(network: Network, setup: Setup, share: Share) -> tuple[Line, ...]:
    """Weights and buffers, one line a module."""
    packed = f"; packed: {FORMATS[setup.packed.format].citation}" if setup.packed is not None else ""
    lines = []
    for group in groups(network, setup, share):
        size = group.copies * weight_bytes(group, setup)
        exact = group.copies * sum(_stored_bytes(p, setup) * p.count for p in group.members)
        name = "adapters" if group.members[0].adapter else "weights"
        source = DECLARED + (packed if any(p.packed for p in group.members) else "")
        text = partial(weights_text, group.members, setup.packed, group.copies, size - exact, group.letters)
        lines.append(_line(f"{name}/{group.place.removesuffix('/adapters')}", "parameter", size, text, source, size - exact))
    return tuple(lines)


def _line(name: str, category: Category, size: int, text: Callable[[], Text], source: str, rounding: int) -> Line:
    return Line(name, category, size, text, f"{source}; rounding: {ALLOCATOR}" if rounding else source)


class Trained(NamedTuple):
    """What is trained: bytes of gradients, states, master copies and the largest tensor, summed."""

    numel: int
    weight_bytes: int
    gradient_bytes: int
    largest_gradient: int
    order: tuple[Tensor, ...]
    """The tensors in the order of the step; a run of equal layers stands for itself twice."""


NOTHING_TRAINED = Trained(0, 0, 0, 0, ())


@lru_cache(maxsize=256)
def trained(network: Network, setup: Setup, gradient: DType | None, stepped: DType | None, share: Share) -> Trained:
    """Totals over the trained parameters. `stepped`: type of the tensors that the optimizer steps (a master copy), None for the weights' own."""
    numel = weights = gradients = largest_gradient = 0
    parts: dict[str, tuple[int, list[Tensor]]] = {}
    for group in groups(network, setup, share):
        for p in group.trained:
            one = elements(p.dims)[0]
            kind = stepped or p.dtype
            copies = group.copies * p.count
            numel += one * copies
            weights += round_up(kind.nbytes(one), 512) * copies
            gradients += round_up((gradient or p.dtype).nbytes(one), 512) * copies
            parts.setdefault(group.part, (group.copies, []))[1].extend([Tensor(shape(p), kind, p.name)] * min(p.count, 2))
            largest_gradient = max(largest_gradient, round_up((gradient or p.dtype).nbytes(one), 512))
    order = tuple(tensor for copies, tensors in parts.values() for tensor in tensors * min(copies, 2))
    return Trained(numel, weights, gradients, largest_gradient, order)


@lru_cache(maxsize=256)
def state_lines(network: Network, setup: Setup, plan: OptimizerPlan, share: Share) -> tuple[Line, ...]:
    """Optimizer states and master copies, one line a module."""
    lines = []
    for group in groups(network, setup, share):
        members = group.trained
        place = group.place.removesuffix("/adapters")
        size, rounding = _rounded(group, lambda p: plan.state_tensors(shape(p), p.dtype, p.name))
        if size:
            text = partial(states_text, members, plan, group.copies, rounding, group.letters)
            lines.append(_line(f"optimizer/{place}", "optimizer_state", size, text, str(plan.rule.citation), rounding))
        master = plan.master
        if master is not None and members:
            size, rounding = _rounded(group, _numbers_of(master))
            text = partial(gradients_text, members, master, group.copies, rounding, group.letters)
            lines.append(_line(f"master/{place}", "optimizer_state", size, text, "a copy of the weights in the master type", rounding))
    return tuple(lines)


@lru_cache(maxsize=256)
def gradient_lines(network: Network, setup: Setup, gradient: DType | None, share: Share) -> tuple[Line, ...]:
    """Gradients of all trained parameters, one line a module."""
    lines = []
    for group in groups(network, setup, share):
        size, rounding = _rounded(group, _numbers_of(gradient))
        if size:
            text = partial(gradients_text, group.trained, gradient, group.copies, rounding, group.letters)
            lines.append(_line(f"gradients/{group.place.removesuffix('/adapters')}", "gradient", size, text, GRADIENT, rounding))
    return tuple(lines)


def _numbers_of(kind: DType | None) -> Callable[[Parameter], tuple[int, ...]]:
    """Bytes of a tensor like a parameter in a type; None: its own."""
    return lambda p: ((kind or p.dtype).nbytes(elements(p.dims)[0]),)


def _rounded(group: Group, tensors: Callable[[Parameter], tuple[int, ...]]) -> tuple[int, int]:
    """(bytes, what of it is rounding) of the tensors that stand beside each trained one of a group, in multiples of 512."""
    sizes = [(size, p.count * group.copies) for p in group.trained for size in tensors(p)]
    exact = sum(size * count for size, count in sizes)
    whole = sum(round_up(size, 512) * count for size, count in sizes)
    return whole, whole - exact
