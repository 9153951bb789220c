"""Which parameters ZeRO-3 has gathered while each layer runs: DeepSpeed's coordinator, replayed module by module.

partitioned_param_coordinator.py: a module's parameters are gathered before it runs and freed behind it, unless they are persistent, are used again
within `stage3_max_reuse_distance` numbers, or a prefetch has passed over their next use. After each gather the next parameters are fetched, until
`stage3_prefetch_bucket_size` numbers are on their way. Several parameters that are gathered together arrive in one buffer, out of which each is
copied (partition_parameters.py AllGatherCoalescedHandle); the buffer stays until the last of them is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.replay import Recompute
from everybyte.layers.recording.setup import Setup
from everybyte.models.count import parts
from everybyte.rules.sharding.zero.partitions import pieces
from everybyte.rules.sharding.zero.settings import ZeroSettings
from everybyte.rules.step.recipe import RecomputePlan


class Gathering(Record, frozen=True):
    """The settings that the coordinator knows."""

    prefetch: int
    live: int
    reuse: int
    persistence: int
    model_persistence: int
    joined: bool
    """Parameters that are gathered together come in one buffer: not on one rank, where there is nothing to gather but what host memory holds."""


class Weight(NamedTuple):
    """A parameter that is gathered."""

    numel: int
    nbytes: int


Owned = tuple[str, tuple[int, ...]]
"""A module's path in its block, and its own weights that are gathered."""


class Visit(NamedTuple):
    """A module is entered: in forward, recomputing included, or in backward. Modules without weights count as well: each fetches ahead."""

    weights: tuple[int, ...]
    part: str
    backward: bool
    """Whether all of forward is done."""
    leaves: bool = True
    """Its weights may be freed when it is done."""


class Live(NamedTuple):
    """Gathered bytes at the highest instant of a piece of the network, persistent parameters left out."""

    forward: int
    backward: int


def gathering(settings: ZeroSettings) -> Gathering | None:
    """What the coordinator is told; None where weights are whole on the device all the time."""
    if settings.degree == 1 and settings.params == "none":
        return None
    return Gathering(settings.prefetch, settings.live, settings.reuse, settings.persistence, settings.model_persistence, settings.degree > 1)


@lru_cache(maxsize=512)
def live(network: Network, setup: Setup, recompute: RecomputePlan, gathering: Gathering) -> dict[str, Live]:
    """The gathered bytes by piece of the network, of a step whose trace is complete."""
    weights, visits = _trace(network, setup, recompute, gathering)
    found: dict[str, Live] = {}
    for visit, nbytes in zip(visits, _Coordinator(weights, visits, gathering).run(), strict=True):
        before = found.get(visit.part, Live(0, 0))
        found[visit.part] = before._replace(backward=max(before.backward, nbytes)) if visit.backward else before._replace(forward=max(before.forward, nbytes))
    return found


@lru_cache(maxsize=256)
def persistent(network: Network, setup: Setup, threshold: int, most: int) -> tuple[int, int]:
    """(numbers, bytes) of the parameters that stay whole: parameter_offload.py mark_persistent_parameters."""
    numel = nbytes = 0
    for piece in pieces(network, setup):
        if piece.numel <= threshold:
            copies = min(piece.copies, max(most - numel, 0) // max(piece.numel, 1))
            numel += copies * piece.numel
            nbytes += copies * piece.nbytes
    return numel, nbytes


def _trace(network: Network, setup: Setup, recompute: RecomputePlan, gathering: Gathering) -> tuple[list[Weight], list[Visit]]:
    """All modules in the order in which they are entered: the model around all, forward, then backward with recomputed blocks run forward again."""
    weights: list[Weight] = []
    blocks: list[tuple[str, Recompute, list[Owned]]] = []
    table: tuple[int, ...] = ()
    for part, copies, modules in _modules(network, setup):
        is_block = part.rpartition(".")[2][:1].isdigit()
        for copy in range(copies):
            owned: list[Owned] = []
            for name, members in modules.items():
                ids = range(len(weights), len(weights) + len(members))
                weights += members
                owned.append((name if is_block else "", tuple(i for i in ids if weights[i].numel > gathering.persistence)))
            if part == "embed" and network.tied:
                table = owned[0][1]
            if part == "head" and network.tied:
                owned = [("", (*(owned[0][1] if owned else ()), *table))]
            blocks.append((part, recompute.of(copy) if is_block else "none", owned))
    # the model with its head, and inside it the model without
    visits = [Visit((), blocks[0][0], backward=False)] * 2
    visits += [Visit(ids, part, backward=False) for part, _, owned in blocks for ids in _entered(part, owned)]
    around = Visit((), blocks[-1][0], backward=True)
    visits += [around] if blocks[-1][0] == "head" else [around, around]
    for part, mode, owned in reversed(blocks):
        visits += _back(part, mode, owned)
        visits += [around] if part == "head" else []
    return weights, visits


def _back(part: str, mode: Recompute, owned: list[Owned]) -> list[Visit]:
    """Backward of a block. Non-reentrant recomputing starts when the last module of the block asks for what it saved, after it was entered."""
    again = [Visit(ids, part, backward=True) for ids in _entered(part, owned)] if mode != "none" else []
    back = [Visit(ids, part, backward=True) for ids in _entered(part, owned[::-1])]
    if mode != "non-reentrant":
        return again + back
    first = next((i for i, visit in enumerate(back) if visit.weights), 0)
    return [*back[:first], back[first]._replace(leaves=False), *again, *back[first + 1 :]]


def _entered(part: str, owned: list[Owned]) -> Iterator[tuple[int, ...]]:
    """The weights of each module that is entered, in this order of those that have some: the modules around them come before them, with none."""
    is_block = part.rpartition(".")[2][:1].isdigit()
    inside: tuple[str, ...] = ()
    if is_block:
        yield ()
    for name, ids in owned:
        path = tuple(name.split("."))[:-1]
        for depth in range(1, len(path) + 1):
            if inside[:depth] != path[:depth]:
                yield ()
        inside = path
        yield ids


def _modules(network: Network, setup: Setup) -> Iterator[tuple[str, int, dict[str, list[Weight]]]]:
    """(piece, copies, parameters of each module) in the order of the declarations, which is that of forward."""
    part, copies, modules = "", 1, dict[str, list[Weight]]()
    blocks = {part.label: part.copies for part in parts(network)}
    for piece in pieces(network, setup):
        label = piece.place.partition("/")[0]
        if label != part:
            if part:
                yield part, copies, modules
            part, copies, modules = label, blocks[label], {}
        modules.setdefault(piece.module, []).extend([Weight(piece.numel, piece.nbytes)] * (piece.copies // copies))
    if part:
        yield part, copies, modules
    if network.tied and network.head is not None and part != "head":
        yield "head", 1, {}


class _Coordinator:
    """fetch_sub_module and release_sub_module, over a complete trace."""

    def __init__(self, weights: list[Weight], visits: list[Visit], gathering: Gathering) -> None:
        self.weights, self.visits, self.gathering = weights, visits, gathering
        self.queue = deque((weight, step) for step, visit in enumerate(visits) for weight in visit.weights)
        self.fetched_for = [-1] * len(weights)
        """The last use for which a parameter was fetched, or passed over."""
        self.whole: set[int] = set()
        self.in_flight: dict[int, list[int]] = {}
        """Parameter -> those that it is gathered with and that wait as well."""
        self.numel = self.nbytes = 0
        traversed = list(accumulate((sum(weights[w].numel for w in v.weights) for v in visits), initial=0))
        self.traversed = traversed
        self.next_use = self._next_uses()

    def _next_uses(self) -> list[dict[int, int]]:
        """For each step, the next step in which each of its parameters is used."""
        found: list[dict[int, int]] = [{} for _ in self.visits]
        seen: dict[int, int] = {}
        for step in range(len(self.visits) - 1, -1, -1):
            for weight in self.visits[step].weights:
                if weight in seen:
                    found[step][weight] = seen[weight]
                seen[weight] = step
        return found

    def run(self) -> Iterator[int]:
        """Gathered bytes at the highest instant of each step."""
        for step, visit in enumerate(self.visits):
            self._gather([w for w in visit.weights if w not in self.whole and w not in self.in_flight])
            highest = self._wait(visit.weights)
            self._prefetch(step, visit.weights)
            yield max(highest, self.nbytes)
            if visit.leaves:
                self._release(step, visit.weights)

    def _gather(self, members: list[int]) -> None:
        for weight in members:
            self.in_flight[weight] = members
            self.numel += self.weights[weight].numel
            self.nbytes += self.weights[weight].nbytes

    def _wait(self, members: tuple[int, ...]) -> int:
        """Parameters arrive. Out of a joined buffer all are copied when the first is waited for; the buffer goes with the last."""
        highest = self.nbytes
        for weight in members:
            together = self.in_flight.pop(weight, None)
            self.whole.add(weight)
            if together is None or len(together) == 1 or not self.gathering.joined:
                continue
            size = sum(self.weights[w].nbytes for w in together)
            waiting = sum(w in self.in_flight for w in together)
            if waiting == len(together) - 1:
                self.nbytes += size
                highest = max(highest, self.nbytes)
            if not waiting:
                self.nbytes -= size
        return highest

    def _prefetch(self, step: int, members: tuple[int, ...]) -> None:
        for _ in [w for w in members if self.fetched_for[w] < step]:
            weight, use = self.queue.popleft()
            self.fetched_for[weight] = use
        most = min(self.gathering.live - self.numel, self.gathering.prefetch)
        ahead: list[int] = []
        numel = 0
        while self.queue and numel < most:
            weight, use = self.queue.popleft()
            self.fetched_for[weight] = max(self.fetched_for[weight], use)
            if weight not in self.whole and weight not in self.in_flight and weight not in ahead:
                ahead.append(weight)
                numel += self.weights[weight].numel
        self._gather(ahead)

    def _release(self, step: int, members: tuple[int, ...]) -> None:
        for weight in members:
            again = self.next_use[step].get(weight)
            near = again is not None and self.traversed[again] - self.traversed[step + 1] < self.gathering.reuse
            if not near and self.fetched_for[weight] <= step + 1 and weight in self.whole:
                self.whole.discard(weight)
                self.numel -= self.weights[weight].numel
                self.nbytes -= self.weights[weight].nbytes
