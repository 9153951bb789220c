"""What lives from step to step on one rank: weights, main gradients, master copies and moments, whole or divided by the distributed optimizer."""

from __future__ import annotations

from functools import lru_cache, partial
from math import lcm
from typing import Any, Literal, cast

from msgspec.structs import replace

from everybyte.basics.dtypes import FP32, DType
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div
from everybyte.engines.megatron.portions import (
    Held,
    Moments,
    Portion,
    Same,
    divided_text,
    fp8_copies,
    fp8_weights,
    gaps,
    is_expert,
    is_matrix,
    portions,
    portions_of,
)
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dims, elements
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Category
from everybyte.models.count import parts, tensors
from everybyte.rules.accounting.canonical import once
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.persistent_state import groups, weight_bytes, weight_lines
from everybyte.rules.step.program import Moves, ShardEvent, Still, Switched
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import StepRow

BUFFERS = "Megatron-LM core/distributed/param_and_grad_buffer.py, core/optimizer/param_layout.py"
OPTIMIZER = "Megatron-LM core/optimizer/optimizer.py, distrib_optimizer.py"
WIDENED = "Megatron-LM core/optimizer/optimizer.py `main_grad.float()`: lives until zero_grad of the next step"
LEFT = "Megatron-LM core/transformer/transformer_block.py `input_tensor`, core/pipeline_parallel/schedules.py `retain_grad`"
TRANSIT = (
    "Megatron-LM core/pipeline_parallel/schedules.py: 1F1B has two, the input of the micro-batch before, which the graph of its loss holds until the next "
    "forward returns, and its gradient; interleaved schedules had three in Megatron-LM's functional tests, within 1 % of the peak"
)
DEFERRED = "Megatron-LM core/tensor_parallel/layers.py grad_output_buffer: logits' gradient and input of each micro-batch, up to wgrad_deferral_limit"
FETCHED = "Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py"
FP8_COPIES = "TransformerEngine pytorch/module/base.py get_weight_workspace"
HOST = "Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py HybridDeviceOptimizer: pinned copies in fp32"


class States(Record, frozen=True):
    """What the optimizer keeps of each parameter, and for which."""

    master: int = 4
    """Bytes of the master copy; 2 where only the 16 bits that the bf16 weight lacks are kept (store_param_remainders)."""
    moment: DType = FP32
    muon: bool = False
    """Matrices have one moment; the embedding, the head and vectors are left to Adam."""

    def width(self, p: Parameter) -> int:
        """Bytes a number."""
        count = 1 if self.muon and is_matrix(p) else 2
        return self.master + count * self.moment.block_bytes


class MegatronLayout(Layout, frozen=True):
    """One rank of Megatron's data parallelism."""

    distributed: bool = False
    """The distributed optimizer: weights and gradients in buffers, states over the data-parallel ranks."""
    shards: int = 1
    expert_shards: int = 1
    states_kept: States = States()
    gradient: DType = FP32
    on_host: bool = False
    """Main weights and moments lie in host memory, where the optimizer runs (optimizer_cpu_offload with all parameters)."""
    widens: bool = False
    """The optimizer steps an fp32 copy of 16-bit gradients, which stays until the next step begins."""
    bucket: int = 0
    """Elements after which a bucket ends (overlap_grad_reduce), 0 for one bucket."""
    fp8_copies: bool = False
    """An fp8 copy of each linear weight and its transpose are kept beside it (module/base.py get_weight_workspace)."""
    fp8_alone: bool = False
    """Weights multiplied in fp8 are there in fp8 alone, their transposes made anew for each product (disable_parameter_transpose_cache)."""
    whole_tensors: bool = False
    """dist_muon without a layout: whole tensors are dealt out to the ranks."""
    hidden: int = 0
    """Bytes of the hidden states that one micro-batch sends to the next stage."""
    received: int = 0
    """Chunks of this rank that receive hidden states from another rank."""
    deferred: int = 0
    """Bytes of logits' gradients and head inputs that wait for the head's weight gradient (defer_embedding_wgrad_compute)."""
    fetched: int = 0
    """Bytes that one layer keeps in host memory. When a module has gone back, a module of the layer before is fetched, so that there is always a whole
    layer's on the device (pipeline_parallel/fine_grained_activation_offload.py bulk_reload)."""
    prefetches: bool = False
    """The last layer of the micro-batch that goes back next is fetched before another goes forward (pre_reload_last_layer)."""
    in_transit: int = 0
    """Hidden states and gradients that are being sent or received beside a micro-batch that runs."""

    def weights(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Weights: tensors of their own, or buffers with padding, and fp8 copies."""
        own = () if self.distributed else weight_lines(network, recipe.setup, WHOLE)
        return (*own, *_lines(self, network, recipe.setup, self._weights(recipe.setup)), *self._padding(network, recipe.setup, "weights"))

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The main gradients: one contiguous buffer of each kind, always there."""
        return (*_lines(self, network, recipe.setup, self._main_gradients), *self._padding(network, recipe.setup, "gradients"))

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The main gradients, fp32 copies of them, and what the pipeline leaves."""
        return (*self.accumulated(network, recipe), *_lines(self, network, recipe.setup, self._wide_gradients), *self._left())

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Master copies and moments."""
        return _dealt(self, network, recipe.setup) if self.deals else _lines(self, network, recipe.setup, self._states)

    def host(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """What lies in host memory: fp32 copies of this rank's part of the weights and of their gradients, and moments."""
        return _lines(self, network, recipe.setup, self._on_host) if self.on_host else ()

    def resting_bytes(self, network: Network, recipe: Recipe) -> tuple[int, int]:
        """The sums of weights, states and main gradients: while micro-batches run, and from the optimizer's step to the next."""
        setup = recipe.setup
        kinds = (*self._weights(setup), *self._main_gradients, *(() if self.deals else self._states))
        held = _bytes(self, network, setup, kinds)
        if self.distributed:
            held += (setup.weights.block_bytes + self.gradient.block_bytes) * padding_of(self, network, setup)
        else:
            single, pieces = once(network)
            copies = {piece.other: piece.copies for piece in pieces}
            held += sum(copies[group.part] * weight_bytes(group, setup) for group in groups(single, setup, WHOLE))
        held += sum(line.bytes for line in self.states(network, recipe)) if self.deals else 0
        return held, held + (_bytes(self, network, setup, self._wide_gradients) if self.widens else 0)

    @property
    def deals(self) -> bool:
        """Whether states are those of whole tensors."""
        return self.whole_tensors and not self.on_host

    def _weights(self, setup: Setup) -> tuple[Held, ...]:
        widths = fp8_weights if self.fp8_alone else Same((setup.weights.block_bytes,))
        own = (Held("weights", "parameter", widths, BUFFERS),) if self.distributed else ()
        return (*own, Held("fp8 copies", "parameter", fp8_copies, FP8_COPIES)) if self.fp8_copies else own

    @property
    def _main_gradients(self) -> tuple[Held, ...]:
        return (Held("gradients", "gradient", Same((self.gradient.block_bytes,)), BUFFERS),)

    @property
    def _wide_gradients(self) -> tuple[Held, ...]:
        return (Held("wide gradients", "gradient", Same((4,)), WIDENED, is_shared=True),) if self.widens else ()

    @property
    def _states(self) -> tuple[Held, ...]:
        if self.on_host:
            return ()
        moments = Moments(self.states_kept.moment.block_bytes, self.states_kept.muon)
        return (
            Held("optimizer", "optimizer_state", moments, OPTIMIZER, is_shared=True),
            Held("master", "optimizer_state", Same((self.states_kept.master,)), OPTIMIZER, is_shared=True),
        )

    @property
    def _on_host(self) -> tuple[Held, ...]:
        moments = Same((self.states_kept.moment.block_bytes,) * 2)
        return (
            Held("host/weights and gradients", "optimizer_state", Same((4, 4)), HOST, is_shared=True),
            Held("host/optimizer", "optimizer_state", moments, HOST, is_shared=True),
        )

    def size(self, portion: Portion, copies: int, *, is_shared: bool) -> int:
        """Bytes on this rank of so many copies of a portion: in a buffer; if shared, this rank's part, or whole tensors in multiples of 512 bytes."""
        if not is_shared:
            return copies * portion.exact
        if not self.distributed:
            return copies * portion.alone
        return ceil_div(copies * portion.exact, self.expert_shards if portion.experts else self.shards)

    def _padding(self, network: Network, setup: Setup, name: Literal["weights", "gradients"]) -> tuple[Line, ...]:
        """Gaps that bring every parameter to a multiple of 64 elements, and each bucket to one of lcm(D, 128)."""
        numel = padding_of(self, network, setup) if self.distributed else 0
        if not numel:
            return ()
        kind, category = (setup.weights, "parameter") if name == "weights" else (self.gradient, "gradient")
        text = plain("e·P_pad", e=kind.block_bytes, P_pad=numel)
        return (Line(f"{name}/padding", cast("Category", category), kind.nbytes(numel), text, BUFFERS),)

    def moves(self, step: StepRow) -> Moves:
        """What is beside the layers of a micro-batch."""
        return Still(step) if self.is_still else Switched(step, partial(self.beside, step))

    @property
    def is_still(self) -> bool:
        """Whether nothing is beside the layers."""
        return not (self.in_transit or self.deferred or self.fetched)

    def beside(self, step: StepRow, index: int, moment: ShardEvent, copy: int) -> tuple[Line, ...]:
        """What the pipeline sends and receives meanwhile, and what the head puts off."""
        return (*self._in_transit(), *self._deferred(), *(self._fetched() if self.prefetches or moment == "backward" else ()))

    def _fetched(self) -> tuple[Line, ...]:
        return (Line("activations/fetched ahead", "activation", self.fetched, plain("fetched", fetched=self.fetched), FETCHED),) if self.fetched else ()

    def _deferred(self) -> tuple[Line, ...]:
        return (Line("head/deferred", "activation", self.deferred, plain("deferred", deferred=self.deferred), DEFERRED),) if self.deferred else ()

    def _in_transit(self) -> tuple[Line, ...]:
        if not self.in_transit:
            return ()
        text = plain("count·n_h", count=self.in_transit, n_h=self.hidden)
        return (Line("pipeline/in transit", "comm_buffer", self.in_transit * self.hidden, text, TRANSIT, "calibrated"),)

    @property
    def at_rest(self) -> MegatronLayout:
        """The same without what a pipeline is sending: what lives from step to step follows from it."""
        return replace(self, hidden=0, received=0, in_transit=0, deferred=0, fetched=0, prefetches=False)

    @property
    def in_step(self) -> MegatronLayout:
        """What of it the highest instant of a layer depends on."""
        return MegatronLayout(fetched=self.fetched, prefetches=self.prefetches)

    @property
    def transit_bytes(self) -> int:
        """Bytes that a pipeline has beside every layer that runs."""
        return self.in_transit * self.hidden + self.deferred

    @property
    def left_bytes(self) -> int:
        """Bytes of what the pipeline leaves until the next step."""
        return 2 * self.received * self.hidden

    def _left(self) -> tuple[Line, ...]:
        """Of every chunk the last received input and its gradient, which stay until the next micro-batch comes."""
        if not self.received:
            return ()
        text = plain("2·v·n_h", v=self.received, n_h=self.hidden)
        return (Line("pipeline/last input and gradient", "comm_buffer", 2 * self.received * self.hidden, text, LEFT, "formula"),)


# -- lines -------------------------------------------------------------------------------------------------------------------
def _bytes(layout: MegatronLayout, network: Network, setup: Setup, kinds: tuple[Held, ...]) -> int:
    """The sum of `_lines`."""
    total = 0
    for part in parts(network):
        whole, shared = _of_layer(part.layer, setup.of_blocks(part.path), part.dims, kinds)
        total += part.copies * whole + sum([layout.size(portion, part.copies, is_shared=True) for portion in shared])
    return total


@lru_cache(maxsize=4096)
def _of_layer(layer: Any, setup: Setup, dims: Dims, kinds: tuple[Held, ...]) -> tuple[int, tuple[Portion, ...]]:
    """Bytes of one copy of a layer that each rank has whole, and portions of what ranks share."""
    found = [(kind, portions_of(layer, setup, dims, kind.widths, experts_apart=kind.is_shared)) for kind in kinds]
    whole = sum(portion.exact for kind, portions in found if not kind.is_shared for portion in portions)
    return whole, tuple(portion for kind, portions in found if kind.is_shared for portion in portions)


@lru_cache(maxsize=1024)
def _lines(layout: MegatronLayout, network: Network, setup: Setup, kinds: tuple[Held, ...]) -> tuple[Line, ...]:
    """Rows of what is held beside the parameters."""
    lines = []
    for name, category, widths, source, is_shared in kinds:
        for portion in portions(network, setup, widths, experts_apart=is_shared):
            group, members, each, exact, _, experts = portion
            size = layout.size(portion, group.copies, is_shared=is_shared)
            over = (layout.expert_shards if experts else layout.shards) if is_shared and layout.distributed else 1
            label = f"{name}/{group.place}" + ("/experts" if experts else "")
            text = partial(divided_text, group, members, each, over, size - group.copies * exact // over)
            lines.append(Line(label, category, size, text, source))
    return tuple(lines)


# -- buffers -----------------------------------------------------------------------------------------------------------------
def padding_of(layout: MegatronLayout, network: Network, setup: Setup) -> int:
    """Elements of the buffers that belong to no parameter."""
    return sum(gaps(network, setup, experts, lcm(over, 128), layout.bucket) for experts, over in ((False, layout.shards), (True, layout.expert_shards)))


def _dealt(layout: MegatronLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    """Whole tensors, sorted by size, to the ranks and back again (optimizer/layer_wise_optimizer.py _shard_params_ping_pong): the last rank's."""
    total = {False: 0, True: 0}
    for experts, over in ((False, layout.shards), (True, layout.expert_shards)):
        turns = [*range(over), *range(over)[::-1]]
        ordered = sorted((p for p in tensors(network, setup) if is_expert(p) == experts), key=lambda p: elements(p.dims)[0])
        total[experts] = sum(layout.states_kept.width(p) * elements(p.dims)[0] for place, p in enumerate(ordered) if turns[place % len(turns)] == over - 1)
    return tuple(
        Line(f"optimizer/{name}", "optimizer_state", size, plain("states", states=size), "Megatron-LM core/optimizer/layer_wise_optimizer.py")
        for name, size in (("dense", total[False]), ("experts", total[True]))
        if size
    )
