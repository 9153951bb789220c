"""A training step on one GPU: from a recipe to the ledger of its phases."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, build, plain
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.rules.accounting.canonical import apart, numbered
from everybyte.rules.accounting.overhead import workspace_line
from everybyte.rules.step.adapted_network import adapted, one_block
from everybyte.rules.step.allocation_program import Program, script
from everybyte.rules.step.auxiliary_model import AuxiliaryModel
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.persistent_state import NOTHING_TRAINED
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import StepTimeline, Waiting

IN_BACKWARD = "optimizer in backward: each tensor is stepped when its gradient is there (Tensor.register_post_accumulate_grad_hook)"
FOREACH = "pytorch torch/optim: temporaries of the step, counted on the CPU (tests/oracle)"


class Training(Record, frozen=True):
    """The peaks of a step and what lives beside them."""

    network: Network
    recipe: Recipe
    compute_capability: str
    extra: tuple[Line, ...] = ()
    """Rows of the engine that live all the time."""
    layout: Layout = WHOLE
    """How weights, gradients and states lie on this rank."""
    waiting: Waiting = ()
    """Micro-batches in flight beside the one that runs, by piece of the network (a pipeline's)."""
    companions: tuple[AuxiliaryModel, ...] = ()
    """Networks that run forward beside the trained one."""

    @property
    def timeline(self) -> StepTimeline:
        """The peaks of the step."""
        return timeline_of(self.network, self.recipe, self.layout, self.waiting)

    @property
    def unevenly_routed(self) -> Training:
        """The same step where all tokens choose experts of this rank."""
        return replace(self, recipe=replace(self.recipe, batch=self.recipe.batch._replace(is_uneven=True)))

    @property
    def trained_params(self) -> int:
        """Parameters that get a gradient, of the whole network."""
        return WHOLE.trained(self.network, self.recipe.setup, None, None).numel

    def static(self) -> list[Line]:
        """Rows that live in every phase of a steady step."""
        recipe = self.recipe
        return [
            *self.layout.weights(self.network, recipe),
            *self.layout.states(self.network, recipe),
            *self.layout.buffers(self.network, recipe),
            workspace_line(self.compute_capability, recipe.handles),
            *self.inputs(),
            *self.extra,
            *(line for companion in self.companions for line in companion.weights()),
        ]

    def inputs(self) -> list[Line]:
        """The last batch: token ids with labels and mask as the loop makes them, or images with a label each; images of towers beside them."""
        batch, width = self.recipe.batch, self.recipe.batch_bytes_per_token
        images = list(self.timeline.images())
        if self.network.tokens:
            return [*images, Line("input/labels", "input", 8 * batch.b, plain("8·b", b=batch.b), "a label for each image, int64")]
        n = batch.b * batch.s
        return [*images, Line("input/batch", "input", width * n, plain("w·n", w=width, n=n), "ids, labels and mask of the last batch, int64")]

    def gradients(self) -> list[Line]:
        """Gradients of all trained parameters, where the recipe lets them live."""
        if self.recipe.gradients_live == "never":
            total = self.layout.trained(self.network, self.recipe.setup, self.recipe.gradient, self.recipe.stepped)
            return [Line("gradients/one", "gradient", total.largest_gradient, plain("g_max", g_max=total.largest_gradient), IN_BACKWARD, "formula")]
        return list(self.layout.gradients(self.network, self.recipe))

    def accumulated(self) -> list[Line]:
        """Gradients that live through forward and backward."""
        return list(self.layout.accumulated(self.network, self.recipe)) if self.recipe.gradients_live == "always" else []

    def step_temporaries(self) -> list[Line]:
        """What the optimizer's step makes for a moment."""
        recipe = self.recipe
        total = NOTHING_TRAINED if recipe.optimizer.in_place else self.layout.trained(self.network, recipe.setup, recipe.gradient, recipe.stepped)
        made = recipe.optimizer.temporary(total.weight_bytes, total.order)
        text = plain(made.formula, **made.symbols)
        own = Line("temporaries/optimizer", "temporary", made.nbytes, text, f"{recipe.optimizer.rule.citation}; {FOREACH}", "formula")
        return [own, *self.layout.at_step(self.network, recipe)]

    def beside_pass(self, companion: AuxiliaryModel) -> int:
        """Bytes at the highest instant of a companion's forward: its own, and what the trained network keeps meanwhile."""
        return companion.height() + (self.timeline.paused_bytes if companion.within else 0)

    def highest_pass(self) -> AuxiliaryModel:
        """The companion whose forward needs most."""
        return max(self.companions, key=self.beside_pass)

    def phases(self) -> dict[Phase, Iterable[Line]]:
        """The rows of each phase of a steady step, in the order of time."""
        static, gradients = self.static(), self.gradients()
        always = self.accumulated()
        outliving = list(self.timeline.outliving())
        found: dict[Phase, Iterable[Line]] = {}
        for phase, peak in self.timeline.peaks().items():
            if phase == "backward" and self.companions:
                companion = self.highest_pass()
                found["eval"] = [*static, *always, *(self.timeline.held() if companion.within else ()), *companion.lines()]
            found[phase] = [*static, *always, *self.timeline.lines(peak), *(outliving if phase == "forward" else [])]
        found["optimizer"] = [*static, *gradients, *outliving, *self.step_temporaries()]
        found["between_steps"] = [*static, *outliving, *(gradients if self.recipe.gradients_between else [])]
        return found

    def ledger(self) -> Ledger:
        """All rows."""
        return build(self.phases())

    def totals(self) -> dict[Phase, int]:
        """Bytes of each phase without writing rows."""
        own = self.alike
        held, timeline = held_by(own.network, own.recipe.at_rest, own.layout.at_rest), own.timeline
        beside = workspace_line(self.compute_capability, self.recipe.handles).bytes + sum(line.bytes for line in (*own.inputs(), *self.extra))
        static = held.static + beside + sum(line.bytes for companion in self.companions for line in companion.weights())
        outliving = timeline.outliving_bytes()
        found: dict[Phase, int] = {phase: static + held.accumulated + height for phase, height in timeline.heights().items()}
        found["forward"] += outliving
        if self.companions:
            found["eval"] = static + held.accumulated + self.beside_pass(self.highest_pass())
        found["optimizer"] = static + outliving + held.gradients + held.temporaries
        found["between_steps"] = static + outliving + (held.gradients if self.recipe.gradients_between else 0)
        return found

    @property
    def alike(self) -> Training:
        """The same step on the network that stands for all which are alike."""
        if self.recipe.recompute.every > 1 or self.layout.tells_apart:
            return self
        network, pieces = numbered(self.network)
        names = {piece.label: piece.other for piece in pieces}
        return replace(self, network=network, waiting=tuple((names[label], count) for label, count in self.waiting))

    def script(self) -> Iterable[tuple[int, int]]:
        """The allocations of loading and two steps in program order."""
        return script(Program(self))


class Held(NamedTuple):
    """Bytes that a step holds whatever its batch is."""

    static: int
    gradients: int
    accumulated: int
    """Gradients that live through forward and backward."""
    temporaries: int
    """What the optimizer's step makes for a moment."""


@lru_cache(maxsize=16384)
def held_by(network: Network, recipe: Recipe, layout: Layout) -> Held:
    """The sums of the rows; block by block where each block has rows of its own."""
    temporaries = sum(line.bytes for line in Training(network, recipe, "", layout=layout).step_temporaries())
    if layout.by_piece and not layout.tells_apart and recipe.gradients_live != "never":
        sums = [(copies, _held(piece, recipe, layout)) for piece, copies in apart(network)]
        static, gradients, accumulated = (sum(copies * found[place] for copies, found in sums) for place in range(3))
    else:
        static, gradients, accumulated = _held(network, recipe, layout)
    return Held(static, gradients, accumulated, temporaries)


@lru_cache(maxsize=16384)
def _held(network: Network, recipe: Recipe, layout: Layout) -> tuple[int, int, int]:
    training = Training(network, recipe, "", layout=layout)
    static = (*layout.weights(network, recipe), *layout.states(network, recipe), *layout.buffers(network, recipe))
    static_bytes, gradients, accumulated = (sum(line.bytes for line in lines) for lines in (static, training.gradients(), training.accumulated()))
    return static_bytes, gradients, accumulated


@lru_cache(maxsize=256)
def timeline_of(network: Network, recipe: Recipe, layout: Layout = WHOLE, waiting: Waiting = ()) -> StepTimeline:
    """The timeline of a step: the sizes of its segments, worked out once."""
    return StepTimeline(network, recipe, layout, waiting)


def training(
    network: Network, recipe: Recipe, compute_capability: str, extra: tuple[Line, ...] = (), layout: Layout = WHOLE, companions: tuple[AuxiliaryModel, ...] = ()
) -> Training:
    """A training step of `recipe` on a device."""
    network = adapted(one_block(network) if recipe.optimizer.by_block else network, recipe.setup)
    return Training(network, recipe, compute_capability, extra, layout, companions=companions)
