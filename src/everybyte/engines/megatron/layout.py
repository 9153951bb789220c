"""What lives from step to step on one rank: weights, main gradients, master copies and moments, whole or divided by the distributed optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from math import lcm

from msgspec.structs import replace

from everybyte.basics.dtypes import FP32, DType
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div, round_up
from everybyte.layers.network import Network
from everybyte.layers.setup import Setup
from everybyte.layers.size import elements
from everybyte.layers.tape import Parameter
from everybyte.ledger.build import Line, Text, plain
from everybyte.ledger.entry import Category
from everybyte.models.count import tensors
from everybyte.rules.layout import Layout, Moment
from everybyte.rules.recipe import Recipe
from everybyte.rules.static import Group, groups, weight_lines
from everybyte.rules.static_texts import gradients_text
from everybyte.rules.step import Course

BUFFERS = "Megatron-LM core/distributed/param_and_grad_buffer.py, core/optimizer/param_layout.py"
OPTIMIZER = "Megatron-LM core/optimizer/optimizer.py, distrib_optimizer.py"
WIDENED = "Megatron-LM core/optimizer/optimizer.py `main_grad.float()`: lives until zero_grad of the next step"
LEFT = "Megatron-LM core/transformer/transformer_block.py `input_tensor`, core/pipeline_parallel/schedules.py `retain_grad`"
TRANSIT = (
    "Megatron-LM core/pipeline_parallel/schedules.py: tensors received ahead and gradients on their way; two (1F1B) or three (interleaved) were there "
    "in 24 runs of Megatron-LM's functional tests, within 1 % of the peak"
)
DEFERRED = "Megatron-LM core/tensor_parallel/layers.py grad_output_buffer: logits' gradient and input of each micro-batch, up to wgrad_deferral_limit"
FETCHED = "Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py"
FP8_COPIES = "TransformerEngine pytorch/module/base.py get_weight_workspace"
HOST = "Megatron-LM core/optimizer/cpu_offloading/hybrid_optimizer.py HybridDeviceOptimizer: pinned copies in fp32"
ALIGNED = 64
"""Elements to which the start of each parameter in a buffer is padded."""


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


def is_matrix(p: Parameter) -> bool:
    """Whether Muon steps a parameter itself (optimizer/emerging_optimizers.py: two dimensions, not the embedding or the head)."""
    return len(p.dims) == 2 and not any(word in p.name for word in ("embeddings", "output_layer"))


def is_expert(p: Parameter) -> bool:
    """Whether a parameter belongs to routed experts: its gradients and states lie over the ranks that hold the same experts."""
    return ".experts." in f".{p.name}"


def is_fp8(p: Parameter) -> bool:
    """Whether a parameter is multiplied in fp8: weights of linear layers but the head and the router."""
    return p.name.endswith("weight") and len(p.dims) == 2 and not any(word in p.name for word in ("embeddings", "output_layer", "router"))


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
    whole_tensors: bool = False
    """dist_muon without a layout: whole tensors are dealt out to the ranks."""
    hidden: int = 0
    """Bytes of the hidden states that one micro-batch sends to the next stage."""
    received: int = 0
    """Chunks of this rank that receive hidden states from another rank."""
    deferred: int = 0
    """Bytes of logits' gradients and head inputs that wait for the head's weight gradient (defer_embedding_wgrad_compute)."""
    fetched: int = 0
    """Bytes that one layer keeps in host memory. While a module goes back, the tensors of the same module one layer before are fetched, so that
    there is always a whole layer's beside those of the module itself (pipeline_parallel/fine_grained_activation_offload.py bulk_reload)."""
    in_transit: int = 0
    """Hidden states and gradients that are being sent or received beside a micro-batch that runs."""

    def over(self, p: Parameter) -> int:
        """Ranks over which the states of a parameter lie."""
        if not self.distributed:
            return 1
        return self.expert_shards if is_expert(p) else self.shards

    def weights(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Weights: tensors of their own, or buffers with padding, and fp8 copies."""
        return _weights(self, network, recipe.setup)

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The main gradients: one contiguous buffer of each kind, always there."""
        return _main_gradients(self, network, recipe.setup)

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The main gradients, fp32 copies of them, and what the pipeline leaves."""
        return (*_main_gradients(self, network, recipe.setup), *_wide_copies(self, network, recipe.setup), *self._left())

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Master copies and moments."""
        return () if self.on_host else _states(self, network, recipe.setup)

    def host(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """What lies in host memory: fp32 copies of this rank's part of the weights and of their gradients, and moments."""
        if not self.on_host:
            return ()

        def copies(p: Parameter) -> tuple[int, ...]:
            return (4, 4)

        return (
            *_shared(self, network, recipe.setup, "host/weights and gradients", "optimizer_state", copies, HOST),
            *_shared(self, network, recipe.setup, "host/optimizer", "optimizer_state", lambda p: (self.states_kept.moment.block_bytes,) * 2, HOST),
        )

    def beside(self, course: Course, index: int, moment: Moment) -> tuple[Line, ...]:
        """What the pipeline sends and receives meanwhile, and what the head puts off."""
        return (*self._in_transit(), *self._deferred(), *(self._fetched() if moment == "backward" else ()))

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
        return replace(self, hidden=0, received=0, in_transit=0, deferred=0, fetched=0)

    @property
    def in_step(self) -> MegatronLayout:
        """What of it the highest instant of a layer depends on."""
        return MegatronLayout(fetched=self.fetched)

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
@lru_cache(maxsize=1024)
def _weights(layout: MegatronLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    lines: list[Line] = []
    if layout.distributed:
        lines += _each(layout, network, setup, "weights", "parameter", lambda p: setup.weights.block_bytes, BUFFERS)
        lines += _padding(layout, network, setup, "weights", "parameter", setup.weights)
    else:
        lines += weight_lines(network, setup, layout)
    if layout.fp8_copies:
        lines += _each(layout, network, setup, "fp8 copies", "parameter", lambda p: 2 * is_fp8(p), FP8_COPIES)
    return tuple(lines)


@lru_cache(maxsize=1024)
def _main_gradients(layout: MegatronLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    lines = list(_each(layout, network, setup, "gradients", "gradient", lambda p: layout.gradient.block_bytes, BUFFERS))
    if layout.distributed:
        lines += _padding(layout, network, setup, "gradients", "gradient", layout.gradient)
    return tuple(lines)


@lru_cache(maxsize=1024)
def _wide_copies(layout: MegatronLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    if not layout.widens:
        return ()
    return tuple(_shared(layout, network, setup, "wide gradients", "gradient", lambda p: (4,), WIDENED))


@lru_cache(maxsize=1024)
def _states(layout: MegatronLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    kept = layout.states_kept
    if layout.whole_tensors:
        return _dealt(layout, network, setup)

    def moments(p: Parameter) -> tuple[int, ...]:
        return (kept.moment.block_bytes,) * (1 if kept.muon and is_matrix(p) else 2)

    return (
        *_shared(layout, network, setup, "optimizer", "optimizer_state", moments, OPTIMIZER),
        *_shared(layout, network, setup, "master", "optimizer_state", lambda p: (kept.master,), OPTIMIZER),
    )


def _each(layout: Layout, network: Network, setup: Setup, name: str, category: Category, width: Callable[[Parameter], int], source: str) -> Iterator[Line]:
    """Numbers of so many bytes each, close together."""
    for group in groups(network, setup, layout):
        for each, members in by_width(group.trained, width):
            size = each * numel_of(group, members)
            if size:
                yield Line(f"{name}/{group.place}", category, size, partial(divided_text, group, members, each, 1, 0), source)


def _shared(
    layout: MegatronLayout, network: Network, setup: Setup, name: str, category: Category, widths: Callable[[Parameter], tuple[int, ...]], source: str
) -> Iterator[Line]:
    """Numbers beside each parameter: this rank's part of them, or whole tensors in multiples of 512 bytes."""
    for group in groups(network, setup, layout):
        for key, members in by_width(group.trained, lambda p: sum(widths(p)) * 2**20 + layout.over(p)):
            each, over = key >> 20, key % 2**20
            if not each:
                continue
            exact = each * numel_of(group, members)
            size = ceil_div(exact, over)
            if not layout.distributed:
                size = group.copies * sum(p.count * round_up(width * elements(p.dims)[0], 512) for p in members for width in widths(p))
            label = f"{name}/{group.place}" + ("/experts" if is_expert(members[0]) else "")
            yield Line(label, category, size, partial(divided_text, group, members, each, over, size - exact // over), source)


def by_width(members: Iterable[Parameter], width: Callable[[Parameter], int]) -> list[tuple[int, tuple[Parameter, ...]]]:
    """Members by a width of theirs."""
    found: dict[int, list[Parameter]] = {}
    for p in members:
        found.setdefault(width(p), []).append(p)
    return [(each, tuple(parts)) for each, parts in found.items()]


def numel_of(group: Group, members: Sequence[Parameter]) -> int:
    """Numbers of members in all copies of their group."""
    return group.copies * sum(p.numel for p in members)


def divided_text(group: Group, members: tuple[Parameter, ...], each: int, over: int, rest: int) -> Text:
    """`32·4·(A·h + 2·K·h)`, on one of D ranks divided by D; what does not divide or is rounded up is named."""
    formula, symbols = gradients_text(members, DType("", 1, each), group.copies, 0, group.letters)
    if over > 1:
        exact = each * numel_of(group, members)
        unit = exact // over * over
        symbols = {**symbols, "D": over}
        formula = f"({formula})/D" if unit == exact else f"({formula} - rest)/D"
        symbols |= {"rest": exact - unit} if unit != exact else {}
    return Text(f"{formula} + rounding", {**symbols, "rounding": rest}) if rest else Text(formula, symbols)


# -- buffers -----------------------------------------------------------------------------------------------------------------
def _padding(layout: MegatronLayout, network: Network, setup: Setup, name: str, category: Category, kind: DType) -> Iterator[Line]:
    """Gaps that bring every parameter to a multiple of 64 elements, and each bucket to one of lcm(D, 128)."""
    numel = padding_of(layout, network, setup)
    if numel:
        yield Line(f"{name}/padding", category, kind.nbytes(numel), plain("e·P_pad", e=kind.block_bytes, P_pad=numel), BUFFERS)


@lru_cache(maxsize=1024)
def padding_of(layout: MegatronLayout, network: Network, setup: Setup) -> int:
    """Elements of the buffers that belong to no parameter. Buckets are filled from the last parameter to the first."""
    total = 0
    every = [p for p in tensors(network, setup) if not p.buffer]
    for experts, over in ((False, layout.shards), (True, layout.expert_shards)):
        end, begun, numel = 0, 0, 0
        for p in reversed(every):
            if is_expert(p) != experts:
                continue
            one = elements(p.dims)[0]
            end, numel = round_up(end, ALIGNED) + one, numel + one
            if layout.bucket and end - begun >= layout.bucket:
                end = begun = round_up(end, lcm(over, 128))
        total += (round_up(end, lcm(over, 128)) if end > begun else end) - numel
    return total


def _dealt(layout: MegatronLayout, network: Network, setup: Setup) -> tuple[Line, ...]:
    """Whole tensors, sorted by size, to the ranks and back again (optimizer/layer_wise_optimizer.py _shard_params_ping_pong): the last rank's."""
    total = {False: 0, True: 0}
    for experts, over in ((False, layout.shards), (True, layout.expert_shards)):
        turns = [*range(over), *range(over)[::-1]]
        ordered = sorted((p for p in tensors(network, setup) if is_expert(p) == experts), key=lambda p: elements(p.dims)[0])
        total[experts] = sum(
            layout.states_kept.width(p) * elements(p.dims)[0] for place, p in enumerate(ordered) if turns[place % len(turns)] == over - 1
        )  # fmt: skip
    return tuple(
        Line(f"optimizer/{name}", "optimizer_state", size, plain("states", states=size), "Megatron-LM core/optimizer/layer_wise_optimizer.py")
        for name, size in (("dense", total[False]), ("experts", total[True])) if size
    )  # fmt: skip
