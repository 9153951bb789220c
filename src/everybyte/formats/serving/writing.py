"""Serving jobs as commands of their engine: the reverse of the readers, from the same tables of flags."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

import yaml

from everybyte.basics.errors import BadInput
from everybyte.formats.serving.flag_table import Flag, flag_table
from everybyte.formats.written import Export, Written
from everybyte.job.form import Job
from everybyte.job.write import job_to_dict


class Target(NamedTuple):
    """How an engine is started."""

    table: str
    program: tuple[str, ...]
    model: str
    """Flag in front of the model; empty if it stands alone behind the program."""
    joint: str = "-"
    """Between the words of a flag: vLLM writes `--max-model-len`, TensorRT-LLM `--max_seq_len`."""
    title: str = ""


TARGETS = {
    "vllm": Target("vllm.csv", ("vllm", "serve"), "", title="vLLM"),
    "sglang": Target("sglang.csv", ("python", "-m", "sglang.launch_server"), "--model-path", title="SGLang"),
    "llama.cpp": Target("llamacpp.csv", ("llama-server",), "-m", title="llama.cpp"),
    "tgi": Target("tgi.csv", ("text-generation-launcher",), "--model-id", title="Text Generation Inference"),
    "tensorrt-llm": Target("tensorrt_llm.csv", ("trtllm-serve",), "", "_", "TensorRT-LLM"),
    "lmdeploy": Target("lmdeploy.csv", ("lmdeploy", "serve", "api_server"), "", title="LMDeploy"),
    "ollama": Target("ollama.csv", ("ollama", "serve"), "", title="ollama"),
}

_SAID_ELSEWHERE = frozenset(("everybyte", "name", "model", "serve.engine", "serve.version", "hardware.gpu", "hardware.gpus", "hardware.gpus_per_node"))
_FLOATS = ("bf16", "fp16", "fp32")


class Command(NamedTuple):
    """The parts of a command, for a script or a container."""

    program: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    """Each a flag with its value, if it has one."""
    environment: dict[str, str]
    config: dict[str, Any]
    """Options that only a file of the engine can say."""
    left_out: tuple[tuple[str, str], ...]


def write(job: Job, to: str) -> Export:
    """The job as a script for the engine `to`. Raises BadInput if the job does not serve, or names another engine."""
    command = command_of(job, to)
    if to == "ollama":
        return _ollama(job, command)
    files = [Written("serve.sh", _script(job, to, command))]
    if command.config:
        files.append(Written("options.yaml", yaml.safe_dump(command.config, sort_keys=False)))
    return Export(tuple(files), command.left_out)


def command_of(job: Job, to: str) -> Command:
    """The parts of the engine's command."""
    if job.serve is None:
        raise BadInput("serve", f"the job trains; {to} serves models")
    if job.serve.engine is not None and job.serve.engine != to:
        raise BadInput(
            "serve.engine", f"the job is for {job.serve.engine}; its settings mean other things to {to}. Set serve.engine to {to} and see what estimate says"
        )
    if not isinstance(job.model, str):
        raise BadInput("model", f"{to} needs the name or path of a model, not a description of one")
    return _Writer(job, to).command()


class _Writer:
    def __init__(self, job: Job, to: str) -> None:
        self.to, self.target = to, TARGETS[to]
        self.table = flag_table(self.target.table)
        self.flat = dict(flat_of(job_to_dict(job)))
        self.model = str(job.model)
        self.version = (job.serve.version if job.serve is not None else None) or ""
        self.flags: list[tuple[str, ...]] = []
        self.environment: dict[str, str] = {}
        self.config: dict[str, Any] = {}
        self.left_out: list[tuple[str, str]] = []
        self.by_job = {flag.job: flag for flag in reversed(list(self.table.flags.values())) if flag.job not in ("-", "*", "extra")}
        self._join_cache()

    def command(self) -> Command:
        """All parts."""
        self._surroundings()
        for special in _SPECIALS:
            special(self)
        for key, value in self.flat.items():
            if key not in _SAID_ELSEWHERE:
                self._one(key, value)
        program = self.target.program
        model = (self.model,) if not self.target.model else (self.target.model, self.model)
        if self.config:
            self.flags.append(("--config", "options.yaml"))
        words = program if self.to == "ollama" else (*program, *model)
        return Command(words, tuple(self.flags), self.environment, self.config, tuple(self.left_out))

    def _join_cache(self) -> None:
        """Keys and values of the cache: one word where they are equal, two for llama.cpp."""
        keys, values = self.flat.pop("serve.kv_dtype.k", None), self.flat.pop("serve.kv_dtype.v", None)
        if self.to == "llama.cpp":
            self.flat.update({key: word for key, word in (("serve.kv_dtype.k", keys), ("serve.kv_dtype.v", values)) if word is not None})
        elif keys == values and keys is not None:
            self.flat["serve.kv_dtype"] = keys
        elif keys is not None or values is not None:
            self.left_out.append(("serve.kv_dtype", f"{self.target.title} has one format for keys and values"))

    def take(self, key: str) -> Any:
        """The value of a key, which is then written."""
        return self.flat.pop(key, None)

    def flag(self, name: str, *values: Any) -> None:
        """A flag by its normal name."""
        if name.isupper():
            self.environment[name] = str(values[0]) if values else "1"
            return
        name = _name_at(self.to, name, self.version)
        self.flags.append(("--" + name.replace("_", self.target.joint), *(_text(value) for value in values)))

    def _one(self, key: str, value: Any) -> None:
        flag = self._flag_of(key)
        if flag is None:
            name = key.partition(".extra.")[2]
            if name.isupper():
                self.environment[name] = _text(value)
            else:
                self.left_out.append((key, f"{self.target.title} has no flag for it"))
            return
        if "." in flag.name or (self.to == "tensorrt-llm" and flag.name in _ONLY_IN_FILES):
            _put(self.config, flag.name, value)
            return
        self._stated(flag, key, value)

    def _flag_of(self, key: str) -> Flag | None:
        found = self.by_job.get(key)
        name = key.partition(".extra.")[2]
        if found is None and name:
            kept = self.by_job.get(f"extra:{name}") or self.by_job.get(f"fork:{name}") or self.table.flags.get(self.table.names.get(name, name))
            found = kept if kept is not None and kept.job != "-" else None
        return found

    def _stated(self, flag: Flag, key: str, value: Any) -> None:
        if flag.kind in ("switch", "not"):
            on = bool(value) != (flag.kind == "not")
            if on:
                self.flag(flag.name, *(["1"] if flag.name.isupper() else []))
            elif flag.kind == "switch" and self.to == "vllm":
                self.flag("no_" + flag.name)
            elif (opposite := self._opposite(flag)) is not None:
                self.flag(opposite.name)
            elif flag.kind == "switch":
                self.left_out.append((key, f"{self.target.title} has no flag that turns it off; off is its default"))
        elif flag.kind == "kv":
            self.flag(flag.name, spelt(self.to, "kv", str(value)))
        elif flag.kind in ("list", "pairs"):
            for item in value if isinstance(value, list) and self.to == "llama.cpp" else [value]:
                self.flag(flag.name, *(item if isinstance(item, list) else [item]))
        elif flag.kind == "ints":
            self.flag(flag.name, *([",".join(map(str, value))] if self.to == "tgi" else value))
        elif flag.kind == "floats":
            self.flag(flag.name, ",".join(f"{each:g}" for each in value))
        elif flag.kind.startswith("words:"):
            self.flag(flag.name, spelt(self.to, "kv" if "kv" in flag.kind else "weights", str(value)))
        else:
            self.flag(flag.name, value)

    def _opposite(self, flag: Flag) -> Flag | None:
        """The flag that turns the same setting off, such as `--no-kv-unified`."""
        return next((other for other in self.table.flags.values() if other.job == flag.job and other.kind == "not"), None)

    def _surroundings(self) -> None:
        conf, nccl = self.take("env.alloc_conf"), {key: self.take(key) for key in list(self.flat) if key.startswith("env.nccl.")}
        if conf is not None:
            self.environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
        self.environment.update({key.removeprefix("env.nccl."): _text(value) for key, value in nccl.items()})
        count = self.flat.get("hardware.gpus")
        if isinstance(count, int) and 0 < count <= 16 and count != self._used():
            self.environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
        for key in ("hardware.host_memory_gib", "env.driver"):
            if self.take(key) is not None:
                self.left_out.append((key, "it describes the machine"))

    def _used(self) -> int:
        """The GPUs that the engine's own parallel sizes use; 0 if it takes all that it sees."""
        sizes = [self.flat.get(f"serve.mesh.{axis}") for axis in ("tp", "pp", "dp")]
        if self.to in ("llama.cpp", "ollama") or not any(sizes):
            return 0 if self.to in ("llama.cpp", "ollama", "tgi") else 1
        if self.to == "sglang" and self.flat.get("serve.extra.enable_dp_attention"):
            sizes[2] = None
        used = 1
        for size in sizes:
            used *= size or 1
        return used

    def weights(self) -> None:
        """`--quantization` and `--dtype`; a packed checkpoint says its format by itself."""
        form = self.take("serve.weights.format")
        dtype = self.flat.get("serve.extra.dtype")
        for key in ("serve.weights.bits", "serve.weights.group_size", "serve.weights.kind", "serve.weights.double", "serve.weights.modules"):
            if self.take(key) is not None:
                self.left_out.append((key, "the checkpoint says it"))
        if self.to in ("llama.cpp", "ollama") or form is None:
            if form is not None and str(form) not in self.model.casefold():
                self.left_out.append(("serve.weights.format", "the file of the model decides it"))
        elif form in _FLOATS:
            if "dtype" in self.table.flags and dtype is None:
                self.flag("dtype", spelt(self.to, "dtype", form))
        elif (word := _spelt().get((self.to, "weights", form))) is not None:
            self.flag({"tgi": "quantize", "lmdeploy": "model_format"}.get(self.to, "quantization"), word)
        else:
            self.left_out.append(("serve.weights.format", f"{self.target.title} has no word for {form}; the checkpoint says its own"))
        if "dtype" in self.table.flags and dtype is not None:
            self.flag("dtype", self.take("serve.extra.dtype"))

    def context(self) -> None:
        """Flags that the reader's code takes."""
        name = {"vllm": "max_model_len", "llama.cpp": "ctx_size"}.get(self.to)
        if name and (value := self.take("serve.context")) is not None:
            self.flag(name, value)

    def speculation(self) -> None:
        """Speculative decoding: one JSON for vLLM, a word for SGLang."""
        if self.to == "vllm":
            names = {"serve.draft.method": "method", "serve.draft.model": "model", "serve.draft.tokens": "num_speculative_tokens"}
            inside = {name: value for key, name in names.items() if (value := self.take(key)) is not None}
            more = {key: self.take(key) for key in list(self.flat) if key.startswith("serve.extra.speculative_config")}
            for key, value in more.items():
                inside.update(value if isinstance(value, dict) else {key.rpartition(".")[2]: value})
            if inside:
                self.flag("speculative_config", inside)
        elif self.to == "sglang" and (method := self.take("serve.draft.method")) is not None:
            self.flag("speculative_algorithm", str(method).upper())

    def lora(self) -> None:
        """`--enable-lora`, where adapters are asked for."""
        plain = self.take("serve.lora")
        asked = plain or any(key.startswith("serve.lora.") for key in self.flat)
        if asked and "enable_lora" in self.table.flags:
            self.flat.pop("serve.extra.enable_lora", None)
            self.flag("enable_lora")
        elif plain:
            self.left_out.append(("serve.lora", "the file of the adapter is not part of a job"))

    def experts(self) -> None:
        """`--enable-expert-parallel`: its size follows from the others. vLLM's context parallelism is that of decoding."""
        if self.to == "vllm" and (size := self.take("serve.mesh.cp")) is not None:
            self.flag("decode_context_parallel_size", size)
        if self.to == "vllm" and (self.take("serve.mesh.ep") or self.flat.get("serve.extra.enable_expert_parallel")):
            self.flat.pop("serve.extra.enable_expert_parallel", None)
            self.flag("enable_expert_parallel")

    def attention(self) -> None:
        """Flash attention as llama.cpp and ollama switch it."""
        word = self.flat.get("serve.attention")
        if word is None:
            return
        if self.to == "llama.cpp":
            self.flat.pop("serve.attention")
            self.flag("flash_attn", "off" if word in ("eager", "off") else "on")
        elif self.to == "ollama":
            self.flat.pop("serve.attention")
            self.environment["OLLAMA_FLASH_ATTENTION"] = "0" if word in ("eager", "off") else "1"

    def prefill(self) -> None:
        """SGLang's tokens of a prefill step."""
        if self.to == "sglang":
            value, tokens = self.take("serve.extra.chunked_prefill_size"), self.take("serve.batched_tokens")
            if value is not None or tokens is not None:
                self.flag("chunked_prefill_size", tokens if value is None else value)

    def multimodal(self) -> None:
        """Items of each kind a request may hold."""
        counts = {key.rpartition(".")[2]: self.take(key) for key in list(self.flat) if key.startswith("serve.multimodal.")}
        if counts and self.to == "vllm":
            self.flag("limit_mm_per_prompt", counts)
        elif counts:
            self.left_out.append(("serve.multimodal", f"{self.target.title} has no flag for it"))
        if self.to == "llama.cpp" and self.flat.get("serve.multimodal") is True:
            self.flat.pop("serve.multimodal")
            projector = self.take("serve.extra.mmproj")
            if projector is not None:
                self.flag("mmproj", projector)
            else:
                self.left_out.append(("serve.multimodal", "the file of the projector is not part of the job"))

    def graphs(self) -> None:
        """CUDA graphs as TGI switches them."""
        graphs = self.flat.get("serve.cuda_graphs")
        if graphs is True:
            self.flat.pop("serve.cuda_graphs")
        elif graphs is False and self.to == "tgi":
            self.flat.pop("serve.cuda_graphs")
            self.flag("cuda_graphs", "0")
        sizes = self.flat.get("serve.cuda_graphs.sizes")
        if sizes and self.to == "tgi":
            self.flag("cuda_graphs", ",".join(map(str, self.take("serve.cuda_graphs.sizes"))))


_SPECIALS = (
    _Writer.weights,
    _Writer.context,
    _Writer.speculation,
    _Writer.lora,
    _Writer.experts,
    _Writer.attention,
    _Writer.prefill,
    _Writer.multimodal,
    _Writer.graphs,
)
_ONLY_IN_FILES = frozenset(("enable_attention_dp", "use_cuda_graph", "attn_backend", "enable_lora", "max_lora_rank", "load_format", "moe_tensor_parallel_size"))
"""Options of TensorRT-LLM that have no flag."""


def flat_of(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """`{"serve": {"mesh": {"tp": 2}}}` -> `("serve.mesh.tp", 2)`. Mappings below `extra` are values."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and not path.endswith(".extra"):
            yield from flat_of(value, here)
        else:
            yield _HEADS.get(here, here), value


_HEADS = {"serve.weights": "serve.weights.format", "serve.draft": "serve.draft.method"}
"""Parts that one word can stand for."""


@cache
def _spelt() -> dict[tuple[str, str, str], str]:
    with open(join(dirname(__file__), "spelt.csv"), encoding="utf-8", newline="") as lines:
        return {(engine, table, job): word for engine, table, job, word in list(csv.reader(lines))[1:]}


@cache
def _renamed() -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
    with open(join(dirname(__file__), "renamed.csv"), encoding="utf-8", newline="") as lines:
        return {(engine, flag): (before, _numbers(since)) for engine, flag, before, since in list(csv.reader(lines))[1:]}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _name_at(engine: str, flag: str, version: str) -> str:
    """What a flag was called at a version; without one its newest name."""
    before, since = _renamed().get((engine, flag), (flag, ()))
    return before if version and _numbers(version) < since else flag


def spelt(engine: str, table: str, job: str) -> str:
    """An engine's word for a job's."""
    return _spelt().get((engine, table, job)) or _spelt().get(("*", table, job)) or job


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else f"{value:g}" if isinstance(value, float) else str(value)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    head, point, rest = path.partition(".")
    if point:
        _put(tree.setdefault(head, {}), rest, value)
    else:
        tree[head] = value


def _script(job: Job, to: str, command: Command) -> str:
    """A script with one flag a line."""
    assert job.serve is not None
    lines = ["#!/bin/sh", f"# {TARGETS[to].title}{' ' + job.serve.version if job.serve.version else ''}{_on(job)}"]
    lines += [f"# not written: {key}, {reason}" for key, reason in command.left_out]
    body = [f"{name}={shlex.quote(value)}" for name, value in command.environment.items()]
    body.append(shlex.join(command.program))
    body += ["  " + " ".join([flag, *map(shlex.quote, values)]) for flag, *values in command.flags]
    return "\n".join([*lines, " \\\n".join(body)]) + "\n"


def _on(job: Job) -> str:
    if job.hardware is None or job.hardware.gpu is None:
        return ""
    count = f"{job.hardware.gpus} x " if job.hardware.gpus else ""
    return f", for {count}{job.hardware.gpu if isinstance(job.hardware.gpu, str) else job.hardware.gpu.name or 'a GPU of its own'}"


def _ollama(job: Job, command: Command) -> Export:
    """A script that exports the server's variables, and a Modelfile with the parameters."""
    parameters = [f"PARAMETER {flag.lstrip('-').replace('-', '_')} {' '.join(values)}" for flag, *values in command.flags]
    modelfile = "\n".join([f"FROM {job.model}", *parameters]) + "\n"
    lines = ["#!/bin/sh", f"# ollama{_on(job)}", *[f"# not written: {key}, {reason}" for key, reason in command.left_out]]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in command.environment.items()]
    lines += ["ollama serve &", "ollama create job -f Modelfile", "ollama run job"]
    return Export((Written("serve.sh", "\n".join(lines) + "\n"), Written("Modelfile", modelfile)), command.left_out)
