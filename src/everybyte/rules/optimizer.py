"""What optimizers keep for each parameter, and what a step needs for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from everybyte.basics.citation import Citation
from everybyte.basics.dtypes import FP32, DType
from everybyte.basics.errors import Unsupported, did_you_mean
from everybyte.basics.units import round_up
from everybyte.rules.optimizer_names import NAMES, SPELLINGS, Named, squeeze
from everybyte.rules.optimizer_states import (
    Shape,
    State,
    any_precision,
    blockwise,
    cover,
    factored,
    factored_wide,
    mini,
    moments,
    muon,
    preconditioned,
    projected,
    torchao,
    wide_moments,
)

MIN_BLOCK = 512
"""Allocator granularity: every state and temporary is a tensor of its own."""


class Tensor(NamedTuple):
    """A trained tensor as the optimizer steps it."""

    shape: Shape
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return self.dtype.nbytes(prod(self.shape))


Stages = tuple[tuple[float, float], ...]
"""(of the tensor stepped before, of this one): tensors of their size that live at once. A Python loop drops the earlier tensor's temporaries
only when their names are bound again."""


@dataclass(frozen=True, slots=True)
class Rule:
    """State of one parameter, and the temporaries of a step. A fused step needs none."""

    state: State
    citation: Citation
    formula: str = ""
    """Of the state, P numbers of e bytes."""
    foreach: float | None = None
    """Multi-tensor step: temporaries in units of all trained bytes; None: there is no such step."""
    foreach_largest: tuple[float, int] = (0.0, 0)
    """... and for the largest tensor: in units of its bytes, and bytes a number."""
    loop: Stages = ()
    wide_loop: Stages = ()
    """Stages of 16-bit tensors, where they differ."""
    working: Callable[[Tensor], int] | None = None
    """Bytes while one tensor is stepped, where they are not a multiple of it."""
    fused: bool = False


def newton_schulz(tensor: Tensor) -> int:
    """Muon (torch/optim/_muon.py): the update, and in bf16 the iterate twice and two squares of the shorter side."""
    if len(tensor.shape) != 2:
        return 2 * tensor.nbytes
    short, long = sorted(tensor.shape)
    return tensor.nbytes + 2 * (2 * short * long) + 2 * (2 * short * short)


def decomposed(tensor: Tensor) -> int:
    """GaLore's new projector (galore_projector.py): the gradient in fp32 and its singular vectors."""
    if len(tensor.shape) != 2:
        return 2 * tensor.nbytes
    short, long = sorted(tensor.shape)
    return 4 * (short * long + short * short + short * long)


def _torch(file: str) -> Citation:
    return Citation(f"pytorch 2.13 torch/optim/{file}; state and temporaries counted on the CPU (tests/oracle/test_optimizers.py)")


BNB = Citation("bitsandbytes 0.50 optim/optimizer.py: under 4,096 numbers fp32; else 8 bit with one fp32 for 256; the step is one kernel a tensor")
TORCHAO = Citation("torchao optim/adam.py: quantised when a tensor has 4,096 numbers and fills whole blocks; the step is compiled")
HF_ADAFACTOR = Citation("transformers 5.24 optimization.py Adafactor: statistics in fp32; 16-bit gradients and weights are copied to fp32")
LOW_RANK = Citation("Zhao et al. 2024 (GaLore), Zhu et al. 2024 (APOLLO): moments of a gradient projected to rank r")
LOOP_ONE: Stages = ((1, 1),)
ADAM_STEP: Stages = ((1, 2),)

RULES: dict[str, Rule] = {
    "none": Rule(moments(0), Citation("no optimizer"), "0"),
    "sgd": Rule(moments(0), _torch("sgd.py"), "0", foreach=0.0, fused=True),
    "sgd-momentum": Rule(moments(1), _torch("sgd.py"), "P·e", foreach=0.0, fused=True),
    "adam": Rule(moments(2), _torch("adam.py"), "2·P·e", foreach=1.0, loop=ADAM_STEP, fused=True),
    "adamw": Rule(moments(2), _torch("adamw.py"), "2·P·e", foreach=1.0, loop=ADAM_STEP, fused=True),
    "adamw-amsgrad": Rule(moments(3), _torch("adamw.py"), "3·P·e", foreach=1.0, loop=ADAM_STEP, fused=True),
    "nadam": Rule(moments(2), _torch("nadam.py"), "2·P·e", foreach=1.0, loop=ADAM_STEP),
    "radam": Rule(moments(2), _torch("radam.py"), "2·P·e", foreach=1.0, loop=((0, 2),)),
    "adamax": Rule(moments(2), _torch("adamax.py"), "2·P·e", foreach=1.0, loop=((0, 1),)),
    "rmsprop": Rule(moments(1), _torch("rmsprop.py"), "P·e", foreach=1.0, loop=LOOP_ONE),
    "adagrad": Rule(moments(1), _torch("adagrad.py"), "P·e", foreach=2.0, loop=LOOP_ONE, fused=True),
    "adadelta": Rule(moments(2), _torch("adadelta.py"), "2·P·e", foreach=2.0, loop=((2, 1), (1, 2))),
    "rprop": Rule(moments(2), _torch("rprop.py"), "2·P·e", foreach=1.0, foreach_largest=(1.0, 1), loop=((0, 3),)),
    "asgd": Rule(moments(1), _torch("asgd.py"), "P·e", foreach=1.0),
    "adafactor": Rule(factored, _torch("_adafactor.py"), "(rows+cols)·e", foreach=1.0, loop=LOOP_ONE),
    "adafactor-hf": Rule(factored_wide, HF_ADAFACTOR, "4·(rows+cols)", loop=((1, 2),), wide_loop=((2, 8),)),
    "muon": Rule(muon, _torch("_muon.py"), "P·e on matrices, 2·P·e elsewhere", working=newton_schulz),
    "adamw-anyprecision": Rule(any_precision, Citation("torchdistx AnyPrecisionAdamW with the Trainer's defaults"), "6·P", loop=ADAM_STEP),
    "lion": Rule(moments(1), Citation("Chen et al. 2023, algorithm 2"), "P·e", foreach=1.0, loop=LOOP_ONE),
    "sm3": Rule(cover, Citation("Anil et al. 2019, section 3"), "Σ dims·e", loop=LOOP_ONE),
    "shampoo": Rule(preconditioned(2, 0), Citation("Gupta et al. 2018, algorithm 1, with inverse roots"), "2·(m²+n²)·e", loop=LOOP_ONE),
    "soap": Rule(preconditioned(2, 2), Citation("Vyas et al. 2024, algorithm 3"), "2·P·e + 2·(m²+n²)·e", loop=((0, 2),)),
    "adam-mini": Rule(mini, Citation("Zhang et al. 2024: one second moment a neuron"), "P·e + rows·e", loop=LOOP_ONE),
    "grokadamw": Rule(moments(3), Citation("GrokAdamW: two moments and the slow gradient"), "3·P·e", loop=ADAM_STEP),
    "schedule-free": Rule(moments(2), Citation("Defazio et al. 2024: z and the second moment"), "2·P·e", foreach=1.0, loop=LOOP_ONE),
    "schedule-free-sgd": Rule(moments(1), Citation("Defazio et al. 2024: z"), "P·e", foreach=0.0),
    "lomo": Rule(moments(0), Citation("Lv et al. 2023: the update is fused into backward"), "0"),
    "adalomo": Rule(factored_wide, Citation("Lv et al. 2023 (AdaLomo): factored second moments"), "4·(rows+cols)", loop=((0, 2),), wide_loop=((0, 4),)),
    "adamw-8bit": Rule(blockwise(2), BNB, "2·(P + 4·ceil(P/256))"),
    "adamw-32bit": Rule(wide_moments(2), BNB, "8·P"),
    "lion-8bit": Rule(blockwise(1), BNB, "P + 4·ceil(P/256)"),
    "lion-32bit": Rule(wide_moments(1), BNB, "4·P"),
    "ademamix-8bit": Rule(blockwise(2, doubled=1), BNB, "3·(P + 4·ceil(P/256))"),
    "ademamix-32bit": Rule(wide_moments(3), BNB, "12·P"),
    "rmsprop-8bit": Rule(blockwise(1), BNB, "P + 4·ceil(P/256)"),
    "rmsprop-32bit": Rule(wide_moments(1), BNB, "4·P"),
    "sgd-8bit": Rule(blockwise(1), BNB, "P + 4·ceil(P/256)"),
    "adagrad-8bit": Rule(blockwise(1), BNB, "P + 4·ceil(P/256)"),
    "adamw-torchao-8bit": Rule(torchao(8, 256, 256), TORCHAO, "2·(P + 4·P/256)"),
    "adamw-torchao-4bit": Rule(torchao(4, 128, 16), TORCHAO, "2·(P/2 + 4·P/128)"),
    "adamw-torchao-fp8": Rule(torchao(8, 256, 0), TORCHAO, "2·(P + 4·P/256)"),
}  # fmt: skip
"""Optimizers by name; a new one is one row."""

PROJECTED: dict[str, tuple[State, bool, int]] = {
    "galore": (moments(2), True, 128), "galore-8bit": (blockwise(2), True, 128), "galore-adafactor": (factored, True, 128),
    "apollo": (moments(2), False, 128), "apollo-mini": (moments(2), False, 1),
}  # fmt: skip
"""name -> moments of the projected gradient, whether the projector is kept, rank where the job names none."""

QUANTISED = {
    (8, "bitsandbytes"): {"adam": "adamw-8bit", "adamw": "adamw-8bit", "lion": "lion-8bit", "rmsprop": "rmsprop-8bit", "galore": "galore-8bit"},
    (8, "torchao"): {"adam": "adamw-torchao-8bit", "adamw": "adamw-torchao-8bit", "adamw-8bit": "adamw-torchao-8bit"},
    (4, ""): {"adam": "adamw-torchao-4bit", "adamw": "adamw-torchao-4bit"},
}
"""(bits, library) -> plain optimizer -> the one with states of these bits; bitsandbytes where no library is named."""


def named(name: str, *, bits: int | None = None, library: str = "", path: str = "train.optimizer.name") -> Named:
    """What a name stands for. `bits` of the states pick the 8- or 4-bit form. Raises Unsupported with the nearest names."""
    squeezed = squeeze(name)
    found = NAMES.get(squeezed) or next((Named(key) for key in (*RULES, *PROJECTED) if squeeze(key) == squeezed), None)
    if found is None:
        raise Unsupported(path, f"{name!r} is not known{did_you_mean(name.casefold().replace('_', '-'), [*RULES, *PROJECTED, *SPELLINGS])}")
    forms = QUANTISED.get((bits or 8, library if bits != 4 else ""), {}) if library == "torchao" or bits else {}
    if bits == 8 and not forms:
        forms = QUANTISED[8, "bitsandbytes"]
    return found._replace(key=forms.get(found.key, found.key))


def rule(key: str, rank: int | None = None) -> Rule:
    """The rule behind a key of RULES or PROJECTED."""
    if key in PROJECTED:
        moment, keep, usual = PROJECTED[key]
        return Rule(projected(rank or usual, moment, keep_projector=keep), LOW_RANK, "2·r·n + m·r" if keep else "2·r·n", working=decomposed if keep else None,
                    loop=() if keep else LOOP_ONE)  # fmt: skip
    return RULES[key]


MANAGED_FROM = 100_000
"""Paged states of tensors with at least so many numbers are managed memory, outside PyTorch's allocator (bitsandbytes get_state_buffer)."""
OUTER = ("embed", "wte", "wpe", "lm_head", "embed_out", "output", "score", "classifier", "shared")
"""First parts of names of the tensors outside the blocks: not projected, not orthogonalised."""


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
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
    """States live in unified memory and may leave the device."""
    in_backward: bool = False

    @property
    def rule(self) -> Rule:
        """State and temporaries."""
        return rule(self.name, self.rank)

    def of(self, name: str) -> Rule:
        """The rule of the parameter `name`: projected and orthogonalised steps leave the tensors outside the blocks to AdamW."""
        if self.name not in PROJECTED and self.name != "muon":
            return self.rule
        outer = any(part.startswith(OUTER) for part in name.split("."))
        return RULES["adamw"] if outer else self.rule

    def state_tensors(self, shape: Shape, weight: DType, name: str = "") -> tuple[int, ...]:
        """Bytes of each state tensor of one trained tensor that the allocator serves; its master copy left out."""
        sizes = self.of(name).state(shape, self.state or self.master or weight)
        if self.paged and prod(shape) >= MANAGED_FROM:
            # scales stay ordinary tensors
            sizes = tuple(size for size in sizes if size < prod(shape))
        return (*sizes, 4) if self.impl == "fused" and sizes else sizes

    def temporary_bytes(self, total: int, tensors: Sequence[Tensor]) -> int:
        """Temporaries of a step over `total` bytes of trained tensors; `tensors` in the order of the step, equal ones at most twice in a row."""
        found = self.rule
        if (self.impl == "fused" and found.fused) or not tensors:
            return 0
        if self.impl == "foreach" and found.foreach is not None and not self.in_backward:
            largest = max(tensors, key=lambda t: t.nbytes)
            factor, flags = found.foreach_largest
            return int(found.foreach * total + factor * largest.nbytes) + flags * prod(largest.shape)
        return max(self._one(found, before, tensor) for before, tensor in zip((None, *tensors[:-1]), tensors, strict=True))

    def _one(self, found: Rule, before: Tensor | None, tensor: Tensor) -> int:
        """Temporaries while one tensor is stepped."""
        if found.working is not None:
            return found.working(tensor)
        stages = found.wide_loop if found.wide_loop and tensor.dtype.bits == 16 else found.loop
        earlier = before.nbytes if before is not None and not self.in_backward else 0
        return max((int(left * earlier + right * tensor.nbytes) for left, right in stages), default=0)


def rounded(sizes: Sequence[int]) -> int:
    """The sum of tensors as the allocator counts them."""
    return sum(round_up(size, MIN_BLOCK) for size in sizes)


MASTER = FP32
"""Usual type of a master copy."""
