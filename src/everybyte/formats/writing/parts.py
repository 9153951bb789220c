"""Parts of a configuration that several frameworks write alike."""

from __future__ import annotations

import csv
from functools import cache
from os.path import dirname, join
from typing import Any

from everybyte.formats.writing.settings import Settings

ATTENTION = {"flash2": "flash_attention_2", "flash3": "flash_attention_3", "sdpa": "sdpa", "eager": "eager", "flex": "flex_attention", "unfused": "eager"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
FSDP = {"fsdp1": "FULL_SHARD", "fsdp1-grad-op": "SHARD_GRAD_OP", "hsdp": "HYBRID_SHARD"}


def optimizer_word(settings: Settings, column: str) -> str | None:
    """The optimizer's name in a column of `data/optimizers.csv`: `transformers` (an `optim`) or `torch` (a class)."""
    name = settings.peek("train.optimizer.name")
    if name is None:
        return None
    paged, inside, impl = (settings.peek(f"train.optimizer.{key}") for key in ("paged", "in_backward", "impl"))
    for row in _optimizers():
        same = row["name"] == name and (row["paged"] == "true") == bool(paged) and (row["in_backward"] == "true") == bool(inside) and row[column]
        if same and row["impl"] in ("", impl or ""):
            settings.skip(
                *(f"train.optimizer.{key}" for key in ("name", "paged", "in_backward", *(("impl",) if column == "transformers" and impl != "for-loop" else ())))
            )
            return row[column]
    return None


@cache
def _optimizers() -> list[dict[str, str]]:
    with open(join(dirname(dirname(__file__)), "data", "optimizers.csv"), encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def zero_json(settings: Settings) -> dict[str, Any] | None:
    """DeepSpeed's configuration of a job that is sharded by ZeRO; None for another."""
    sharding = str(settings.peek("train.sharding") or "")
    if not sharding.startswith("zero"):
        return None
    from everybyte.formats.writing.tables import from_table, nested

    settings.take("train.sharding")
    flat: dict[str, Any] = {f"{ZERO}.stage": int(sharding[4:])}
    for job, key in (("train.offload.optimizer", "offload_optimizer"), ("train.offload.params", "offload_param")):
        device = settings.take(job)
        if device not in (None, "none"):
            flat[f"{ZERO}.{key}.device"] = device
    keys = from_table(settings, "training/deepspeed.csv")
    fraction = keys.pop(f"{ZERO}.offload_optimizer.ratio", None)
    if fraction is not None and f"{ZERO}.offload_optimizer.device" in flat:
        keys[f"{ZERO}.offload_optimizer.ratio"] = fraction
    precision = str(settings.peek("train.precision") or "")
    kind = precision.partition("-")[0]
    if kind in ("bf16", "fp16"):
        flat[f"{kind}.enabled"] = True
    for job, key in (("train.micro_batch", "train_micro_batch_size_per_gpu"), ("train.grad_accum", "gradient_accumulation_steps")):
        flat[key] = settings.peek(job) if settings.peek(job) is not None else "auto"
    return nested({**flat, **keys})


ZERO = "zero_optimization"


def flags_of(flat: dict[str, Any]) -> list[str]:
    """`{"micro_batch_size": 2, "bf16": True}` -> `--micro-batch-size 2`, `--bf16`."""
    found = []
    for key, value in flat.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            found.append(flag)
        elif value is not False and value is not None:
            found.append(f"{flag} {' '.join(map(str, value)) if isinstance(value, list | tuple) else value}")
    return found


def command_text(program: str, flags: list[str]) -> str:
    """A command, a flag a line."""
    return " \\\n  ".join([program, *flags]) + "\n"


def yaml_text(content: dict[str, Any]) -> str:
    """A mapping as YAML."""
    import yaml

    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)


def model_text(settings: Settings) -> str | None:
    """The model's name; None for one that is given by its sizes."""
    name = settings.peek("model")
    return settings.take("model") if isinstance(name, str) else None
