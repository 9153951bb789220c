"""Counting what a network declares: parameters layer by layer, tied weights once, buffers apart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from everybyte.layers.network import Network, declare, hidden_dims
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import TOKENS, Dims
from everybyte.layers.recording.tape import Parameter


class Part(NamedTuple):
    """A piece of a network in the order of its forward: `copies` equal layers under a label."""

    label: str
    copies: int
    layer: Any
    dims: Dims
    """Shape of the hidden states that it is given."""
    tower: str = ""
    path: str = ""
    """Of blocks, what stands before their number in the names of parameters (`model.layers`)."""


@lru_cache(maxsize=4096)
def parts(network: Network) -> tuple[Part, ...]:
    """All pieces of a network, towers first, in the order in which forward runs them."""
    return tuple(_parts(network))


def _parts(network: Network) -> Iterator[Part]:
    for tower in network.towers:
        dims = hidden_dims(tower.hidden)
        if tower.stem is not None:
            yield Part(f"{tower.name}.stem", 1, tower.stem, tower.stem_dims or (TOKENS,), tower.name)
        for run in tower.runs:
            yield Part(f"{tower.name}.{run.label}", run.count, run.layer, run.dims or dims, tower.name, run.prefix)
        if tower.tail is not None:
            yield Part(f"{tower.name}.tail", 1, tower.tail, dims, tower.name)
    dims = hidden_dims(network.hidden)
    if network.stem is not None:
        yield Part("embed", 1, network.stem, network.stem_dims or (TOKENS,))
    for run in network.runs:
        yield Part(run.label, run.count, run.layer, run.dims or dims, path=run.prefix)
    if network.tail is not None:
        yield Part(network.tail_label, 1, network.tail, dims)
    if network.head is not None:
        yield Part("head", 1, network.head, network.head_dims or dims)


DECLARE = Setup(grad=False, kernels=Kernels(loss="logits"))
"""A setup for reading what is declared, without training."""


class Declared(NamedTuple):
    """A parameter with the piece that declares it; `copies` equal ones stand in the network."""

    part: str
    copies: int
    parameter: Parameter
    letters: tuple[tuple[str, int], ...]
    """Sizes of the piece by their letters."""


@lru_cache(maxsize=256)
def declared(network: Network, setup: Setup = DECLARE) -> tuple[Declared, ...]:
    """All parameters and buffers of a network, tied ones left out."""
    rows = []
    for part in parts(network):
        found = declare(part.layer, setup.of_blocks(part.path), part.dims)
        rows += [Declared(part.label, part.copies, p, found.letters) for p in found.parameters if not p.tied]
    return tuple(rows)


@lru_cache(maxsize=64)
def tensors(network: Network, setup: Setup = DECLARE) -> tuple[Parameter, ...]:
    """One entry for each tensor of a network in the order of its modules: layer by layer, as they are loaded and stepped."""
    rows = declared(network, setup)
    found: list[Parameter] = []
    for _, part in groupby(rows, key=lambda row: row.part):
        members = list(part)
        for _ in range(members[0].copies):
            for row in members:
                found.extend([row.parameter] * row.parameter.count)
    return tuple(found)


@lru_cache(maxsize=256)
def parameter_count(network: Network) -> int:
    """Parameters of the network: tied weights once, no buffers."""
    return sum(d.copies * d.parameter.numel for d in declared(network) if not d.parameter.buffer)


def active_count(network: Network) -> int:
    """Parameters that one token uses: routed experts count top_k of E."""
    rows = (row for row in declared(network) if not row.parameter.buffer)
    return sum(row.copies * row.parameter.numel * row.parameter.share[0] // row.parameter.share[1] for row in rows)
