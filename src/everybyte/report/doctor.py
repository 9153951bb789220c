"""A diagnosis for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from everybyte.basics.units import GiB, MiB
from everybyte.diagnose.diagnosis import SCHEMA, Cure, Diagnosis

FACTS = (
    ("requested", "asked for"),
    ("capacity", "capacity"),
    ("allocated", "allocated by this process"),
    ("reserved", "reserved by its allocator"),
    ("process", "this process in all"),
    ("other", "other processes"),
    ("free", "free"),
    ("allowed", "allowed"),
)
"""In the order of the analysis: what was asked for, who holds what, what is left."""
NOISE = 64 * MiB
"""What the rounding of three printed numbers leaves: no other process."""
PLAIN = {
    "weights_too_large": "the weights are too large",
    "optimizer_states": "optimizer states, or the temporaries of the optimizer's step",
    "activations": "activations",
    "attention_scores": "attention scores: something is built for every pair of tokens",
    "logits": "logits: tokens × vocabulary",
    "kv_cache": "the KV cache",
    "memory_fraction": "the engine's share of the GPU is set wrong",
    "profiling_run": "the engine's own start-up run",
    "cuda_graphs": "the capture of CUDA graphs",
    "load_peak": "the peak of loading",
    "comm_buffers": "what sharding needs beside the shards",
    "checkpoint_save": "saving a checkpoint",
    "evaluation_or_generation": "evaluation, generation or rollout",
    "wrong_dtype_or_copy": "a wider type than meant, or a second copy",
    "fragmentation": "fragmentation",
    "leak": "a leak: what is held grows from step to step",
    "other_process": "another process holds the GPU",
    "wrong_device": "ranks or jobs sit on one GPU by mistake",
    "imbalance": "one rank holds more than the others",
    "host_memory": "memory of the host, not of the GPU",
    "limit": "a limit, not lack of memory",
    "driver_or_nccl": "memory outside the framework's allocator",
    "not_memory": "no memory problem",
    "unknown": "not decided by the log",
}


def as_json(found: Diagnosis) -> dict[str, Any]:
    """The contract's form; facts that the log does not state are null."""
    m = found.message
    sizes = {f"{name}_bytes": getattr(m, name) if m else None for name in ("requested", "capacity", "allocated", "reserved", "free", "process", "other")}
    tensor = found.tensor
    return {
        "schema": SCHEMA,
        "recognised": found.recognised,
        "engine": m.form.engine if m else None,
        "version": m.form.version if m else None,
        "form": m.form.id if m else None,
        "line": m.line if m else None,
        "messages": found.messages,
        "device": m.device if m else None,
        "rank": m.rank if m else None,
        **sizes,
        "private_pool_bytes": m.private if m else None,
        "phase": found.phase,
        "cause": found.cause,
        "causes": [{"cause": one.cause, "confidence": one.confidence, "why": one.why} for one in found.causes],
        "tensor": None
        if tensor is None
        else {
            "name": tensor.name,
            "formula": tensor.formula,
            "numbers": tensor.numbers,
            "bytes": tensor.bytes,
            "error": tensor.error,
            "alternatives": list(tensor.alternatives),
        },
        "cures": [_cure_json(one) for one in found.cures],
        "asked": list(found.asked),
        "model": found.model,
        "command": found.command,
    }


def _cure_json(one: Cure) -> dict[str, Any]:
    return {
        "change": one.change,
        "says": one.says,
        "flags": one.flags,
        "saves_bytes": one.saves_bytes,
        "range": list(one.range) if one.range else None,
        "price": one.price,
        "changes_objective": one.changes_objective,
        "fits": one.fits,
    }


def screen(found: Diagnosis) -> Iterator[Text]:
    """One screen: the cause first, then what the message says, then what helps."""
    first = found.causes[0]
    sure = "" if found.cause in ("unknown", "not_memory") else f"  ({first.confidence:.0%} sure)"
    yield Text(PLAIN[found.cause] + sure, style="bold")
    yield Text(f"  {first.why}")
    m = found.message
    if m is not None:
        yield Text()
        place = " · ".join(text for text in (m.form.engine, f"rank {m.rank}" if m.rank is not None else "", m.device or "", found.phase or "") if text)
        more = f", the first of {found.messages:,} messages" if found.messages > 1 else ""
        yield Text(f"Line {m.line:,}{more}: {place}")
        for name, label in FACTS:
            value = getattr(m, name)
            if value is not None and not (name == "other" and value < NOISE):
                yield Text(f"  {label:<26}{_size(value):>12}")
    if found.tensor is not None:
        yield Text(f"  the request is a tensor: {found.tensor.name} = {found.tensor.numbers} = {_size(found.tensor.bytes)}")
        for other in found.tensor.alternatives:
            yield Text(f"    or {other}")
    others = [one for one in found.causes[1:] if one.confidence >= 0.15 and one.cause != "unknown"]
    if others:
        yield Text()
        yield Text("Else")
        for one in others:
            yield Text(f"  {PLAIN[one.cause]} ({one.confidence:.0%}): {one.why}")
    if found.cures:
        yield Text()
        yield Text("What helps")
        for number, cure in enumerate(found.cures, 1):
            saved = f": saves {_size(cure.saves_bytes)}, {'then it fits' if cure.fits else 'not enough alone'}" if cure.saves_bytes is not None else ""
            yield Text(f"  {number}. {cure.says}{saved}. Price: {cure.price}")
    if found.asked:
        yield Text()
        yield Text("What would decide")
        for question in found.asked:
            yield Text(f"  - {question}")


def _size(nbytes: int) -> str:
    return f"{nbytes / GiB:,.2f} GiB" if abs(nbytes) >= GiB else f"{nbytes / MiB:,.2f} MiB"
