"""The row of a step: the segments of a network for one recipe, and what each of them costs at one batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.replay import Instant, Tally
from everybyte.layers.recording.size import Batch, Point, Size
from everybyte.layers.recording.tape import Storage
from everybyte.rules.step.recipe import GradientsLive, Recipe
from everybyte.rules.step.segments import Segment, ends_apart, segments


class Measured(Record, frozen=True):
    """Bytes of a layer for one batch."""

    kept: int
    cached: int
    lingering: int
    gradients: int
    """Those of its weights, which are the same for all batches."""
    start: int
    """Its input, if a layer before it made that."""
    incoming: int
    outgoing: int
    own: int
    """What a reentrant CheckpointFunction.backward still has when the gradients are there: its input, its result and the result's gradient."""
    forward: int
    """All that lives at the highest instant of forward, and of backward."""
    backward: int


@lru_cache(maxsize=65536)
def measured(tally: Tally, batch: Batch) -> Measured:
    """A layer at a batch."""
    point = point_of(batch)

    def size(storage: Storage | None) -> int:
        return 0 if storage is None or storage.persistent else storage.size.at(point)

    return Measured(
        tally.kept_size.at(point),
        tally.cached_size.at(point),
        tally.lingering_size.at(point),
        tally.weight_gradients.at(point),
        size(tally.start),
        size(tally.incoming),
        size(tally.outgoing),
        sum(map(size, own(tally))),
        max((i.size.at(point) for i in tally.forward), default=0),
        max((i.size.at(point) for i in tally.backward), default=0),
    )


@lru_cache(maxsize=4096)
def point_of(batch: Batch) -> Point:
    """The values of axis products for a batch."""
    return Point(batch)


def own(tally: Tally) -> tuple[Storage, ...]:
    """What the backward of a reentrantly recomputed layer has to its end."""
    if tally.kept != (tally.start,) or not tally.gradients:
        return ()
    return tuple(s for s in (tally.start, tally.end, tally.incoming) if s is not None and s is not tally.outgoing and not s.persistent)


def highest(instants: tuple[Instant, ...], point: Point) -> Instant:
    """The instant with most bytes."""
    return max(instants, key=lambda instant: instant.size.at(point))


def instant_of(*held: Storage | None) -> Instant:
    """An instant at which these live."""
    storages = tuple(s for s in held if s is not None and not s.persistent)
    return Instant(Size.total(s.size for s in storages), storages)


class StepRow:
    """The segments of a network, and their bytes at the batch of a recipe."""

    def __init__(self, network: Network, recipe: Recipe, row: tuple[Segment, ...]) -> None:
        self.network, self.recipe, self.row = network, recipe, row
        self.points = {"": point_of(recipe.batch)}
        for tower in network.towers:
            items = recipe.images or recipe.batch.b
            length = tower.tokens_per_item or (recipe.batch.m if tower.name == "encoder" else 0) or recipe.batch.s
            self.points[tower.name] = point_of(Batch(items, length, length))
        self.point = self.points[""]
        self.measures = [measured(s.tally, self.points[s.tower].batch) for s in row]
        self.returns: Sequence[bool] = ()
        """Of each segment, whether its backward holds its own tensors while gradients are shared."""

    @classmethod
    def of(cls, network: Network, recipe: Recipe, *, by_unit: bool, lives: GradientsLive) -> StepRow:
        """That of a network. `by_unit`: the first and the last layer of a run are segments of their own, and gradients are shared layer by layer."""
        found = cls(network, recipe, (ends_apart if by_unit else segments)(network, recipe.setup, recipe.recompute, recipe.stream, lives))
        is_reentrant = by_unit and recipe.recompute.mode == "reentrant"
        found.returns = [is_reentrant and bool(own(s.tally)) for s in found.row]
        return found

    def made(self, index: int) -> int:
        """Bytes of the gradients that backward of one copy leaves; nothing where each is used up at once, or is counted elsewhere."""
        return self.measures[index].gradients if self.row[index].keeps_gradients else 0
