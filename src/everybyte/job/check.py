"""Contradictions inside a job: settings that are each of the form, but cannot hold together. What needs the model is checked where the model is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.job.form import InlineModel, Job, Mesh, ServeMesh
from everybyte.job.plain import join
from everybyte.job.words import GIVEN, KV_FORMATS, WEIGHT_FORMATS, known_weight_format

PACKED_BITS = {"nf4": 4, "fp4": 4, "mxfp4": 4, "nvfp4": 4, "int4": 4, "int8": 8, "fp8": 8}
"""Formats whose name fixes the width."""


def refuse_contradictions(job: Job) -> None:
    """Raises BadInput for the first contradiction."""
    for check in _CHECKS:
        for fault in check(job):
            raise fault


def _one_model(job: Job) -> Iterator[BadInput]:
    if isinstance(job.model, InlineModel) and (job.model.config is None) == (job.model.shape is None):
        yield BadInput("model", "a mapping holds exactly one of config (the fields of a config.json) and shape")
    if job.model == "":
        yield BadInput("model", "is empty; give a catalogue name, a path, or a mapping with config or shape")


def _one_purpose(job: Job) -> Iterator[BadInput]:
    if (job.train is None) == (job.serve is None):
        given = "neither is given" if job.train is None else "both are given"
        yield BadInput("train", f"a job has exactly one of train and serve, and {given}; `train: {{}}` trains with all defaults")


def _gpus(job: Job) -> Iterator[BadInput]:
    hardware = job.hardware
    if hardware is None or hardware.gpus is None:
        return
    gpus, per_node = hardware.gpus, hardware.gpus_per_node
    if gpus == 0 and job.train is not None:
        yield BadInput("hardware.gpus", "0 means CPU only, which some serving engines can do; training needs at least 1")
    if per_node is not None and gpus > per_node and gpus % per_node:
        yield BadInput("hardware.gpus_per_node", f"{gpus} GPUs are not whole nodes of {per_node}")


def _train_mesh(job: Job) -> Iterator[BadInput]:
    mesh, gpus = job.train.mesh if job.train else None, job.hardware.gpus if job.hardware else None
    if mesh is not None and gpus and (fault := mesh_fault(mesh, gpus)) is not None:
        yield fault


def mesh_fault(mesh: Mesh, gpus: int) -> BadInput | None:
    """What is wrong with the product of a training mesh on `gpus` GPUs, if anything is."""
    axes = _axes(mesh, "tp", "cp", "pp", "ulysses")
    size = prod(axes.values())
    if gpus % size:
        return BadInput("train.mesh", f"{_product(axes)} does not divide hardware.gpus = {gpus:,}")
    data = _axes(mesh, "dp_replicate", "dp_shard")
    whole = {**axes, **data}
    total = prod(whole.values())
    both_known = len(data) == 2
    if gpus % total or (both_known and total != gpus):
        return BadInput("train.mesh", f"{_product(whole)}, but hardware.gpus = {gpus:,}; leave dp_replicate or dp_shard out to fill what is left")
    return None


def _serve_mesh(job: Job) -> Iterator[BadInput]:
    mesh, gpus = job.serve.mesh if job.serve else None, job.hardware.gpus if job.hardware else None
    if mesh is None or not gpus:
        return
    axes = _axes(mesh, "tp", "cp", "pp")
    size = prod(axes.values())
    if not axes and mesh.dp is None:
        return
    dp = mesh.dp or 1
    attention_inside_tp = size == gpus and (mesh.tp or 1) % dp == 0
    if size * dp != gpus and not attention_inside_tp:
        whole = axes if mesh.dp is None else {**axes, "dp": dp}
        yield BadInput("serve.mesh", f"{_product(whole)}, but hardware.gpus = {gpus:,}")


def _axes(mesh: Mesh | ServeMesh, *names: str) -> dict[str, int]:
    """Sizes of the axes that are given."""
    return {name: size for name in names if (size := getattr(mesh, name)) is not None}


def _product(axes: dict[str, int]) -> str:
    """`tp 8 × pp 16 = 128`; a single axis is its own product."""
    words = " × ".join(f"{name} {size}" for name, size in axes.items())
    return words if len(axes) == 1 else f"{words} = {prod(axes.values()):,}"


def _tokens(job: Job) -> Iterator[BadInput]:
    train = job.train
    if train is None or train.tokens is None or train.micro_batch is None or train.seq_len is None:
        return
    product = train.micro_batch * train.seq_len
    if train.tokens != product:
        yield BadInput("train.tokens", f"{train.tokens:,} contradicts micro_batch × seq_len = {train.micro_batch} × {train.seq_len} = {product:,}")


def _precision(job: Job) -> Iterator[BadInput]:
    train = job.train
    if train is None or train.precision is None or train.dtypes is None:
        return
    other = {"bf16": "fp16", "fp16": "bf16"}
    family = train.precision.split("-")[0]
    for name in ("weights", "compute"):
        if family in other and getattr(train.dtypes, name) == other[family]:
            yield BadInput(f"train.dtypes.{name}", f"{other[family]} contradicts train.precision = {train.precision}")
    if train.dtypes.compute == "none":
        yield BadInput("train.dtypes.compute", "none is not a format to compute in")
    if train.dtypes.weights == "none":
        yield BadInput("train.dtypes.weights", "none is not a format of weights")


def _quantization(job: Job) -> Iterator[BadInput]:
    train = job.train
    if train is None or train.quantization is None or train.quantization.format is None:
        return
    packed, bits = train.quantization.format, train.quantization.bits
    if bits is not None and bits != PACKED_BITS.get(packed, bits):
        yield BadInput("train.quantization.bits", f"{bits} contradicts format {packed}, which has {PACKED_BITS[packed]}")


def _stages(job: Job) -> Iterator[BadInput]:
    if job.train is None:
        return
    pipeline, mesh = job.train.pipeline, job.train.mesh
    if pipeline is None or not isinstance(pipeline.layers, tuple) or mesh is None or mesh.pp is None:
        return
    chunks = mesh.pp * (pipeline.virtual or 1)
    if len(pipeline.layers) not in (mesh.pp, chunks):
        yield BadInput("train.pipeline.layers", f"{len(pipeline.layers)} numbers for {mesh.pp} stages of {pipeline.virtual or 1} chunks each")


def _formats(job: Job) -> Iterator[BadInput]:
    serve = job.serve
    if serve is None:
        return
    if serve.weights and serve.weights.format and not known_weight_format(serve.weights.format):
        yield BadInput("serve.weights.format", _unknown_word(serve.weights.format, WEIGHT_FORMATS))
    for name in ("k", "v"):
        word = getattr(serve.kv_dtype, name, None)
        if word is not None and word not in KV_FORMATS:
            yield BadInput(f"serve.kv_dtype.{name}", _unknown_word(word, KV_FORMATS))


def _given(job: Job) -> Iterator[BadInput]:
    for name in job.given or ():
        if name not in GIVEN:
            yield BadInput(join("given", name), "unknown figure" + _suggestion(name, GIVEN))


def _unknown_word(word: str, known: tuple[str, ...]) -> str:
    return f"{word!r} is not a known format{_suggestion(word, known)}"


def _suggestion(word: str, known: tuple[str, ...]) -> str:
    return did_you_mean(word, known) or f" (known: {', '.join(known)})"


_CHECKS: tuple[Callable[[Job], Iterator[BadInput]], ...] = (
    _one_purpose,
    _one_model,
    _gpus,
    _train_mesh,
    _serve_mesh,
    _tokens,
    _precision,
    _quantization,
    _stages,
    _formats,
    _given,
)
