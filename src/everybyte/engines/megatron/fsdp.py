"""Megatron-FSDP: weights, main weights, gradients and states in parts, gathered by transformer layer (distributed/fsdp/src/megatron_fsdp).

Layers are gathered ahead, and their whole gradients wait to be reduced, by a number of elements that small models never reach: in backward all layers
that have not gone back are whole, and the gradients of all that have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import ClassVar, Literal, cast

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP8, FP16, FP32, DType
from everybyte.basics.errors import Unsupported
from everybyte.basics.units import ceil_div
from everybyte.engines.megatron.extra import Keys
from everybyte.engines.megatron.layout import MegatronLayout
from everybyte.engines.megatron.portions import by_width, divided_text, is_expert, is_fp8, numel_of
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Category
from everybyte.models.count import parts
from everybyte.rules.step.persistent_state import Group, groups
from everybyte.rules.step.program import ShardEvent
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import StepRow

Strategy = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]
Kind = Literal["weight", "main", "gradient"]

STRATEGIES: dict[Strategy, tuple[Kind, ...]] = {
    "no_shard": (),
    "optim": ("main",),
    "optim_grads": ("main", "gradient"),
    "optim_grads_params": ("main", "gradient", "weight"),
}
"""data_parallel_sharding_strategy -> what is divided; states are where main weights are."""
FOLDER = "Megatron-LM core/distributed/fsdp/src/megatron_fsdp"
BUFFERS = f"{FOLDER}/param_and_grad_buffer.py _init_each_parameter_group_buffers"
WIDENED = f"{FOLDER}/param_and_grad_buffer.py update_main_grads: gradients in the type of the main weights, until zero_grad of the next step"
ROOT = f"{FOLDER}/param_and_grad_buffer.py AllGatherPipeline.reset: what belongs to no transformer layer stays gathered (from Megatron Core 0.19 on, 378d81f)"
AHEAD = f"{FOLDER}/megatron_fsdp.py suggested_AG_prefetch_size, suggested_RS_queue_capacity"
LEAST_UNIT = 1_000_000_000
"""Elements whose gradients may wait at least; half as many are gathered ahead."""


def is_end(group: Group) -> bool:
    """Whether parameters belong to no transformer layer: the embedding, the last norm, the head."""
    return group.part in ("embed", "head") or group.place.endswith("/final_layernorm")


class FsdpLayout(MegatronLayout, frozen=True):
    """One rank of Megatron-FSDP."""

    leaves: ClassVar[bool] = True

    strategy: Strategy = "optim_grads_params"
    fp8_weights: bool = False
    """Linear weights are stored and gathered in fp8 (fp8_param_gather)."""
    keeps_ends: bool = True
    """What belongs to no transformer layer stays gathered from step to step; else while a micro-batch runs."""
    stated: DType | None = None
    """Type of the main gradients; None: that of the weights, bf16 for those in fp8."""

    def divides(self, kind: Kind, p: Parameter) -> int:
        """Ranks over which a kind of tensor lies."""
        if kind not in STRATEGIES[self.strategy]:
            return 1
        return self.expert_shards if is_expert(p) else self.shards

    def weight(self, p: Parameter) -> DType:
        """Type in which a weight is stored and gathered."""
        return FP8 if self.fp8_weights and is_fp8(p) else p.dtype

    def gradient_of(self, p: Parameter) -> DType:
        """Type of a parameter's main gradient."""
        kind = self.weight(p)
        return self.stated or (BF16 if kind == FP8 else kind)

    def weights(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """This rank's parts of the weights, and the ends of the network, which stay whole."""
        return _weights(self.at_rest_fsdp, network, recipe.setup)

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The main gradients."""
        return _gradients(self.at_rest_fsdp, network, recipe.setup)

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The main gradients and what the optimizer steps in their place where they have another type than the main weights."""
        return (*self.accumulated(network, recipe), *_wide(self.at_rest_fsdp, network, recipe.setup), *self._left())

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Main weights and moments."""
        return _states(self.at_rest_fsdp, network, recipe.setup)

    def resting_bytes(self, network: Network, recipe: Recipe) -> tuple[int, int]:
        """The sums of the rows."""
        held = sum(line.bytes for line in (*self.weights(network, recipe), *self.states(network, recipe)))
        running, resting = (sum(line.bytes for line in lines(network, recipe)) for lines in (self.accumulated, self.gradients))
        return held + running, held + resting

    @property
    def at_rest_fsdp(self) -> FsdpLayout:
        """The same without what a pipeline is sending."""
        return cast("FsdpLayout", self.at_rest)

    @property
    def in_step(self) -> FsdpLayout:
        """All but what a pipeline is sending."""
        return replace(self, received=0, in_transit=0, deferred=0)

    @property
    def is_still(self) -> bool:
        """Weights are gathered and gradients shared around each layer."""
        return False

    def beside(self, step: StepRow, index: int, moment: ShardEvent, copy: int) -> tuple[Line, ...]:
        """What a pipeline has beside. In forward the layer that runs with those gathered ahead of it; in backward those ahead of it, and whole gradients
        that wait to be reduced, nothing of both before the head is done."""
        keeps = self.keeps_ends or "weight" not in STRATEGIES[self.strategy]
        ends = () if keeps else _whole_ends(self.at_rest_fsdp, step.network, step.recipe.setup)
        found = (*super().beside(step, index, moment, copy), *ends)
        copies = step.row[index].copies
        if moment == "forward":
            order = [(place, copies - copy if place == index else step.row[place].copies) for place in range(index, len(step.row))]
            return (*found, *_gathered(self._ahead(step, order) if "weight" in STRATEGIES[self.strategy] else 0))
        if step.row[index].part == "head":
            return found
        done = (*[0] * index, copies - 1 - copy, *[segment.copies for segment in step.row[index + 1 :]])
        waiting = [(place, segment.copies - done[place]) for place, segment in enumerate(step.row)]
        whole = self._ahead(step, waiting[::-1]) if "weight" in STRATEGIES[self.strategy] else 0
        size = self._queued(step, done) if "gradient" in STRATEGIES[self.strategy] else 0
        queued = (Line("gradients/waiting to be reduced", "gradient", size, plain("whole", whole=size), AHEAD, "formula"),) if size else ()
        return (*found, *_gathered(whole), *queued)

    def _ahead(self, step: StepRow, order: list[tuple[int, int]]) -> int:
        """Bytes of the whole layers from the one that runs on, as far as they are gathered ahead: (segment, copies) in the order in which they run."""
        found = taken = 0
        units = _units(self.at_rest_fsdp, step.network, step.recipe.setup)
        for place, copies in order:
            numel, size, _ = units[step.row[place].part]
            if not numel or not copies:
                continue
            room = ceil_div(max(LEAST_UNIT // 2 - max(found - numel, 0), 0), numel) + (not taken)
            count = min(copies, room)
            found, taken = found + count * numel, taken + count * size
            if count < copies:
                break
        return taken

    def _queued(self, step: StepRow, done: tuple[int, ...]) -> int:
        """Bytes of the whole gradients of layers that have gone back, the newest, as many as may wait; those of the ends wait to the last."""
        found, size = 0, _ends(self.at_rest_fsdp, step.network, step.recipe.setup)
        units = _units(self.at_rest_fsdp, step.network, step.recipe.setup)
        for segment, copies in zip(step.row, done, strict=True):
            numel, _, gradient = units[segment.part]
            if numel and copies:
                count = min(copies, max(LEAST_UNIT - found, 0) // numel + 1)
                found, size = found + count * numel, size + count * gradient
        return size


def _gathered(size: int) -> tuple[Line, ...]:
    return (Line("gathered/layers", "parameter", size, plain("whole", whole=size), AHEAD, "formula"),) if size else ()


@lru_cache(maxsize=1024)
def _units(layout: FsdpLayout, network: Network, setup: Setup) -> dict[str, tuple[int, int, int]]:
    """Of one layer of each piece of the network, whole: (elements, bytes of weights, bytes of main gradients); zeros for the ends."""
    found: dict[str, tuple[int, int, int]] = {part.label: (0, 0, 0) for part in parts(network)}
    for group in groups(network, setup, layout):
        if not is_end(group):
            numel, size, gradient = found[group.part]
            numel += sum(p.numel for p in group.members)
            size += sum(p.numel * layout.weight(p).block_bytes for p in group.members)
            found[group.part] = numel, size, gradient + sum(p.numel * layout.gradient_of(p).block_bytes for p in group.trained)
    return found


@lru_cache(maxsize=1024)
def _ends(layout: FsdpLayout, network: Network, setup: Setup) -> int:
    """Bytes of the whole main gradients of what belongs to no layer."""
    return sum(group.copies * p.numel * layout.gradient_of(p).block_bytes for group in groups(network, setup, layout) if is_end(group) for p in group.trained)


# -- lines -------------------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def _weights(layout: FsdpLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    own = tuple(_parts(layout, network, setup, "weights", "parameter", "weight", lambda p: layout.weight(p).block_bytes, BUFFERS))
    return (*own, *_whole_ends(layout, network, setup)) if layout.keeps_ends and "weight" in STRATEGIES[layout.strategy] else own


@lru_cache(maxsize=1024)
def _whole_ends(layout: FsdpLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    """Weights of what belongs to no transformer layer, gathered."""
    lines = []
    for group in groups(network, setup, layout):
        if is_end(group):
            for each, members in by_width(group.members, lambda p: layout.weight(p).block_bytes):
                text = partial(divided_text, group, members, each, 1, 0)
                lines.append(Line(f"gathered/{group.place}", "parameter", each * numel_of(group, members), text, ROOT))
    return tuple(lines)


@lru_cache(maxsize=1024)
def _gradients(layout: FsdpLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    return tuple(_parts(layout, network, setup, "gradients", "gradient", "gradient", lambda p: layout.gradient_of(p).block_bytes, BUFFERS))


@lru_cache(maxsize=1024)
def _wide(layout: FsdpLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    def width(p: Parameter) -> int:
        return layout.states_kept.master if layout.gradient_of(p) != FP32 else 0

    return tuple(_parts(layout, network, setup, "wide gradients", "gradient", "main", width, WIDENED)) if layout.widens else ()


@lru_cache(maxsize=1024)
def _states(layout: FsdpLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    moments = 2 * layout.states_kept.moment.block_bytes
    return (
        *_parts(layout, network, setup, "optimizer", "optimizer_state", "main", lambda p: moments, BUFFERS),
        *_parts(layout, network, setup, "master", "optimizer_state", "main", lambda p: layout.states_kept.master, BUFFERS),
    )


def _parts(
    layout: FsdpLayout, network: Network, setup: Setup, name: str, category: Category, kind: Kind, width: Callable[[Parameter], int], source: str
) -> Iterator[Line]:
    """So many bytes for each number, on one of the ranks that divide it."""
    for group in groups(network, setup, layout):
        for key, members in by_width(group.trained, lambda p: width(p) * 2**20 + layout.divides(kind, p)):
            each, over = key >> 20, key % 2**20
            exact = each * numel_of(group, members)
            size = ceil_div(exact, over)
            label = f"{name}/{group.place}" + ("/experts" if is_expert(members[0]) else "")
            if size:
                label += "/fp8" if kind == "weight" and each == 1 else ""
                yield Line(label, category, size, partial(divided_text, group, members, each, over, size - exact // over), source)


# -- settings ----------------------------------------------------------------------------------------------------------------
TYPES = {"fp32": FP32, "bf16": BF16, "fp16": FP16}


def strategy_of(keys: Keys) -> Strategy:
    """What is divided; all where the job does not say. Raises Unsupported for unknown words, and for states over a further group of ranks."""
    word = keys.data_parallel_sharding_strategy
    if word not in STRATEGIES:
        raise Unsupported("train.extra.data-parallel-sharding-strategy", f"{word!r} is unknown; supported: {', '.join(STRATEGIES)}")
    if keys.outer_dp_sharding_strategy != "no_shard":
        raise Unsupported("train.extra.outer-dp-sharding-strategy", "only no_shard is supported")
    if keys.fsdp_double_buffer or keys.nccl_ub:
        raise Unsupported("train.extra.fsdp-double-buffer", "is not supported yet; leave it out, and buffers are allocated when they are needed")
    return word


def gradient_type(keys: Keys, stated: DType | None) -> DType | None:
    """Type of the main gradients: as Megatron-FSDP's own setting says, else as the job does; None for that of the weights."""
    word = keys.megatron_fsdp_main_grads_dtype
    return TYPES.get(str(word)) if word is not None else stated


def main_bytes(keys: Keys) -> int:
    """Bytes of a main weight: in fp32 whatever the weights are, 0 where the weights are stepped themselves (`auto`)."""
    kind = TYPES.get(keys.megatron_fsdp_main_params_dtype)
    return 0 if kind is None else kind.block_bytes
