"""Serving engines: commands from the tables of their flags, an ollama Modelfile, and a compose file around a command."""

from __future__ import annotations

import csv
from functools import cache
from os.path import dirname, join
from shlex import quote
from typing import Any, NamedTuple

from everybyte.formats.writing.parts import command_text, yaml_text
from everybyte.formats.writing.settings import Settings, Written

FOLDER = join(dirname(dirname(__file__)), "serving")


class Engine(NamedTuple):
    """How a command of an engine begins, and the names of what tables do not say."""

    program: str
    table: str
    model_flag: str
    """Empty: the model is a word without a flag."""
    context: str
    dtype: str = "dtype"
    """Flag of a 16-bit type; empty if the engine has none."""
    quantization: str = "quantization"
    joined: str = "_"
    """What stands between the words of a flag: `--max-model-len`, `--max_batch_size`."""
    image: str = ""


ENGINES = {
    "vllm": Engine("vllm serve", "vllm.csv", "", "max_model_len", joined="-", image="vllm/vllm-openai"),
    "sglang": Engine("python -m sglang.launch_server", "sglang.csv", "model_path", "context_length", joined="-", image="lmsysorg/sglang"),
    "tgi": Engine(
        "text-generation-launcher",
        "tgi.csv",
        "model_id",
        "max_total_tokens",
        quantization="quantize",
        joined="-",
        image="ghcr.io/huggingface/text-generation-inference",
    ),
    "tensorrt-llm": Engine("trtllm-serve", "tensorrt_llm.csv", "", "max_seq_len", image="nvcr.io/nvidia/tensorrt-llm/release"),
    "llama.cpp": Engine("llama-server", "llamacpp.csv", "model", "ctx_size", "", "", "-", "ghcr.io/ggml-org/llama.cpp:server-cuda"),
}
SIXTEEN = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def vllm(settings: Settings) -> Written:
    """`vllm serve MODEL ...`."""
    return _command(settings, "vllm")


def sglang(settings: Settings) -> Written:
    """`python -m sglang.launch_server ...`."""
    return _command(settings, "sglang")


def tgi(settings: Settings) -> Written:
    """`text-generation-launcher ...`."""
    return _command(settings, "tgi")


def tensorrt_llm(settings: Settings) -> Written:
    """`trtllm-serve MODEL ...`."""
    return _command(settings, "tensorrt-llm")


def llama_cpp(settings: Settings) -> Written:
    """`llama-server -m FILE ...`."""
    return _command(settings, "llama.cpp")


def ollama(settings: Settings) -> Written:
    """A Modelfile; what the server's environment says stands in comments above it."""
    lines = [f"FROM {settings.take('model')}"]
    for key, name in (("serve.context", "num_ctx"), ("serve.gpu_layers", "num_gpu"), ("serve.ubatch", "num_batch")):
        value = settings.take(key)
        if value is not None:
            lines.append(f"PARAMETER {name} {value}")
    environment = []
    kind = settings.take("serve.kv_dtype.k")
    settings.skip("serve.kv_dtype.v", "serve.weights.format", "hardware.gpu", "hardware.gpus")
    if kind is not None:
        environment += [f"# OLLAMA_KV_CACHE_TYPE={kind}", "# OLLAMA_FLASH_ATTENTION=1"]
    slots = settings.take("serve.parallel_slots")
    if slots is not None:
        environment.append(f"# OLLAMA_NUM_PARALLEL={slots}")
    return Written("\n".join([*environment, *lines]) + "\n", settings.left())


def compose(settings: Settings) -> Written:
    """A compose file with one service that runs the job's engine."""
    name = str(settings.peek("serve.engine") or "vllm")
    engine = ENGINES.get(name, ENGINES["vllm"])
    gpus = settings.peek("hardware.gpus") or 1
    version = settings.take("serve.version")
    words = _flags(settings, engine)
    if name == "sglang":
        words = ["python3", "-m", "sglang.launch_server", *words]
    image = engine.image if ":" in engine.image or not version else f"{engine.image}:v{version}"
    device = {"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}
    service = {"image": image, "command": words, "deploy": {"resources": {"reservations": {"devices": [device]}}}}
    return Written(yaml_text({"services": {name.replace(".", ""): service}}), settings.left())


def _command(settings: Settings, name: str) -> Written:
    engine = ENGINES[name]
    words = [quote(word) for word in _flags(settings, engine)]
    lines, index = [], 0
    while index < len(words):
        takes = index + 1 < len(words) and words[index].startswith("-") and not words[index + 1].startswith("--")
        lines.append(" ".join(words[index : index + 2 if takes else index + 1]))
        index += 2 if takes else 1
    return Written(command_text(engine.program, lines), settings.left())


def _flags(settings: Settings, engine: Engine) -> list[str]:
    """The words behind the program."""
    model = settings.take("model")
    words = [f"--{engine.model_flag.replace('_', engine.joined)}", str(model)] if engine.model_flag else [str(model)]
    settings.skip("hardware.gpu", "hardware.gpus", "hardware.gpus_per_node")
    flat: dict[str, Any] = {engine.context: settings.take("serve.context")}
    form = settings.take("serve.weights.format")
    if form in SIXTEEN and engine.dtype:
        flat[engine.dtype] = SIXTEEN[form]
    elif form is not None and engine.quantization and form not in SIXTEEN:
        flat[engine.quantization] = {"nf4": "bitsandbytes-nf4" if engine.program.startswith("text-gen") else "bitsandbytes"}.get(form, form)
    keys, values = settings.peek("serve.kv_dtype.k"), settings.peek("serve.kv_dtype.v")
    if keys is not None and keys == values:
        settings.skip("serve.kv_dtype.k", "serve.kv_dtype.v")
        flat |= {"cache_type_k": keys, "cache_type_v": keys} if engine.table == "llamacpp.csv" else {"kv_cache_dtype": keys}
    if settings.peek("serve.mesh.ep") and engine.program.startswith("vllm"):
        settings.take("serve.mesh.ep")
        flat["enable_expert_parallel"] = True
    attention = settings.peek("serve.attention")
    if attention is not None and engine.table == "llamacpp.csv":
        settings.take("serve.attention")
        flat["flash_attn"] = {"flash": "on", "eager": "off"}.get(str(attention), attention)
    for flag, kind, job in _rows(engine.table):
        value = settings.open(job)
        if value is not None and flag not in flat:
            settings.take(job)
            flat[flag] = (not value) if kind == "not" else value
    return words + [word for flag, value in flat.items() for word in _words(flag, value, engine)]


def _words(flag: str, value: Any, engine: Engine) -> list[str]:
    name = "--" + flag.replace("_", engine.joined)
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    if isinstance(value, list | tuple) and engine.table == "llamacpp.csv":
        numbers = all(isinstance(item, int | float) for item in value)
        return [name, ",".join(map(str, value))] if numbers else [word for item in value for word in (name, str(item))]
    if isinstance(value, list | tuple):
        return [name, *map(str, value)]
    return [name, str(value)]


@cache
def _rows(file: str) -> tuple[tuple[str, str, str], ...]:
    """(flag, kind, job key) of an engine's table; settings of `extra` come under their own flag."""
    with open(join(FOLDER, file), encoding="utf-8", newline="") as lines:
        rows = [row for row in list(csv.reader(lines))[1:] if len(row) == 4]
    found = []
    for flag, _, kind, job in rows:
        if job == "extra" or job.startswith("extra:"):
            found.append((flag, kind, f"serve.extra.{job.partition(':')[2] or flag}"))
        elif job not in ("-", "*", "model") and not job.startswith("fork:"):
            found.append((flag, kind, job))
    return tuple(found)
