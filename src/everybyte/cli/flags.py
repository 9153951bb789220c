"""Flags of `train` and `serve`. One table maps each flag to a key path of the job; type and help words follow from the job's form, so they cannot drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import click
from msgspec import inspect

from everybyte.basics.errors import BadInput
from everybyte.cli.options import Command
from everybyte.job import Job, RawJob


class Flag(NamedTuple):
    """A flag and the key that it sets. `implies` sets further keys, unless other flags do; with them the value may be left out."""

    name: str
    path: str
    help: str = ""
    implies: tuple[tuple[str, str], ...] = ()


UNSAID = -1
"""Value of a flag that was given without one: only what it implies is set."""


HARDWARE = (
    Flag("--name", "name", "Name of the job in answers."),
    Flag("--gpu", "hardware.gpu", "Catalogue name or alias (`everybyte gpus`)."),
    Flag("--gpus", "hardware.gpus", "All GPUs of the job."),
    Flag("--gpus-per-node", "hardware.gpus_per_node"),
    Flag("--host-memory-gib", "hardware.host_memory_gib", "Host memory per node."),
    Flag("--alloc-conf", "env.alloc_conf", "PYTORCH_CUDA_ALLOC_CONF."),
)

TRAIN = (
    *HARDWARE,
    Flag("--framework", "train.framework", "Whose code runs the step."),
    Flag("--framework-version", "train.version"),
    Flag("--micro-batch", "train.micro_batch", "Sequences per GPU and micro-batch."),
    Flag("--seq-len", "train.seq_len", "Tokens a sequence."),
    Flag("--tokens", "train.tokens", "Tokens per micro-batch, when packed."),
    Flag("--grad-accum", "train.grad_accum", "Micro-batches a step."),
    Flag("--precision", "train.precision"),
    Flag("--weights-dtype", "train.dtypes.weights"),
    Flag("--optimizer", "train.optimizer.name", "For example adamw, adamw-8bit, adafactor, sgd."),
    Flag("--optimizer-impl", "train.optimizer.impl"),
    Flag("--optimizer-dtype", "train.optimizer.state_dtype", "Format of the optimizer's states."),
    Flag("--optimizer-in-backward", "train.optimizer.in_backward"),
    Flag("--paged", "train.optimizer.paged", "Optimizer states may move to the host."),
    Flag("--lora", "train.adapter.rank", "LoRA, of this rank.", (("train.adapter.kind", "lora"),)),
    Flag("--qlora", "train.adapter.rank", "LoRA, of this rank, over NF4 weights.", (("train.adapter.kind", "lora"), ("train.quantization.format", "nf4"))),
    Flag("--dora", "train.adapter.rank", "DoRA, of this rank.", (("train.adapter.kind", "dora"),)),
    Flag("--adapter", "train.adapter.kind"),
    Flag("--lora-alpha", "train.adapter.alpha"),
    Flag("--targets", "train.adapter.targets", "Module names with commas between, or all-linear."),
    Flag("--adapter-dtype", "train.adapter.dtype"),
    Flag("--quantization", "train.quantization.format", "Of the frozen base weights."),
    Flag("--double-quantization", "train.quantization.double"),
    Flag("--freeze", "train.freeze", "Module patterns with commas between."),
    Flag("--recompute", "train.recompute.policy", "Activation checkpointing."),
    Flag("--recompute-every", "train.recompute.every", "Recompute each n-th layer."),
    Flag("--offload-optimizer", "train.offload.optimizer"),
    Flag("--offload-params", "train.offload.params"),
    Flag("--offload-activations", "train.offload.activations"),
    Flag("--attention", "train.attention"),
    Flag("--loss", "train.loss.kind"),
    Flag("--loss-chunks", "train.loss.chunks"),
    Flag("--kernels", "train.kernels", "Fused kernels with commas between."),
    Flag("--compile", "train.compile", "torch.compile."),
    Flag("--sharding", "train.sharding"),
    Flag("--tp", "train.mesh.tp", "Tensor parallel ranks."),
    Flag("--sp", "train.mesh.sp", "Sequence parallel, beside --tp."),
    Flag("--cp", "train.mesh.cp", "Context parallel ranks."),
    Flag("--pp", "train.mesh.pp", "Pipeline stages."),
    Flag("--ep", "train.mesh.ep", "Expert parallel ranks."),
    Flag("--dp-shard", "train.mesh.dp_shard"),
    Flag("--dp-replicate", "train.mesh.dp_replicate"),
    Flag("--schedule", "train.pipeline.schedule"),
    Flag("--microbatches", "train.pipeline.microbatches"),
    Flag("--dropout", "train.dropout"),
    Flag("--grad-clip", "train.grad_clip"),
)

SERVE = (
    *HARDWARE,
    Flag("--engine", "serve.engine", "Whose memory rules apply."),
    Flag("--engine-version", "serve.version"),
    Flag("--weights", "serve.weights.format", "For example bf16, fp8, awq, q4_k_m."),
    Flag("--weights-bits", "serve.weights.bits", "Bits a weight in the mean (exl3, mlx)."),
    Flag("--group-size", "serve.weights.group_size", "Weights that share a scale."),
    Flag("--kv-dtype", "serve.kv_dtype", "For example auto, fp8, q8_0."),
    Flag("--context", "serve.context", "Tokens per sequence."),
    Flag("--sequences", "serve.sequences", "How many at once."),
    Flag("--batched-tokens", "serve.batched_tokens"),
    Flag("--ubatch", "serve.ubatch"),
    Flag("--memory-fraction", "serve.memory_fraction", "gpu_memory_utilization, mem_fraction_static ..."),
    Flag("--tp", "serve.mesh.tp", "Tensor parallel ranks."),
    Flag("--pp", "serve.mesh.pp", "Pipeline stages."),
    Flag("--dp", "serve.mesh.dp", "Data parallel replicas."),
    Flag("--ep", "serve.mesh.ep", "Expert parallel ranks."),
    Flag("--cuda-graphs", "serve.cuda_graphs"),
    Flag("--attention", "serve.attention"),
    Flag("--block-size", "serve.block_size"),
    Flag("--gpu-layers", "serve.gpu_layers"),
    Flag("--parallel-slots", "serve.parallel_slots"),
    Flag("--swa-full", "serve.swa_full"),
    Flag("--draft", "serve.draft.method", "Speculative decoding: mtp, eagle3 ..."),
    Flag("--draft-tokens", "serve.draft.tokens", "Guessed at once."),
    Flag("--lora", "serve.lora.rank", "Adapters are served; their largest rank."),
    Flag("--lora-count", "serve.lora.count", "Adapters held at once."),
)


class Kind(NamedTuple):
    """How a key's values are written on a command line."""

    click_type: click.ParamType[Any] | None
    is_switch: bool
    is_list: bool
    words: tuple[str, ...]


def kind_of(path: str) -> Kind:
    """From the form of the key. What several forms can hold is text, and the reader of the job decides."""
    members = _form_of(path)
    words = tuple(str(word) for member in members if isinstance(member, inspect.LiteralType) for word in member.values)
    has = {type(member) for member in members}
    if inspect.BoolType in has and inspect.StrType not in has:
        return Kind(None, is_switch=True, is_list=False, words=())
    is_list = inspect.VarTupleType in has
    if is_list or inspect.StrType in has or words:
        return Kind(click.STRING, is_switch=False, is_list=is_list, words=words)
    if inspect.FloatType in has:
        return Kind(click.FLOAT, is_switch=False, is_list=False, words=())
    return Kind(click.INT if inspect.IntType in has else click.STRING, is_switch=False, is_list=False, words=())


@cache
def _form_of(path: str) -> tuple[inspect.Type, ...]:
    members: tuple[inspect.Type, ...] = (inspect.type_info(Job),)
    for name in path.split("."):
        struct = next(member for member in members if isinstance(member, inspect.StructType))
        form = next(field.type for field in struct.fields if field.encode_name == name)
        members = form.types if isinstance(form, inspect.UnionType) else (form,)
    return members


def job_flags(flags: Sequence[Flag]) -> Callable[[Command], Command]:
    """Adds the flags of a table, and --set for every other key."""

    def decorate(command: Command) -> Command:
        text = "Any other key of the job: train.extra.packing=true."
        command = click.option("--set", "set_", metavar="KEY=VALUE", multiple=True, help=text)(command)
        for flag in reversed(flags):
            command = _option(flag)(command)
        return command

    return decorate


def _option(flag: Flag) -> Callable[[Command], Command]:
    kind = kind_of(flag.path)
    text = " ".join(filter(None, (flag.help, f"One of {', '.join(kind.words)}." if kind.words and not kind.is_list else "")))
    if kind.is_switch:
        return click.option(f"{flag.name}/--no-{flag.name.removeprefix('--')}", _parameter(flag), default=None, help=text or None)
    if flag.implies:
        return click.option(flag.name, _parameter(flag), type=kind.click_type, is_flag=False, flag_value=UNSAID, default=None, metavar="[N]", help=text)
    metavar = "WORD" if kind.words or kind.is_list else "TEXT" if kind.click_type is click.STRING else "N"
    return click.option(flag.name, _parameter(flag), type=kind.click_type, default=None, metavar=metavar, help=text or None)


def _parameter(flag: Flag) -> str:
    return "flag_" + flag.name.removeprefix("--").replace("-", "_")


def raw_job(purpose: str, model: str, flags: Sequence[Flag], given: dict[str, Any], settings: Sequence[str]) -> RawJob:
    """The job that a command line stands for, still to be checked. Raises BadInput for flags that contradict one another."""
    raw: dict[str, Any] = {"model": model, purpose: {}}
    set_by: dict[str, str] = {}
    chosen = [flag for flag in flags if given[_parameter(flag)] is not None]
    for flag in chosen:
        value = given[_parameter(flag)]
        if value == UNSAID and flag.implies:
            continue
        if flag.path in set_by:
            raise BadInput(flag.name, f"sets {flag.path}, and so does {set_by[flag.path]}")
        set_by[flag.path] = flag.name
        _set(raw, flag.path, _written(value, kind_of(flag.path)))
    for flag in chosen:
        for path, word in flag.implies:
            if path not in set_by:
                _set(raw, path, word)
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise BadInput("--set", f"{setting!r} is not of the form KEY=VALUE")
        _set(raw, path, _value(value))
    return RawJob(raw, lambda path: _flag_for(path, set_by))


def _written(value: Any, kind: Kind) -> Any:
    """Lists are written with commas between; a word that stands for a whole list stays a word."""
    return [word.strip() for word in value.split(",")] if kind.is_list and value not in kind.words else value


def _flag_for(path: str, set_by: dict[str, str]) -> str:
    """The flag that set the key, or a key above or below it."""
    related = (flag for key, flag in set_by.items() if path.startswith(key) or key.startswith(f"{path}."))
    return ", ".join(dict.fromkeys(related)) or "command line"


def _set(raw: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    target = raw
    for section in sections:
        inner = target.setdefault(section, {})
        if not isinstance(inner, dict):
            raise BadInput("--set", f"{path} lies inside {section}, which is {inner!r}")
        target = inner
    target[last] = value


def _value(text: str) -> Any:
    from everybyte.job import yaml_text

    return yaml_text.load(text, "--set")
