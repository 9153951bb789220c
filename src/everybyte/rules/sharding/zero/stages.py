"""DeepSpeed's ZeRO: what all stages have in common. `zero_flat` has stages 1 and 2, `zero_cut` stage 3."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar

from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Category
from everybyte.models.count import parts
from everybyte.rules.optimizers.plan import Tensor
from everybyte.rules.sharding.zero.partitions import Partition, matrices, pieces
from everybyte.rules.sharding.zero.settings import ZeroSettings
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.persistent_state import Group, Trained, block_bytes, shape, state_lines
from everybyte.rules.step.program import Empty, Free, Make, Op, ShardEvent, Spend, Switched
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import StepRow

BUCKET = "reduce_bucket_size numbers of the weights' type"
SIDE = 1
"""The stream of gathering and reducing, where overlap_comm gives it one of its own."""
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
        return state_lines(network, recipe.setup, recipe.optimizer, self._partition(network, recipe, self.on_device(network, recipe)))

    def _partition(self, network: Network, recipe: Recipe, numel: int) -> Partition:
        """So many numbers as the optimizer sees them."""
        return Partition(numel, self.settings.master, matrices(network, recipe.setup, recipe.optimizer).of(numel))

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

    def parted(self, network: Network, recipe: Recipe) -> list[Op]:
        """How the weights come to the device, before the trained ones are moved into one flat tensor."""
        raise NotImplementedError

    def loading(self, network: Network, recipe: Recipe) -> list[Op]:
        """Tensor by tensor; the trained ones then move through host memory into one flat tensor; what lives from the start."""
        sizes = [recipe.setup.weights.nbytes(self.flat_numel(network, recipe)), self.settings.master.nbytes(self.on_device(network, recipe))]
        sizes += [line.bytes for line in self.weights(network, recipe) if line.id.startswith("persistent/")]
        return [*self.parted(network, recipe), Empty(), *(Make("flat", size) for size in sizes if size)]

    def stepped_tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """None by itself: see `optimizing`."""
        return ()

    def optimizing(self, network: Network, recipe: Recipe, *, is_first: bool) -> list[Op]:
        """The step, sub-group by sub-group: gradients are joined, cast to the master's type, and the optimizer runs. What gradients this rank's partition
        reaches into lives until then; stage 1 makes it of whole gradients when backward is done."""
        settings, ops = self.settings, _Ops()
        before = self.before_step(network, recipe)
        sharing = [line.bytes for line in self.sharing(recipe)]
        ops.make("sharing", *sharing)
        ops.make("left", *(line.bytes for line in before if line.category == "gradient"))
        ops.free("sharing")
        ops.append(Spend(-1))
        ops.make("checked", *(line.bytes for line in before if line.category != "gradient"))
        ops.free("checked")
        kind = settings.accumulation or recipe.setup.weights
        for numel in self.stepped(network, recipe):
            gradient = "joined" if kind == settings.master else "gradient"
            ops.make("joined", kind.nbytes(numel))
            if gradient != "joined":
                ops.make("gradient", settings.master.nbytes(numel))
                ops.free("joined")
            ops.free("left")
            if is_first:
                rows = self._partition(network, recipe, numel).rows()
                ops += [Make("states", size) for p in rows for size in recipe.optimizer.state_tensors(shape(p), p.dtype, p.name)]
            ops.make("temporaries", *(line.bytes for line in self.stepping(network, recipe, numel)[1:]))
            ops.free("temporaries")
            ops.free(gradient)
        ops.free("left")
        return ops

    def beside(self, step: StepRow, index: int, moment: ShardEvent) -> Iterable[Line]:
        """What there is beside a segment that runs forward or back."""
        raise NotImplementedError

    def moves(self, step: StepRow) -> Switched:
        """What comes and goes with each layer is made on a stream of its own where communication overlaps."""
        known: dict[tuple[int, ShardEvent], tuple[Line, ...]] = {}

        def lines(index: int, moment: ShardEvent, copy: int) -> Iterable[Line]:
            if (index, moment) not in known:
                known[index, moment] = tuple(self.beside(step, index, moment))
            return known[index, moment]

        return Switched(step, lines, SIDE if self.settings.overlap else 0)

    def stepping(self, network: Network, recipe: Recipe, numel: int) -> list[Line]:
        """The gradient of `numel` numbers in the master's type, and what the optimizer makes for a moment: Muon works on whole matrices, one at a time."""
        master = self.settings.master
        found = matrices(network, recipe.setup, recipe.optimizer)
        tensor = Tensor(found.largest if found.numel else (numel,), master, "partition")
        made = recipe.optimizer.temporary(tensor.nbytes, (tensor,))
        return [
            numbers("gradients/master type", "gradient", master.block_bytes, numel, "N", "the gradient of what is stepped, in the master's type"),
            Line("temporaries/optimizer", "temporary", made.nbytes, plain(made.formula, **made.symbols), str(recipe.optimizer.rule.citation), "formula"),
        ]


class _Ops(list[Op]):
    """Operations as they are written."""

    def make(self, slot: str, *sizes: int) -> None:
        """Tensors of a slot."""
        self += [Make(slot, size) for size in sizes if size]

    def free(self, slot: str) -> None:
        """The end of all of a slot."""
        sizes = [op.bytes for op in self if isinstance(op, Make) and op.slot == slot]
        done = sum(isinstance(op, Free) and op.slot == slot for op in self)
        self += [Free(slot, size) for size in sizes[done:]]


def trained_numel(step: StepRow, index: int) -> int:
    """Numbers of the gradients that backward has made when it has gone through segment `index`, all of its copies."""
    found = _trained_by_part(step.network, step.recipe.setup)
    return sum(segment.copies * found.get(segment.part, 0) for segment in step.row[index:])


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
