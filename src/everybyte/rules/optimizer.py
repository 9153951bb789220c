"""What optimizers keep for each parameter, and what a step needs for a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from everybyte.basics.citation import Citation
from everybyte.basics.dtypes import FP32, DType
from everybyte.basics.errors import Unsupported, did_you_mean
from everybyte.basics.units import ceil_div

Shape = tuple[int, ...]

TORCH = "pytorch 2.13 torch/optim/{}; state and temporaries counted on the CPU (tests/oracle)"
BNB = Citation("bitsandbytes optim/optimizer.py: tensors under 4,096 elements stay fp32; else 8 bit in blocks of 256 with one fp32 each")
TORCHAO = Citation("torchao optim/adam.py: quantised when a tensor has 4,096 elements and fills whole blocks")


@dataclass(frozen=True, slots=True)
class Rule:
    """State bytes of one parameter from its shape and its type, and the temporaries of a step.

    Temporaries: `foreach` in units of all trained bytes, `loop` in units of the largest trained tensor; fused steps need none.
    """

    state: Callable[[Shape, DType], int]
    citation: Citation
    foreach: float = 0.0
    loop: float = 0.0
    formula: str = ""


def moments(count: float) -> Callable[[Shape, DType], int]:
    """`count` tensors like the parameter, in its type."""
    return lambda shape, dtype: int(count * dtype.nbytes(prod(shape)))


def factored(shape: Shape, dtype: DType) -> int:
    """Adafactor: one row and one column statistic of the last two dimensions; a whole second moment for vectors."""
    if len(shape) < 2:
        return dtype.nbytes(prod(shape))
    lead = prod(shape[:-2])
    return dtype.nbytes(lead * shape[-1]) + dtype.nbytes(lead * shape[-2])


def cover(shape: Shape, dtype: DType) -> int:
    """SM3: one statistic an index of each dimension."""
    return dtype.nbytes(sum(shape))


def adam_8bit(shape: Shape, dtype: DType) -> int:
    """Two 8-bit moments with an fp32 scale for 256 numbers; small tensors stay fp32."""
    numbers = prod(shape)
    if numbers < 4096:
        return 8 * numbers
    return 2 * numbers + 2 * 4 * ceil_div(numbers, 256)


def lion_8bit(shape: Shape, dtype: DType) -> int:
    """One 8-bit moment."""
    return adam_8bit(shape, dtype) // 2


def torchao(bits: int, block: int) -> Callable[[Shape, DType], int]:
    """Two moments of `bits` with an fp32 scale a block, or in the parameter's type where a tensor does not fill whole blocks."""

    def state(shape: Shape, dtype: DType) -> int:
        numbers = prod(shape)
        if numbers < 4096 or numbers % block:
            return 2 * dtype.nbytes(numbers)
        return 2 * (numbers * bits // 8 + 4 * numbers // block)

    return state


def projected(rank: int, moment: Callable[[Shape, DType], int], *, keep_projector: bool) -> Callable[[Shape, DType], int]:
    """GaLore and APOLLO: moments of the gradient projected to rank r on the shorter side (m ≤ n): r·n each, and for GaLore the m·r projector."""

    def state(shape: Shape, dtype: DType) -> int:
        if len(shape) != 2 or min(shape) <= rank:
            return moment(shape, dtype)
        short, long = sorted(shape)
        return moment((rank, long), dtype) + (dtype.nbytes(short * rank) if keep_projector else 0)

    return state


def muon(shape: Shape, dtype: DType) -> int:
    """One momentum for matrices, AdamW's two moments for the rest."""
    return dtype.nbytes(prod(shape)) * (1 if len(shape) == 2 else 2)


def preconditioned(inverse_roots: int, moment_count: int) -> Callable[[Shape, DType], int]:
    """Shampoo and SOAP: square matrices of both sides of a matrix, beside `moment_count` moments."""

    def state(shape: Shape, dtype: DType) -> int:
        own = moment_count * dtype.nbytes(prod(shape))
        if len(shape) < 2:
            return own
        return own + inverse_roots * dtype.nbytes(shape[-1] ** 2 + shape[-2] ** 2)

    return state


def _torch(file: str) -> Citation:
    return Citation(TORCH.format(file))


ADAM = Rule(moments(2), _torch("adamw.py"), foreach=1.0, loop=3.0, formula="2·P·e")
RULES: dict[str, Rule] = {
    "none": Rule(moments(0), Citation("no optimizer"), formula="0"),
    "sgd": Rule(moments(0), _torch("sgd.py"), formula="0"),
    "sgd-momentum": Rule(moments(1), _torch("sgd.py"), formula="P·e"),
    "adam": ADAM, "adamw": ADAM, "nadam": ADAM, "adamax": ADAM,
    "radam": Rule(moments(2), _torch("radam.py"), foreach=1.0, loop=3.0, formula="2·P·e"),
    "adamw-amsgrad": Rule(moments(3), _torch("adamw.py"), foreach=1.0, loop=3.0, formula="3·P·e"),
    "rmsprop": Rule(moments(1), _torch("rmsprop.py"), foreach=1.0, loop=1.0, formula="P·e"),
    "adagrad": Rule(moments(1), _torch("adagrad.py"), foreach=2.0, loop=2.0, formula="P·e"),
    "rprop": Rule(moments(2), _torch("rprop.py"), foreach=1.16, loop=2.0, formula="2·P·e"),
    "adadelta": Rule(moments(2), _torch("adadelta.py"), foreach=1.0, loop=2.0, formula="2·P·e"),
    "adafactor": Rule(factored, _torch("_adafactor.py"), foreach=1.0, loop=2.0, formula="(rows+cols)·e"),
    "lion": Rule(moments(1), Citation("Chen et al. 2023, algorithm 2"), foreach=1.0, loop=1.0, formula="P·e"),
    "sm3": Rule(cover, Citation("Anil et al. 2019, section 3"), loop=1.0, formula="Σ dims·e"),
    "muon": Rule(muon, _torch("_muon.py"), loop=3.0, formula="P·e on matrices, 2·P·e elsewhere"),
    "shampoo": Rule(preconditioned(2, 0), Citation("Gupta et al. 2018, algorithm 1, with inverse roots"), loop=1.0, formula="2·(m²+n²)·e"),
    "soap": Rule(preconditioned(2, 2), Citation("Vyas et al. 2024, algorithm 3"), loop=1.0, formula="2·P·e + 2·(m²+n²)·e"),
    "adam-mini": Rule(moments(1), Citation("Zhang et al. 2024: one second moment a block"), loop=1.0, formula="P·e"),
    "lomo": Rule(moments(0), Citation("Lv et al. 2023: the update is fused into backward"), formula="0"),
    "adamw-8bit": Rule(adam_8bit, BNB, formula="2·P + 8·ceil(P/256)"),
    "lion-8bit": Rule(lion_8bit, BNB, formula="P + 4·ceil(P/256)"),
    "adamw-torchao-8bit": Rule(torchao(8, 256), TORCHAO, loop=3.0, formula="2·(P + 4·P/256)"),
    "adamw-torchao-4bit": Rule(torchao(4, 128), TORCHAO, loop=3.0, formula="2·(P/2 + 4·P/128)"),
    "adamw-torchao-fp8": Rule(torchao(8, 256), TORCHAO, loop=3.0, formula="2·(P + 4·P/256)"),
}  # fmt: skip
"""Optimizers by name; a new one is one row."""

ALIASES = {
    "adamw-torch": "adamw", "adamw-hf": "adamw", "adamw-fused": "adamw", "fusedadam": "adamw", "adam8bit": "adamw-8bit", "adamw8bit": "adamw-8bit", "adam-8bit": "adamw-8bit",
    "adamw-bnb-8bit": "adamw-8bit", "paged-adamw-8bit": "adamw-8bit", "adamw-torch-fused": "adamw", "paged-adamw": "adamw", "paged-adamw-32bit": "adamw",
    "adamw-torch-8bit": "adamw-torchao-8bit", "adamw-torch-4bit": "adamw-torchao-4bit", "sgd-nesterov": "sgd-momentum", "momentum": "sgd-momentum",
}  # fmt: skip

PROJECTED = {"galore": (moments(2), True), "galore-adamw": (moments(2), True), "galore-adamw8bit": (adam_8bit, True), "apollo": (moments(2), False)}


def rule(name: str, *, rank: int | None = None, state_bits: int | None = None, path: str = "train.optimizer.name") -> Rule:
    """The rule of an optimizer. `state_bits` 8 picks the 8-bit form of Adam and Lion. Raises Unsupported with the nearest names."""
    key = name.casefold().replace("_", "-")
    key = ALIASES.get(key, key)
    if key in PROJECTED:
        moment, keep = PROJECTED[key]
        return Rule(projected(rank or 128, moment, keep_projector=keep), Citation("Zhao et al. 2024 (GaLore), Zhu et al. 2024 (APOLLO)"), loop=1.0, formula="2·r·n + m·r")
    if state_bits == 8 and key in ("adam", "adamw"):
        key = "adamw-8bit"
    if state_bits == 8 and key == "lion":
        key = "lion-8bit"
    if key not in RULES:
        raise Unsupported(path, f"{name!r} is not known{did_you_mean(key, [*RULES, *ALIASES, *PROJECTED])}")
    return RULES[key]


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """How the step is run."""

    name: str = "adamw"
    impl: str = "foreach"
    """foreach, fused or for-loop."""
    state: DType | None = None
    """Type of the states; None: that of the parameter, or of its master copy."""
    master: DType | None = None
    """Type of a master copy beside 16-bit weights; None: there is none."""
    rank: int | None = None
    bits: int | None = None
    paged: bool = False
    """States live in unified memory and may leave the device."""
    in_backward: bool = False

    @property
    def rule(self) -> Rule:
        """State and temporaries."""
        return rule(self.name, rank=self.rank, state_bits=self.bits)

    def state_bytes(self, shape: Shape, weight: DType) -> int:
        """State of one trained tensor, its master copy left out."""
        return self.rule.state(shape, self.state or self.master or weight)

    def temporary_bytes(self, trained_bytes: int, largest_bytes: int) -> int:
        """Temporaries of a step over `trained_bytes` of parameters (of the type that is stepped), the largest tensor of which has `largest_bytes`."""
        if self.impl == "fused" or not trained_bytes:
            return 0
        found = self.rule
        if self.impl == "foreach" and found.foreach and not self.in_backward:
            return int(found.foreach * trained_bytes)
        return int(found.loop * largest_bytes)


MASTER = FP32
"""Usual type of a master copy."""
