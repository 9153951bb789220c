"""DeepSpeed's ZeRO: what all stages have in common. `zero_flat` has stages 1 and 2, `zero_cut` stage 3."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Category
from everybyte.models.count import parts
from everybyte.rules.optimizers.plan import Tensor
from everybyte.rules.sharding.zero.partitions import Partition, pieces
from everybyte.rules.sharding.zero.settings import ZeroSettings
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.persistent_state import Group, Trained, block_bytes, state_lines
from everybyte.rules.step.recipe import Recipe

if TYPE_CHECKING:
    from everybyte.rules.step.allocation_program import Program
    from everybyte.rules.step.timeline import StepTimeline
    from everybyte.rules.step.training import Training

BUCKET = "reduce_bucket_size numbers of the weights' type"
NORM_BYTES = 8
"""A number of the largest gradient while its norm is taken: a copy in fp64."""


class Zero(Layout, frozen=True):
    """What all stages have in common."""

    by_piece: ClassVar[bool] = False

    settings: ZeroSettings

    def trained(self, network: Network, setup: Setup, gradient: object, stepped: object) -> Trained:
        """Nothing that the core's rules of a step should count: `at_step` has the highest instant."""
        return Trained(0, 0, 0, 0, ())

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """They are rows of `beside` and `at_step`, or of the buffers."""
        return ()

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """As `gradients`."""
        return ()

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Of this rank's partition, as far as they are on the device."""
        return state_lines(network, recipe.setup, recipe.optimizer, Partition(self.on_device(network, recipe), self.settings.master))

    def on_device(self, network: Network, recipe: Recipe) -> int:
        """Numbers that are stepped on the device."""
        raise NotImplementedError

    def flat_numel(self, network: Network, recipe: Recipe) -> int:
        """Numbers of the flat tensor of trained weights on the device."""
        raise NotImplementedError

    def stepped(self, network: Network, recipe: Recipe) -> tuple[int, ...]:
        """Numbers that are stepped on the device together, one after the other."""
        raise NotImplementedError

    def before_step(self, network: Network, recipe: Recipe) -> list[Line]:
        """What lives between backward and the step."""
        raise NotImplementedError

    def sharing(self, recipe: Recipe) -> list[Line]:
        """What there is beside `before_step` while whole gradients are shared when backward is done."""
        return []

    def writer(self, training: Training) -> Program:
        """By CUDA stream."""
        from everybyte.rules.sharding.zero.program import ZeroProgram

        return ZeroProgram(training, self)

    def stepping(self, recipe: Recipe, numel: int) -> list[Line]:
        """The gradient of `numel` numbers in the master's type, and what the optimizer makes for a moment."""
        master = self.settings.master
        tensor = Tensor((numel,), master, "partition")
        made = recipe.optimizer.temporary(tensor.nbytes, (tensor,))
        return [
            numbers("gradients/master type", "gradient", master.block_bytes, numel, "N", "the gradient of what is stepped, in the master's type"),
            Line("temporaries/optimizer", "temporary", made.nbytes, plain(made.formula, **made.symbols), str(recipe.optimizer.rule.citation), "formula"),
        ]


def trained_numel(timeline: StepTimeline, index: int) -> int:
    """Numbers of the gradients that backward has made when it has gone through segment `index`, all of its copies."""
    found = _trained_by_part(timeline.network, timeline.recipe.setup)
    return sum(segment.copies * found.get(segment.part, 0) for segment in timeline.row[index:])


@lru_cache(maxsize=256)
def _trained_by_part(network: Network, setup: Setup) -> dict[str, int]:
    """Trained numbers in one copy of each piece of the network."""
    copies = {part.label: part.copies for part in parts(network)}
    found: dict[str, int] = {}
    for piece in pieces(network, setup):
        part = piece.place.partition("/")[0]
        if piece.trained:
            found[part] = found.get(part, 0) + piece.numel * piece.copies // copies[part]
    return found


def highest(instants: Iterable[list[Line]]) -> tuple[Line, ...]:
    """The rows of the instant with most bytes."""
    best = max(instants, key=lambda rows: sum(line.bytes for line in rows))
    return tuple(line for line in best if line.bytes)


def numbers(name: str, category: Category, width: int, numel: int, letter: str, source: str) -> Line:
    """A tensor of so many numbers with so many bytes each, with what the allocator rounds up."""
    size = block_bytes(width * numel) if numel else 0
    if size == width * numel:
        return Line(name, category, size, plain(f"{width}·{letter}", **{letter: numel}), source, "formula")
    return Line(name, category, size, plain(f"{width}·{letter} + rounding", **{letter: numel, "rounding": size - width * numel}), source, "formula")


def name_of(group: Group) -> str:
    """`weights/layers.0-31/mlp`: the id of a row of weights, the same under every layout."""
    kind = "adapters" if group.members[0].adapter else "weights"
    return f"{kind}/{group.place.removesuffix('/adapters')}"
