"""What a person computes by hand: the equations of the book put together for one job. It is the yardstick of `truth --against textbook`."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.basics.dtypes import DType, dtype
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.units import ceil_div
from everybyte.job.form import DTypes, Job, Mesh, Optimizer, Recompute, Serve, Train
from everybyte.ledger.entry import SERVE_PHASES, TRAIN_PHASES, Category, Entry, Phase
from everybyte.ledger.ledger import Ledger
from everybyte.textbook.formula import find_formula


class Outline(NamedTuple):
    """The sizes of a Transformer that hand calculation knows. Everything else about the model is left out, which is the point."""

    P: int
    """Parameters, tied weights once."""
    trainable: int
    """Parameters that get a gradient: those of the adapter, if there is one."""
    L: int
    h: int
    a: int
    k: int
    d: int
    V: int
    context: int
    """Longest context of the model."""


class Recipe(NamedTuple):
    """Bytes a parameter of weights, gradients, fp32 master copy and one optimizer state."""

    weights: int
    grads: int
    master: int
    state: int = 4


RECIPES = {
    "fp32": Recipe(4, 4, 0),
    "bf16-mixed": Recipe(4, 4, 0),  # autocast: nothing that is stored becomes 16-bit
    "fp16-mixed": Recipe(4, 4, 0),
    "bf16": Recipe(2, 2, 0, 2),  # states have the type of the weights
    "fp16": Recipe(2, 2, 0, 2),
    "bf16-master": Recipe(2, 2, 4),
    "fp16-master": Recipe(2, 2, 4),
    "fp8": Recipe(2, 2, 4),  # fp8 is a format of the computation: weights stay 16-bit with a master copy
}

MOMENTS = {"adamw": 2, "adam": 2, "lion": 1, "adagrad": 1, "rmsprop": 1, "momentum": 1, "sgd": 0, "none": 0}
"""Optimizer states a parameter."""

ZERO_STAGE = {
    "zero1": 1,
    "distributed-optimizer": 1,
    "zero2": 2,
    "fsdp1-grad-op": 2,
    "fsdp2-no-reshard": 2,
    "zero3": 3,
    "fsdp1": 3,
    "fsdp2": 3,
    "hsdp": 3,
    "megatron-fsdp": 3,
}
"""The ZeRO stage that a sharding amounts to."""

FOUR_BITS = {"gptq", "awq"}
"""Formats whose usual width is 4 bits though their name does not say it."""

_WITH_ACTIVATIONS: tuple[Phase, ...] = ("forward", "loss", "backward")
_WITH_GRADIENTS: tuple[Phase, ...] = ("backward", "optimizer")
_WITH_STATES: tuple[Phase, ...] = tuple(p for p in TRAIN_PHASES if p not in ("load", "init"))
_WITH_CACHE: tuple[Phase, ...] = ("prefill", "decode")


def textbook_bytes(job: Job, model: Outline) -> int:
    """The peak of `textbook_ledger`, in bytes. Raises Unsupported for what the equations do not know."""
    return textbook_ledger(job, model).peak().allocated


def textbook_ledger(job: Job, model: Outline) -> Ledger:
    """The ledger of a rank of the first pipeline stage by the equations of the book alone. Raises Unsupported for what they do not know."""
    if job.serve is not None:
        return Ledger(_serving(job.serve, model))
    assert job.train is not None, "a job trains or serves"
    gpus = (job.hardware.gpus if job.hardware else None) or 1
    return Ledger((*_states(job.train, model, gpus), *_activations(job.train, model)))


def _row(name: str, category: Category, phases: tuple[Phase, ...], formula: str, *, layers: int = 1, **symbols: int) -> Entry:
    """A row by an equation of the book, for `layers` layers."""
    book = find_formula(formula)
    text = book.text if layers == 1 else f"L·({book.text})"
    size = layers * book.function(**symbols)
    return Entry(
        id=name, category=category, bytes=size, phases=phases, formula=text, symbols={"L": layers} | symbols, source=str(book.citation), basis="formula"
    )


def _share(name: str, category: Category, phases: tuple[Phase, ...], *, e: int, P: int, D: int) -> Entry:
    """A row of e bytes a parameter, divided over D ranks."""
    source = str(find_formula("zero-3").citation)
    return Entry(
        id=name, category=category, bytes=ceil_div(e * P, D), phases=phases, formula="e·P/D", symbols={"e": e, "P": P, "D": D}, source=source, basis="formula"
    )


def _states(train: Train, model: Outline, gpus: int) -> list[Entry]:
    mesh = train.mesh or Mesh()
    parallel = (mesh.tp or 1) * (mesh.pp or 1)
    D = mesh.dp_shard or max(1, gpus // parallel)
    stage = ZERO_STAGE.get(train.sharding or "none", 0)
    recipe = _recipe(train)
    trainable = ceil_div(model.trainable, parallel)
    weights = _packed(train, model, parallel) or _share(
        "weights", "parameter", TRAIN_PHASES, e=recipe.weights, P=model.P, D=parallel * (D if stage >= 3 else 1)
    )
    return [
        weights,
        _share("gradients", "gradient", _WITH_GRADIENTS, e=recipe.grads, P=trainable, D=D if stage >= 2 else 1),
        _share("optimizer", "optimizer_state", _WITH_STATES, e=recipe.master + _moments(train, recipe), P=trainable, D=D if stage >= 1 else 1),
    ]


def _recipe(train: Train) -> Recipe:
    recipe = RECIPES[train.precision or "bf16-mixed"]
    given = train.dtypes or DTypes()
    return Recipe(
        weights=_width(given.weights, recipe.weights),
        grads=_width(given.grads, recipe.grads),
        master=_width(given.master, recipe.master),
        state=_width(given.optimizer, recipe.state),
    )


def _width(name: str | None, default: int) -> int:
    """Bytes an element of a plain number format."""
    if name is None:
        return default
    return 0 if name == "none" else dtype(name).block_bytes


def _moments(train: Train, recipe: Recipe) -> int:
    """Bytes a parameter of the optimizer's states, without the master copy."""
    optimizer = train.optimizer or Optimizer()
    name = optimizer.name or "adamw"
    if name in ("adamw-8bit", "adam-8bit"):
        return 2
    if name not in MOMENTS:
        raise Unsupported("train.optimizer.name", f"the textbook has no equation for {name!r}; it knows {', '.join(MOMENTS)} and adamw-8bit")
    return MOMENTS[name] * _width(optimizer.state_dtype, recipe.state)


def _packed(train: Train, model: Outline, ranks: int) -> Entry | None:
    """The quantised base weights, if the job has them: packed weights and a byte of scale for each group."""
    packed = train.quantization
    if packed is None or packed.format is None:
        return None
    bits = packed.bits or _bits("train.quantization", packed.format)
    group = packed.group_size if packed.group_size and packed.group_size > 0 else 64
    return _row("weights", "parameter", TRAIN_PHASES, "block-scaled", P=ceil_div(model.P, ranks), bits=round(bits), B=group)


def _bits(path: str, name: str) -> float:
    if name in FOUR_BITS:
        return 4
    try:
        return dtype(name).bits
    except BadInput:
        raise Unsupported(f"{path}.format", f"the textbook does not know the bits of {name!r}; say them as {path}.bits") from None


def _activations(train: Train, model: Outline) -> list[Entry]:
    """Korthikanti et al. for the layers of the first stage (p micro-batches of L/p layers) and for what lies outside them."""
    mesh = train.mesh or Mesh()
    s, b = train.seq_len or train.tokens or model.context, train.micro_batch or 1
    policy = (train.recompute or Recompute()).policy or "none"
    scores = policy != "selective" and train.attention in ("eager", "unfused")
    form = ("korthikanti-tp-sp" if mesh.sp else "korthikanti-tp") if scores else ("korthikanti-selective" if mesh.sp else "korthikanti-selective-tp")
    symbols = {"s": s, "b": b, "h": model.h, "t": mesh.tp or 1} | ({"a": model.a} if scores else {})

    ends = _row("activations/ends", "activation", _WITH_ACTIVATIONS, "korthikanti-ends", s=s, b=b, h=model.h, p=mesh.pp or 1, t=mesh.tp or 1, V=model.V)
    if policy != "full":
        return [_row("activations/layers", "activation", _WITH_ACTIVATIONS, form, layers=model.L, **symbols), ends]
    return [
        _row("activations/layer inputs", "activation", _WITH_ACTIVATIONS, "korthikanti-full", layers=model.L, s=s, b=b, h=model.h),
        _row("activations/layer computed again", "activation", _WITH_ACTIVATIONS, form, **symbols),
        ends,
    ]


def _serving(serve: Serve, model: Outline) -> tuple[Entry, ...]:
    """Weights, a fifth of them for everything else, and the cache at full context."""
    s, b = serve.context or model.context, serve.sequences or 1
    given = serve.weights
    bits = 16.0 if given is None or given.format is None else given.bits or _bits("serve.weights", given.format)
    weights = ceil_div(model.P * round(1000 * bits), 8000)  # bits are known to a thousandth
    rule = find_formula("inference-rule")
    kv = _cache_format(serve)
    cache = kv.nbytes(2 * model.L * model.k * model.d * s * b)
    symbols = {"L": model.L, "k": model.k, "d": model.d, "s": s, "b": b} | ({"e": kv.block_bytes} if kv.block_elements == 1 else {})
    return (
        Entry(
            id="weights",
            category="parameter",
            bytes=weights,
            phases=SERVE_PHASES,
            formula=f"{bits:g}/8·P",
            symbols={"P": model.P},
            source=str(find_formula("weights").citation),
            basis="formula",
        ),
        Entry(
            id="overhead",
            category="unknown",
            bytes=rule.function(weights=weights) - weights,
            phases=SERVE_PHASES,
            formula="0.2·weights",
            symbols={"weights": weights},
            source=str(rule.citation),
            basis="assumed",
        ),
        Entry(
            id="cache",
            category="kv_cache",
            bytes=cache,
            phases=_WITH_CACHE,
            formula=find_formula("kv-gqa").text,
            symbols=symbols,
            source=str(find_formula("kv-gqa").citation),
            basis="formula",
        ),
    )


def _cache_format(serve: Serve) -> DType:
    name = serve.kv_dtype.k if serve.kv_dtype is not None else None
    return dtype("bf16" if name in (None, "auto") else str(name), "serve.kv_dtype")
