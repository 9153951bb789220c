"""vLLM: `vllm serve`, the API server as a module, and the YAML that `--config` takes."""

from __future__ import annotations

import re

from everybyte.formats.command import Command, Word
from everybyte.formats.context import Context
from everybyte.formats.documents.document import Document
from everybyte.formats.draft import JobDraft
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.serving.flag_table import size
from everybyte.formats.serving.reading import finished, gpus, model, model_of_word, of_command, of_document, product, weights, with_file
from everybyte.formats.values import boolean, number

FILE = "vllm.csv"
_LEVEL = re.compile(r"-O\.?(\d)")


def read_command(command: Command, context: Context) -> list[JobDraft]:
    """`vllm serve MODEL ...`, `python -m vllm.entrypoints.openai.api_server --model MODEL ...`."""
    words = tuple(Word("--optimization-level=" + match[1], word.place) if (match := _LEVEL.fullmatch(word.text)) else word for word in command.words)
    command = command._replace(words=words)
    first = [word.text for word in command.words[:3]]
    skip = 1 if first[0].startswith("vllm.") else 3 if first[1:2] == ["bench"] else 2
    if first[1:3] == ["bench", "serve"]:
        return []  # a client
    reading = of_command("vllm", FILE, command, skip, context)
    config = reading.bag.value("config")
    if isinstance(config, str):
        document = context.document(config, command.files)
        if document is None:
            reading.draft.find(
                "file-missing", "warning", command.place, f"--config {config} was not given: its settings are not read", f"give {config} as well"
            )
        else:
            reading = with_file(reading, document)
        reading.bag.take("config")
    model(reading, reading.bag.take("model") or reading.bag.take("model_tag"))
    if "model" not in reading.draft:
        model_of_word(reading, next(iter(reading.positional), None))
    return _read(reading)


def read_document(document: Document, context: Context) -> list[JobDraft]:
    """The flags of the server as keys."""
    reading = of_document("vllm", FILE, document, context)
    model(reading, reading.bag.take("model") or reading.bag.take("model_tag"))
    return _read(reading)


def _read(reading: Reading) -> list[JobDraft]:
    weights(reading)
    _context(reading)
    _graphs(reading)
    _draft(reading)
    _multimodal(reading)
    _lora(reading)
    _experts(reading)
    _attention(reading)
    total, stated = product(reading, "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")
    gpus(reading, total, "the product of its parallel sizes", stated=stated)
    reading.bag.take("nnodes")
    if (name := reading.environment.get("VLLM_ATTENTION_BACKEND")) is not None:
        reading.draft.state("serve.attention", str(name.value), name.place)
    return finished(reading)


def _context(reading: Reading) -> None:
    given = reading.bag.take("max_model_len")
    if given is None:
        return
    if str(given.value).casefold() in ("auto", "-1"):
        reading.draft.state("serve.extra.max_model_len", "auto", given.place)
        return
    found = size(given.value)
    if found is None:
        reading.draft.find("impossible-value", "error", given.place, f"--max-model-len {given.value} is no number of tokens")
    reading.draft.state("serve.context", found, given.place)


def _graphs(reading: Reading) -> None:
    """Compilation: level 0 and mode NONE capture no graphs; sizes may stand inside."""
    draft = reading.draft
    given, level = reading.bag.take("compilation_config"), reading.bag.take("optimization_level")
    if level is not None:
        draft.state("serve.extra.optimization_level", number(level.value) if number(level.value) is not None else level.value, level.place)
    if given is None:
        return
    if not isinstance(given.value, dict):
        draft.state("serve.extra.optimization_level", given.value, given.place)
        return
    sizes = given.value.get("cudagraph_capture_sizes")
    if isinstance(sizes, list) and all(isinstance(each, int) for each in sizes):
        draft.state("serve.cuda_graphs.sizes", sizes, given.place)
    if str(given.value.get("cudagraph_mode", "")).upper() in ("NONE", "0") or given.value.get("use_cudagraph") is False:
        draft.state("serve.cuda_graphs", False, given.place)
    draft.state("serve.extra.compilation_config", given.value, given.place)


def _draft(reading: Reading) -> None:
    """Speculative decoding: one JSON, or the older flags."""
    draft, bag = reading.draft, reading.bag
    given = bag.take("speculative_config")
    inside = given.value if given is not None and isinstance(given.value, dict) else {}
    place = given.place if given is not None else None
    for job, key, *flags in (
        ("model", "model", "speculative_model", "spec_model"),
        ("method", "method", "spec_method"),
        ("tokens", "num_speculative_tokens", "num_speculative_tokens", "spec_tokens"),
    ):
        flag = bag.take(*flags)
        value = inside.get(key)
        if flag is not None:
            draft.state(f"serve.draft.{job}", number(flag.value) if job == "tokens" else flag.value, flag.place)
        elif value is not None and place is not None:
            draft.state(f"serve.draft.{job}", value, place)
    rest = {key: value for key, value in inside.items() if key not in ("model", "method", "num_speculative_tokens")}
    if rest and place is not None:
        draft.state("serve.extra.speculative_config", rest, place)
    if inside.get("model") == "ngram" or draft.value("serve.draft.model") == "[ngram]":
        draft.drop("serve.draft.model")
        draft.state("serve.draft.method", "ngram", place or "")


def _attention(reading: Reading) -> None:
    """`--attention-config '{"backend": ...}'`."""
    given = reading.bag.take("attention_config")
    if given is None or not isinstance(given.value, dict):
        return
    backend = given.value.get("backend")
    if backend is not None:
        reading.draft.state("serve.attention", str(backend), given.place)
    rest = {key: value for key, value in given.value.items() if key != "backend"}
    reading.draft.state("serve.extra.attention_config", rest or None, given.place)


def _multimodal(reading: Reading) -> None:
    """`--limit-mm-per-prompt`: items of each kind a request may hold."""
    given = reading.bag.take("limit_mm_per_prompt")
    if given is None or not isinstance(given.value, dict):
        return
    counts = {}
    for key, value in given.value.items():
        count = value.get("count") if isinstance(value, dict) else number(value)
        if isinstance(count, int):
            counts[key] = count
    reading.draft.state("serve.multimodal", counts, given.place)


def _lora(reading: Reading) -> None:
    given = reading.bag.take("enable_lora")
    if given is not None and boolean(given.value) and not any(reading.bag.peek(key) for key in ("max_loras", "max_lora_rank")):
        reading.draft.state("serve.lora", True, given.place)


def _experts(reading: Reading) -> None:
    """Experts are spread over TP x DP."""
    given = reading.bag.take("enable_expert_parallel")
    if given is not None and boolean(given.value):
        total, _ = product(reading, "tensor_parallel_size", "data_parallel_size")
        if total is None or total == 1:
            reading.draft.state("serve.extra.enable_expert_parallel", True, given.place)
        else:
            reading.draft.state("serve.mesh.ep", total, given.place)
