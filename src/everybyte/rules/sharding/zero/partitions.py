"""How ZeRO cuts the parameters of a network: flat groups and their partitions, parameters one by one, sub-groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div, round_up
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim, elements
from everybyte.layers.recording.tape import Parameter
from everybyte.models.count import declared
from everybyte.rules.optimizers.plan import OptimizerPlan
from everybyte.rules.step.persistent_state import Group, parameter_tensors, shape

ALIGNMENT = 2
"""`nccl_start_alignment_factor`: partitions begin at multiples of 4 bytes."""


class Piece(NamedTuple):
    """One parameter as ZeRO-3 sees it."""

    place: str
    """`layers.0-31/self_attn`."""
    module: str
    """The module that owns it: `self_attn.q_proj`."""
    numel: int
    nbytes: int
    """Of the whole."""
    trained: bool
    copies: int
    """In all copies of the piece of the network."""
    dtype: DType
    rest: int = 0
    """Bytes of a packed weight that are not parameters (scales): every rank has them."""


def is_parameter(p: Parameter) -> bool:
    """Whether ZeRO knows it: buffers are left alone."""
    return not p.buffer


@lru_cache(maxsize=256)
def pieces(network: Network, setup: Setup) -> tuple[Piece, ...]:
    """All parameters in the order of the modules, those of equal blocks once. A packed weight has as many numbers as its storage of the compute
    type has (bnb_4bit_quant_storage), or bytes where it is stored in bytes."""
    found = []
    for row in declared(network, setup):
        p = row.parameter
        if not is_parameter(p):
            continue
        module = p.name.rpartition(".")[0]
        place = f"{row.part}/{'adapters' if p.adapter else (module.split('.')[0] or row.part)}"
        copies = row.copies * p.count
        if p.packed and setup.packed is not None:
            first, *rest = parameter_tensors(p, setup)
            found.append(Piece(place, module, first // setup.weights.block_bytes, first, False, copies, setup.weights, sum(rest)))
        else:
            numel = elements(p.dims)[0]
            found.append(Piece(place, module, numel, p.dtype.nbytes(numel), p.trainable, copies, p.dtype))
    return tuple(found)


@lru_cache(maxsize=256)
def trained_numels(network: Network, setup: Setup) -> tuple[int, ...]:
    """Numbers of each trained tensor, layer by layer."""
    return tuple(_in_order(network, setup))


def _in_order(network: Network, setup: Setup) -> Iterator[int]:
    run: list[int] = []
    part, copies = "", 0
    for row in declared(network, setup):
        if row.part != part:
            yield from run * copies
            run, part, copies = [], row.part, row.copies
        if row.parameter.trainable and is_parameter(row.parameter):
            run += [elements(row.parameter.dims)[0]] * row.parameter.count
    yield from run * copies


class FlatGroup(NamedTuple):
    """The trained parameters of stages 1 and 2 in one flat tensor."""

    numel: int
    padding: int
    """To a multiple of 2·D."""
    partition: int
    """Numbers of this rank."""
    own: tuple[int, ...]
    """Numbers of each parameter that lies in this rank's partition, wholly or in part, on the rank where these are most."""
    largest: int
    """Numbers of the largest parameter."""
    tensors: int

    @property
    def touched(self) -> int:
        """Numbers of all parameters that lie in this rank's partition, wholly or in part."""
        return sum(self.own)


@lru_cache(maxsize=4096)
def flat_group(network: Network, setup: Setup, degree: int, round_robin: bool = False) -> FlatGroup:
    """stage_1_and_2.py flatten_dense_tensors_aligned, get_data_parallel_partitions, get_partition_info."""
    numels = trained_numels(network, setup)
    if round_robin:
        numels = tuple(n for rank in range(degree) for n in numels[rank::degree])
    total = sum(numels)
    padded = round_up(total, ALIGNMENT * degree)
    partition = padded // degree
    return FlatGroup(total, padded - total, partition, _touched(numels, partition), max(numels, default=0), len(numels))


def _touched(numels: tuple[int, ...], partition: int) -> tuple[int, ...]:
    """The parameters that a partition of this size reaches into, where they have most numbers together."""
    ends = list(accumulate(numels))
    best, found = 0, (0, 0)
    start = first = last = 0
    while partition and start < (ends[-1] if ends else 0):
        while ends[first] <= start:
            first += 1
        while last < len(ends) and ends[last] < start + partition:
            last += 1
        until = min(last, len(ends) - 1)
        size = ends[until] - ends[first] + numels[first]
        if size > best:
            best, found = size, (first, until + 1)
        start += partition
    return numels[found[0] : found[1]]


class Partitions(NamedTuple):
    """What one rank holds of the trained parameters under stage 3, each cut by itself into ceil(n/D) numbers."""

    numel: int
    sub_group: int
    """Numbers of the largest sub-group."""
    sub_groups: tuple[int, ...]
    largest: int
    """The largest partition of one parameter."""


@lru_cache(maxsize=4096)
def partitions(network: Network, setup: Setup, degree: int, sub_group: int) -> Partitions:
    """partition_parameters.py _partition_param, stage3.py _create_fp16_sub_groups."""
    shares = [ceil_div(n, degree) for n in trained_numels(network, setup)]
    total = sum(shares)
    groups: list[int] = []
    if sub_group >= total:
        groups = [total]
    else:
        held = 0
        for index, share in enumerate(shares):
            held += share
            if held >= sub_group or index == len(shares) - 1:
                groups.append(held)
                held = 0
    return Partitions(total, max(groups, default=0), tuple(groups), max(shares, default=0))


class Matrices(NamedTuple):
    """What Muon steps of the trained parameters; DeepSpeed puts it into a parameter group of its own, with a flat partition of its own."""

    numel: int
    total: int
    """Numbers of all trained parameters."""
    largest: tuple[int, ...]
    """Shape of the largest of them."""

    def of(self, numel: int) -> int:
        """Numbers of them in a partition of `numel`."""
        return ceil_div(self.numel * numel, self.total) if self.total else 0


@lru_cache(maxsize=256)
def matrices(network: Network, setup: Setup, plan: OptimizerPlan) -> Matrices:
    """deepspeed/__init__.py set_optimizer_flags: of two dimensions and more, and neither embedding nor head."""
    numel = 0
    largest: tuple[int, ...] = (0,)
    for row in declared(network, setup):
        p = row.parameter
        if p.trainable and is_parameter(p) and plan.orthogonalises(shape(p), p.name):
            numel += elements(p.dims)[0] * p.count * row.copies
            largest = max(largest, shape(p), key=prod)
    return Matrices(numel, sum(trained_numels(network, setup)), largest)


class Partition(Record, frozen=True):
    """A share of the parameters as the optimizer sees it: one flat tensor of `numel` numbers, or two where `stepped` of them are Muon's."""

    numel: int
    dtype: DType
    stepped: int = 0

    def rows(self) -> tuple[Parameter, ...]:
        """The flat tensors; numbers of matrices have a second dimension, so that a rule knows them."""
        matrix = Parameter("matrices", (Dim("M", self.stepped), Dim("1", 1)), self.dtype, trainable=True)
        rest = Parameter("partition", (Dim("N", self.numel - self.stepped),), self.dtype, trainable=True)
        return (*((matrix,) if self.stepped else ()), *((rest,) if self.numel > self.stepped else ()))

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The flat tensors in place of all."""
        return tuple(Group(row.name, 1, (row,), ((row.dims[0].letter, row.dims[0].size),)) for row in self.rows())
