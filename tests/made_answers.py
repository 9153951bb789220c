"""Answers made by hand, so that tests of screens do not move with the estimator."""

from __future__ import annotations

from typing import Any

from everybyte.basics.origin import Setting
from everybyte.ledger.answer import Answer, HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.entry import Entry
from everybyte.ledger.ledger import Ledger

STEP = ("load", "init", "forward", "loss", "backward", "optimizer", "between_steps", "save")
RTX_4090 = 25_318_832_210


def entry(name: str, category: str, size: int, phases: tuple[str, ...] = STEP, formula: str = "n", basis: str = "exact", **symbols: int) -> Entry:
    return Entry(id=name, category=category, bytes=size, phases=phases, formula=formula, symbols=symbols, source="Paper 2026, eq. 3", basis=basis)  # type: ignore[arg-type]


LORA = (
    entry("weights/embed", "parameter", 1_050_673_152, formula="V·h·w", V=128_256, h=4096, w=2),
    entry("weights/layers.0-31/attention", "parameter", 2_684_354_560, formula="L·(2·h·h + 2·h·k·d)·w", L=32, h=4096, k=8, d=128, w=2),
    entry("weights/layers.0-31/mlp", "parameter", 11_274_289_152, formula="L·3·h·f·w", L=32, h=4096, f=14336, w=2),
    entry("weights/layers.0-31/norms", "parameter", 532_480),
    entry("weights/head", "parameter", 1_050_673_152),
    entry("adapters/layers.0-31", "parameter", 83_886_080),
    entry("gradients/adapters", "gradient", 83_886_080, ("backward", "optimizer")),
    entry("optimizer/exp_avg", "optimizer_state", 83_886_080, STEP[2:]),
    entry("optimizer/exp_avg_sq", "optimizer_state", 83_886_080, STEP[2:]),
    entry("activations/layers.0-31/input", "activation", 536_870_912, ("forward", "loss", "backward")),
    entry("working/layers.31", "activation", 700_000_000, ("backward",)),
    entry("logits/fp32", "activation", 1_050_673_152, ("loss", "backward"), "n·V·4", "formula", n=2048, V=128_256),
    entry("logits/gradient", "temporary", 1_050_673_152, ("backward",)),
    entry("workspace/cublas", "workspace", 8_519_680, basis="assumed"),
    entry("context/cuda", "context", 500_000_000, basis="calibrated"),
)

JOB: dict[str, Any] = {
    "model": "meta-llama/Meta-Llama-3.1-8B",
    "hardware": {"gpu": "rtx-4090", "gpus": 1},
    "train": {
        "framework": "trl",
        "micro_batch": 1,
        "seq_len": 2048,
        "precision": "bf16-mixed",
        "optimizer": {"name": "adamw"},
        "adapter": {"kind": "lora", "rank": 16},
        "recompute": {"policy": "full"},
        "attention": "sdpa",
    },
}


def rank(label: str = "gpu 0", gpus: int = 1, stage: int = 0, extra: int = 0, ledger: tuple[Entry, ...] = LORA) -> RankAnswer:
    entries = (*ledger, entry("activations/later_stages", "activation", extra, ("backward",))) if extra else ledger
    book = Ledger(entries)
    allocated = book.total("backward")
    figures = {
        "peak.allocated": allocated,
        "peak.reserved": allocated + 700_000_000,
        "peak.device": allocated + 1_200_000_000,
        "static.allocated": book.total("between_steps"),
    }
    return RankAnswer(label=label, gpus=gpus, stage=stage, figures=figures, peak_phase="backward", phases=book.phases(), ledger=entries)


def answer(capacity: int | None = RTX_4090, ranks: tuple[RankAnswer, ...] | None = None, **changes: Any) -> Answer:
    kinds = ranks or (rank(),)
    worst = max(kinds, key=lambda kind: kind.figures["peak.device"])
    headroom = None if capacity is None else capacity - worst.figures["peak.device"]
    whole: dict[str, Any] = {
        "name": "Llama-3.1-8B LoRA",
        "job": JOB,
        "settings": (Setting("train.micro_batch", 1, "given"), Setting("train.compile", False, "default of trl 1.16")),
        "model": ModelFacts(name="meta-llama/Meta-Llama-3.1-8B", params=8_030_261_248, active_params=8_030_261_248, trainable_params=41_943_040, layers=32),
        "hardware": None if capacity is None else HardwareFacts(gpu="RTX-4090", capacity=capacity),
        "fits": None if headroom is None else headroom >= 0,
        "headroom": headroom,
        "figures": worst.figures,
        "range": {name: (value * 97 // 100, value * 104 // 100) for name, value in worst.figures.items()},
        "ranks": kinds,
        "host": {"bytes": 0},
        "assumptions": ("The loss keeps fp32 logits, as transformers 4.45 and later do.",),
        "warnings": (),
    }
    return Answer(**{**whole, **changes})
