"""What is wrong with or worth knowing about a serving job.

A trap is a row of `traps.csv`: a setting of one engine that is gone, has no effect, or costs memory. A rule is a function below: settings that contradict one
another.
"""

from __future__ import annotations

import csv
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple, cast

from everybyte.formats.finding import Severity
from everybyte.formats.serving.engine_reading import Reading
from everybyte.formats.values import boolean, number


class Trap(NamedTuple):
    """One row."""

    engine: str
    key: str
    """A job key."""
    when: str
    """Empty: as soon as it is set. `=row`, `>0.97`, `<0.3` of its value."""
    id: str
    severity: str
    message: str
    remedy: str


@cache
def traps() -> tuple[Trap, ...]:
    """All rows."""
    with open(join(dirname(__file__), "traps.csv"), encoding="utf-8", newline="") as lines:
        return tuple(Trap(*row) for row in list(csv.reader(lines))[1:])


def check(reading: Reading) -> None:
    """Tells every trap and every contradiction of a reading."""
    for trap in traps():
        if trap.engine == reading.engine and reading.draft.stated(trap.key) and _holds(trap.when, reading.draft.value(trap.key)):
            place = reading.draft.place(trap.key)
            reading.draft.find(trap.id, cast("Severity", trap.severity), place, trap.message, trap.remedy)
    for rule in RULES.get(reading.engine, ()):
        rule(reading)


def _holds(when: str, value: Any) -> bool:
    if not when:
        return True
    if when[0] == "=":
        return str(value).casefold() == when[1:].casefold()
    found, limit = number(value), number(when[1:])
    return found is not None and limit is not None and (found > limit if when[0] == ">" else found < limit)


def _find(reading: Reading, id_: str, severity: Severity, key: str, message: str, remedy: str = "", change: dict[str, Any] | None = None) -> None:
    reading.draft.find(id_, severity, reading.draft.place(key), message, remedy, change)


def _whole(reading: Reading, key: str) -> int | None:
    value = reading.draft.value(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def batch_below_sequences(reading: Reading) -> None:
    """vLLM refuses a step that cannot hold one token of every sequence."""
    tokens, sequences = _whole(reading, "serve.batched_tokens"), _whole(reading, "serve.sequences")
    if tokens is not None and sequences is not None and tokens < sequences:
        message = f"max-num-batched-tokens ({tokens:,}) is below max-num-seqs ({sequences:,}): the engine does not start"
        _find(reading, "batch-below-sequences", "error", "serve.batched_tokens", message, "raise max-num-batched-tokens", {"serve.batched_tokens": sequences})


def unchunked_batch_below_context(reading: Reading) -> None:
    """Without chunked prefill a step has to hold the longest prompt."""
    tokens, context = _whole(reading, "serve.batched_tokens"), _whole(reading, "serve.context")
    chunked = reading.draft.value("serve.extra.enable_chunked_prefill")
    if chunked is False and tokens is not None and context is not None and tokens < context:
        message = f"chunked prefill is off and max-num-batched-tokens ({tokens:,}) is below max-model-len ({context:,}): the engine does not start"
        _find(reading, "batch-below-context", "error", "serve.batched_tokens", message, "turn chunked prefill on", {"serve.extra.enable_chunked_prefill": True})


def graphs_without_effect(reading: Reading) -> None:
    """Sizes of graphs that are never captured."""
    sizes = next(
        (key for key in ("serve.cuda_graphs.sizes", "serve.extra.max_cudagraph_capture_size", "serve.extra.cuda_graph_max_bs_decode") if key in reading.draft),
        None,
    )
    if reading.draft.value("serve.cuda_graphs") is False and sizes is not None:
        where = reading.draft.place(sizes)
        reading.draft.find("graphs-off", "note", where, "CUDA graphs are off, so that the sizes to capture have no effect", "leave one of the two out")
        if sizes == "serve.cuda_graphs.sizes":
            reading.draft.drop(sizes)


def context_unset(reading: Reading) -> None:
    """The model's longest context has to fit into the cache once."""
    if reading.command is not None and not any(key in reading.draft for key in ("serve.context", "serve.extra.max_model_len")) and "model" in reading.draft:
        message = "no context is stated: the KV cache must hold the model's longest sequence at least once, or the engine does not start"
        reading.draft.find("context-unset", "note", reading.command.place, message, "state --max-model-len, as long as requests are")


def replicas(reading: Reading) -> None:
    """SGLang's data parallelism without data-parallel attention."""
    groups = _whole(reading, "serve.mesh.dp")
    if groups is not None and groups > 1 and not boolean(reading.draft.value("serve.extra.enable_dp_attention")):
        message = f"--dp {groups} without --enable-dp-attention starts {groups} whole engines: each holds all weights"
        _find(reading, "whole-replicas", "note", "serve.mesh.dp", message)


def graphs_above_requests(reading: Reading) -> None:
    """Graphs of batches that never come."""
    largest, running = _whole(reading, "serve.extra.cuda_graph_max_bs_decode"), _whole(reading, "serve.sequences")
    if largest is not None and running is not None and largest > running:
        message = f"CUDA graphs are captured up to a batch of {largest}, and at most {running} requests run at once"
        change = {"serve.extra.cuda_graph_max_bs_decode": running}
        _find(reading, "graphs-above-requests", "note", "serve.extra.cuda_graph_max_bs_decode", message, "lower the largest batch of the graphs", change)


def input_against_total(reading: Reading) -> None:
    """TGI needs room for one new token."""
    longest, total, step = (_whole(reading, key) for key in ("serve.extra.max_input_tokens", "serve.context", "serve.batched_tokens"))
    if longest is not None and total is not None and longest >= total:
        message = f"max-input-tokens ({longest:,}) must be below max-total-tokens ({total:,}): the launcher refuses to start"
        _find(reading, "input-above-total", "error", "serve.extra.max_input_tokens", message, "lower max-input-tokens")
    if longest is not None and step is not None and step < longest:
        message = f"max-batch-prefill-tokens ({step:,}) must not be below max-input-tokens ({longest:,}): the launcher refuses to start"
        _find(reading, "prefill-below-input", "error", "serve.batched_tokens", message, "raise max-batch-prefill-tokens", {"serve.batched_tokens": longest})


_PACKED = ("q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl")


def packed_values_without_flash(reading: Reading) -> None:
    """llama.cpp packs values only with flash attention."""
    draft = reading.draft
    packed = draft.value("serve.kv_dtype.v") or draft.value("serve.kv_dtype")
    if str(packed) not in _PACKED:
        return
    key = "serve.kv_dtype.v" if "serve.kv_dtype.v" in draft else "serve.kv_dtype"
    if draft.value("serve.attention") == "eager":
        message = f"a {packed} cache of values needs flash attention, which is off: the engine refuses to start or falls back to fp16"
        _find(reading, "packed-cache-without-flash", "error", key, message, "turn flash attention on", {"serve.attention": "flash"})
    elif reading.engine == "ollama" and "serve.attention" not in draft:
        message = f"OLLAMA_KV_CACHE_TYPE={packed} needs flash attention: without OLLAMA_FLASH_ATTENTION=1 older releases keep the cache in fp16"
        _find(reading, "packed-cache-without-flash", "warning", key, message, "set OLLAMA_FLASH_ATTENTION=1", {"serve.attention": "flash"})


def slots_share_context(reading: Reading) -> None:
    """`-c` is for all slots of llama.cpp's server, and for each of ollama."""
    slots, context = _whole(reading, "serve.parallel_slots"), _whole(reading, "serve.context")
    if slots is None or context is None or slots < 2:
        return
    if reading.engine == "ollama":
        message = f"each of {slots} parallel requests has a context of its own: the cache holds {slots * context:,} tokens"
        _find(reading, "context-per-request", "note", "serve.parallel_slots", message)
    elif not reading.draft.value("serve.unified_kv"):
        message = f"{slots} slots share the context: each holds {context // slots:,} tokens"
        _find(reading, "context-shared", "note", "serve.parallel_slots", message)


def ubatch_above_batch(reading: Reading) -> None:
    """llama.cpp cuts the physical batch to the logical one."""
    logical, physical = _whole(reading, "serve.batched_tokens"), _whole(reading, "serve.ubatch")
    if logical is not None and physical is not None and physical > logical:
        message = f"-ub {physical} is above -b {logical}: it is cut to {logical}"
        _find(reading, "ubatch-above-batch", "note", "serve.ubatch", message, "lower -ub or raise -b", {"serve.ubatch": logical})


def split_against_devices(reading: Reading) -> None:
    """Shares for more devices than there are."""
    shares, devices = reading.draft.value("serve.tensor_split"), _whole(reading, "hardware.gpus")
    if isinstance(shares, list) and devices is not None and devices and len(shares) > devices:
        message = f"--tensor-split has shares for {len(shares)} GPUs, and there are {devices}"
        _find(reading, "split-against-devices", "error", "serve.tensor_split", message, "give one share a GPU")


def draft_takes_memory(reading: Reading) -> None:
    """A draft model has weights and a cache of its own."""
    if "serve.draft.model" in reading.draft:
        message = f"the draft model {reading.draft.value('serve.draft.model')} has weights and a KV cache of its own on the GPU"
        _find(reading, "draft-model", "note", "serve.draft.model", message)


def version_unstated(reading: Reading) -> None:
    """A tag like `latest` says no version, so that the newest defaults are taken."""
    command = reading.command
    if command is not None and "serve.version" not in reading.draft and any(launcher.name in ("docker", "container") for launcher in command.launchers):
        message = "the image's tag says no version of the engine: the defaults of the newest release that is known are taken"
        reading.draft.find("version-unstated", "note", command.place, message, "give a tag with a version, or --framework-version")


RULES = {
    "vllm": (batch_below_sequences, unchunked_batch_below_context, graphs_without_effect, context_unset, draft_takes_memory, version_unstated),
    "sglang": (graphs_without_effect, replicas, graphs_above_requests, draft_takes_memory, version_unstated),
    "tgi": (input_against_total, version_unstated),
    "llama.cpp": (packed_values_without_flash, slots_share_context, ubatch_above_batch, split_against_devices, draft_takes_memory),
    "ollama": (packed_values_without_flash, slots_share_context),
    "tensorrt-llm": (draft_takes_memory, version_unstated),
    "lmdeploy": (graphs_without_effect, draft_takes_memory),
}
"""Engine -> its rules, besides the traps."""
