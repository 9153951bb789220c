"""What optimizers keep for each parameter, and what a step needs for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from everybyte.basics.citation import Citation
from everybyte.basics.dtypes import DType
from everybyte.basics.errors import Unsupported, did_you_mean
from everybyte.basics.record import Record
from everybyte.rules.optimizers.names import NAMES, SPELLINGS, Named, squeeze
from everybyte.rules.optimizers.states import (
    Shape,
    State,
    blockwise,
    confident,
    cover,
    factored,
    mini,
    moments,
    muon,
    preconditioned,
    projected,
    torchao,
    wide_moments,
)


class Tensor(NamedTuple):
    """A trained tensor as the optimizer steps it."""

    shape: Shape
    dtype: DType
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return self.dtype.nbytes(prod(self.shape))


class Temporary(NamedTuple):
    """What a step makes for a moment, and how that is worked out."""

    nbytes: int
    formula: str = "0"
    symbols: dict[str, int] = {}  # noqa: RUF012 - a NamedTuple's default is never written to


Stages = tuple[tuple[int, int], ...]
"""(of the tensor stepped before, of this one): tensors of their size that live at once. A Python loop drops the earlier tensor's temporaries
only when their names are bound again."""


class Rule(Record, frozen=True):
    """State of one parameter, and the temporaries of a step. A fused step needs none."""

    state: State
    citation: Citation
    foreach: int | None = None
    """Multi-tensor step: temporaries in units of all trained bytes; None: there is no such step."""
    foreach_largest: tuple[int, int] = (0, 0)
    """... and for the largest tensor: in units of its bytes, and bytes a number."""
    loop: Stages = ()
    wide_loop: Stages = ()
    """Stages of 16-bit tensors, where they differ."""
    working: Callable[[Tensor], Temporary] | None = None
    """While one tensor is stepped, where that is not a multiple of it."""
    fused: bool = False


def newton_schulz(tensor: Tensor) -> Temporary:
    """Muon (torch/optim/_muon.py): the update, and in bf16 the iterate twice and two squares of the shorter side."""
    if len(tensor.shape) != 2:
        return Temporary(2 * tensor.nbytes, "2·w", {"w": tensor.nbytes})
    m, n = sorted(tensor.shape)
    return Temporary(tensor.nbytes + 4 * m * n + 4 * m * m, "w + 4·m·n + 4·m·m", {"w": tensor.nbytes, "m": m, "n": n})


def decomposed(tensor: Tensor) -> Temporary:
    """GaLore's new projector (galore_projector.py): the gradient in fp32 and its singular vectors."""
    if len(tensor.shape) != 2:
        return Temporary(2 * tensor.nbytes, "2·w", {"w": tensor.nbytes})
    m, n = sorted(tensor.shape)
    return Temporary(4 * (2 * m * n + m * m), "4·(2·m·n + m·m)", {"m": m, "n": n})


def _torch(file: str) -> Citation:
    return Citation(f"pytorch 2.13 torch/optim/{file}; state and temporaries counted on the CPU (tests/oracle/test_optimizers.py)")


BNB = Citation("bitsandbytes 0.50 optim/optimizer.py: under 4,096 numbers fp32; else 8 bit with one fp32 for 256; the step is one kernel a tensor")
TORCHAO = Citation("torchao optim/adam.py: quantised when a tensor has 4,096 numbers and fills whole blocks; the step is compiled")
HF_ADAFACTOR = Citation("transformers 5.24 optimization.py Adafactor: statistics in fp32; 16-bit gradients and weights are copied to fp32")
LOW_RANK = Citation("Zhao et al. 2024 (GaLore), Zhu et al. 2024 (APOLLO): moments of a gradient projected to rank r")
PRODIGY = Citation("prodigyopt 1.1 prodigy.py: s and the first weights p0 beside both moments (slice_p 1)")
CAME = Citation("came-pytorch 0.1 CAME.py: the first moment; rows and columns of the second moment and of its residual")
LOOP_ONE: Stages = ((1, 1),)
ADAM_STEP: Stages = ((1, 2),)

BY_BLOCK = "badam"
RULES: dict[str, Rule] = {
    "none": Rule(moments(0), Citation("no optimizer")),
    "sgd": Rule(moments(0), _torch("sgd.py"), foreach=0, fused=True),
    "sgd-momentum": Rule(moments(1), _torch("sgd.py"), foreach=0, fused=True),
    "adam": Rule(moments(2), _torch("adam.py"), foreach=1, loop=ADAM_STEP, fused=True),
    "adamw": Rule(moments(2), _torch("adamw.py"), foreach=1, loop=ADAM_STEP, fused=True),
    "adamw-amsgrad": Rule(moments(3), _torch("adamw.py"), foreach=1, loop=ADAM_STEP, fused=True),
    "nadam": Rule(moments(2), _torch("nadam.py"), foreach=1, loop=ADAM_STEP),
    "radam": Rule(moments(2), _torch("radam.py"), foreach=1, loop=((0, 2),)),
    "adamax": Rule(moments(2), _torch("adamax.py"), foreach=1, loop=((0, 1),)),
    "rmsprop": Rule(moments(1), _torch("rmsprop.py"), foreach=1, loop=LOOP_ONE),
    "adagrad": Rule(moments(1), _torch("adagrad.py"), foreach=2, loop=LOOP_ONE, fused=True),
    "adadelta": Rule(moments(2), _torch("adadelta.py"), foreach=2, loop=((2, 1), (1, 2))),
    "rprop": Rule(moments(2), _torch("rprop.py"), foreach=1, foreach_largest=(1, 1), loop=((0, 3),)),
    "asgd": Rule(moments(1), _torch("asgd.py"), foreach=1),
    "adafactor": Rule(factored(), _torch("_adafactor.py"), foreach=1, loop=LOOP_ONE),
    "adafactor-hf": Rule(factored(wide=True), HF_ADAFACTOR, loop=((1, 2),), wide_loop=((2, 8),)),
    "muon": Rule(muon(), _torch("_muon.py"), working=newton_schulz),
    "adamw-anyprecision": Rule(wide_moments(4, 2), Citation("torchdistx AnyPrecisionAdamW with the Trainer's defaults"), loop=ADAM_STEP),
    "lion": Rule(moments(1), Citation("Chen et al. 2023, algorithm 2"), foreach=1, loop=LOOP_ONE),
    "sm3": Rule(cover(), Citation("Anil et al. 2019, section 3"), loop=LOOP_ONE),
    "shampoo": Rule(preconditioned(2, 0), Citation("Gupta et al. 2018, algorithm 1, with inverse roots"), loop=LOOP_ONE),
    "soap": Rule(preconditioned(2, 2), Citation("Vyas et al. 2024, algorithm 3"), loop=((0, 2),)),
    "adam-mini": Rule(mini(), Citation("Zhang et al. 2024: one second moment a neuron"), loop=LOOP_ONE),
    "prodigy": Rule(moments(4), PRODIGY, loop=LOOP_ONE),
    "came": Rule(confident(), CAME, loop=((2, 3),), wide_loop=((4, 8),)),
    "adopt": Rule(moments(2), Citation("Taniguchi et al. 2024 (ADOPT), algorithm 2"), foreach=2, loop=ADAM_STEP),
    "lamb": Rule(moments(2), Citation("You et al. 2020 (LAMB), algorithm 2"), foreach=1, loop=ADAM_STEP),
    "adan": Rule(moments(4), Citation("Xie et al. 2022 (Adan), algorithm 1: three moments and the last gradient"), foreach=1, loop=ADAM_STEP),
    "adabelief": Rule(moments(2), Citation("Zhuang et al. 2020 (AdaBelief), algorithm 2"), foreach=2, loop=ADAM_STEP),
    "sophia": Rule(moments(2), Citation("Liu et al. 2023 (Sophia), algorithm 3: the first moment and the Hessian's diagonal"), loop=ADAM_STEP),
    "tiger": Rule(moments(1), Citation("Su 2023 (Tiger): one moment, its sign is the update"), foreach=1, loop=LOOP_ONE),
    "grokadamw": Rule(moments(3), Citation("GrokAdamW: two moments and the slow gradient"), loop=ADAM_STEP),
    "schedule-free": Rule(moments(2), Citation("Defazio et al. 2024: z and the second moment"), foreach=1, loop=LOOP_ONE),
    "schedule-free-sgd": Rule(moments(1), Citation("Defazio et al. 2024: z"), foreach=0),
    BY_BLOCK: Rule(moments(2), Citation("Luo et al. 2024 (BAdam): AdamW in fp32 on one block at a time"), foreach=1, loop=ADAM_STEP),
    "lomo": Rule(moments(0), Citation("Lv et al. 2023: the update is fused into backward")),
    "adalomo": Rule(factored(wide=True), Citation("Lv et al. 2023 (AdaLomo): factored second moments"), loop=((0, 2),), wide_loop=((0, 4),)),
    "adamw-8bit": Rule(blockwise(1, 1), BNB),
    "adamw-32bit": Rule(wide_moments(4, 4), BNB),
    "lion-8bit": Rule(blockwise(1), BNB),
    "lion-32bit": Rule(wide_moments(4), BNB),
    "ademamix-8bit": Rule(blockwise(2, 1), BNB),
    "ademamix-32bit": Rule(wide_moments(8, 4), BNB),
    "rmsprop-8bit": Rule(blockwise(1), BNB),
    "rmsprop-32bit": Rule(wide_moments(4), BNB),
    "sgd-8bit": Rule(blockwise(1), BNB),
    "adagrad-8bit": Rule(blockwise(1), BNB),
    "adamw-torchao-8bit": Rule(torchao(8, 256, 256), TORCHAO),
    "adamw-torchao-4bit": Rule(torchao(4, 128, 16), TORCHAO),
    "adamw-torchao-fp8": Rule(torchao(8, 256, 0), TORCHAO),
}
"""Optimizers by name; a new one is one row."""


class Projection(NamedTuple):
    """A step on gradients of low rank."""

    moment: State
    """Of the projected gradient."""
    keeps_projector: bool
    rank: int
    """Where the job names none."""
    outer: str = "adamw"
    """The rule of the tensors outside the blocks."""


PROJECTED: dict[str, Projection] = {
    "galore": Projection(moments(2), True, 128),
    "galore-8bit": Projection(blockwise(1, 1), True, 128, "adamw-8bit"),
    "galore-adafactor": Projection(factored(), True, 128, "adafactor-hf"),
    "apollo": Projection(moments(2), False, 128),
    "apollo-mini": Projection(moments(2), False, 1),
}

QUANTISED = {
    (8, "bitsandbytes"): {"adam": "adamw-8bit", "adamw": "adamw-8bit", "lion": "lion-8bit", "rmsprop": "rmsprop-8bit", "galore": "galore-8bit"},
    (8, "torchao"): {"adam": "adamw-torchao-8bit", "adamw": "adamw-torchao-8bit", "adamw-8bit": "adamw-torchao-8bit"},
    (4, ""): {"adam": "adamw-torchao-4bit", "adamw": "adamw-torchao-4bit"},
}
"""(bits, library) -> plain optimizer -> the one with states of these bits; bitsandbytes where no library is named."""


PAGED = {"adam": "adamw-32bit", "adamw": "adamw-32bit", "lion": "lion-32bit"}
"""Plain optimizer -> bitsandbytes' one with states that can be paged."""


def named(name: str, *, bits: int | None = None, paged: bool = False, library: str = "", path: str = "train.optimizer.name") -> Named:
    """What a name stands for. `bits` of the states pick the 8- or 4-bit form, `paged` bitsandbytes. Raises Unsupported with the nearest names."""
    squeezed = squeeze(name)
    found = NAMES.get(squeezed) or next((Named(key) for key in (*RULES, *PROJECTED) if squeeze(key) == squeezed), None)
    if found is None:
        raise Unsupported(path, f"{name!r} is not known{did_you_mean(name.casefold().replace('_', '-'), [*RULES, *PROJECTED, *SPELLINGS])}")
    forms = QUANTISED.get((bits or 8, library if bits != 4 else ""), {}) if library == "torchao" or bits else {}
    if bits == 8 and not forms:
        forms = QUANTISED[8, "bitsandbytes"]
    elif paged and not forms:
        forms = PAGED
    return found._replace(key=forms.get(found.key, found.key), paged=found.paged or paged)


def rule(key: str, rank: int | None = None) -> Rule:
    """The rule behind a key of RULES or PROJECTED."""
    if key in PROJECTED:
        moment, keep, usual, _ = PROJECTED[key]
        state = projected(rank or usual, moment, keep_projector=keep)
        return Rule(state, LOW_RANK, loop=() if keep else LOOP_ONE, working=decomposed if keep else None)
    return RULES[key]


MANAGED_FROM = 100_000
"""Paged states of tensors with at least so many numbers are managed memory, outside PyTorch's allocator (bitsandbytes get_state_buffer)."""
OUTER = frozenset(("wte", "wpe", "lm_head", "score", "classifier", "shared"))
"""Modules outside the blocks, besides embeddings: not projected, not orthogonalised."""


class OptimizerPlan(Record, frozen=True):
    """How the step is run."""

    name: str = "adamw"
    """A key of RULES or PROJECTED."""
    impl: str = "foreach"
    """foreach, fused or for-loop."""
    state: DType | None = None
    """Type of the states; None: that of the parameter, or of its master copy."""
    master: DType | None = None
    """Type of a master copy beside 16-bit weights; None: there is none."""
    rank: int | None = None
    paged: bool = False
    """States live in unified memory and may leave the device; bitsandbytes alone can do that."""
    in_backward: bool = False

    @property
    def by_block(self) -> bool:
        """One block is trained at a time, with a master copy."""
        return self.name == BY_BLOCK

    @property
    def rule(self) -> Rule:
        """State and temporaries."""
        return rule(self.name, self.rank)

    def of(self, name: str) -> Rule:
        """The rule of the parameter `name`: projected and orthogonalised steps leave the tensors outside the blocks to AdamW."""
        if self.name not in PROJECTED and self.name != "muon":
            return self.rule
        other = PROJECTED[self.name].outer if self.name in PROJECTED else "adamw"
        outer = any(part in OUTER or part.startswith("embed") or part.endswith("embeddings") for part in name.split("."))
        return RULES[other] if outer else self.rule

    def orthogonalises(self, shape: Shape, name: str) -> bool:
        """Whether Muon steps a tensor: a matrix, or the joined matrices of experts, inside the blocks."""
        return self.name == "muon" and len(shape) > 1 and self.of(name) is self.rule

    def state_tensors(self, shape: Shape, weight: DType, name: str = "") -> tuple[int, ...]:
        """Bytes of each state tensor of one trained tensor that the allocator serves; its master copy left out."""
        sizes = self.of(name).state.tensors(shape, self.state or self.master or weight)
        if self._managed(shape):
            # scales stay ordinary tensors
            sizes = tuple(size for size in sizes if size < prod(shape))
        return (*sizes, 4) if self._counts_steps(name) and sizes else sizes

    def state_text(self, shape: Shape, name: str = "") -> str:
        """The sum of `state_tensors` as a formula."""
        text = self.of(name).state.text(shape)
        if self._managed(shape):
            scales = [part for part in text.split(" + ") if "ceil" in part]
            text = scales[0] if scales else "0"
        return f"{text} + 4" if self._counts_steps(name) and text != "0" else text

    def _managed(self, shape: Shape) -> bool:
        return self.paged and self.rule.citation is BNB and prod(shape) >= MANAGED_FROM

    def _counts_steps(self, name: str) -> bool:
        """A fused step reads the number of steps from the device (torch/optim/adamw.py _init_group)."""
        return self.impl == "fused" and self.of(name).fused and self.name not in ("sgd", "sgd-momentum")

    @property
    def in_place(self) -> bool:
        """Whether one kernel steps everything where it lies."""
        return self.impl == "fused" and self.rule.fused

    def temporary(self, total: int, tensors: Sequence[Tensor]) -> Temporary:
        """Temporaries of a step over `total` bytes of trained tensors; `tensors` in the order of the step, equal ones at most twice in a row."""
        found = self.rule
        if self.in_place or not tensors:
            return Temporary(0)
        if self.impl == "foreach" and found.foreach is not None and not self.in_backward:
            return _multi_tensor(found, total, max(tensors, key=lambda t: t.nbytes))
        pairs = zip((None, *tensors[:-1]), tensors, strict=True)
        return max((self._one(before, tensor) for before, tensor in pairs), key=lambda t: t.nbytes)

    def _one(self, before: Tensor | None, tensor: Tensor) -> Temporary:
        """Temporaries while one tensor is stepped: w its bytes, v those of the tensor before."""
        found = self.of(tensor.name)
        if found.working is not None:
            return found.working(tensor)
        v = before.nbytes if before is not None and not self.in_backward else 0
        w = tensor.nbytes
        stages = found.wide_loop if found.wide_loop and tensor.dtype.bits == 16 else found.loop
        left, right = max(stages, key=lambda stage: stage[0] * v + stage[1] * w, default=(0, 0))
        parts = [f"{count}·{letter}" for count, letter in ((left, "v"), (right, "w")) if count]
        return Temporary(left * v + right * w, " + ".join(parts) or "0", {"v": v, "w": w})


def _multi_tensor(found: Rule, total: int, largest: Tensor) -> Temporary:
    """Temporaries of a multi-tensor step: W bytes of all tensors; of the largest, w bytes and P numbers."""
    factor, flags = found.foreach_largest
    copies = found.foreach or 0
    numbers = prod(largest.shape)
    nbytes = copies * total + factor * largest.nbytes + flags * numbers
    if not factor:
        return Temporary(nbytes, f"{copies}·W", {"W": total})
    return Temporary(nbytes, f"{copies}·W + {factor}·w + {flags}·P", {"W": total, "w": largest.nbytes, "P": numbers})
