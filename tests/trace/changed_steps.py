"""Training steps of small models in which one setting was changed on purpose, and what a comparison says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from everybyte.estimator import estimate
from everybyte.job import read_job
from everybyte.measure.comparing.open import opened
from everybyte.measure.comparing.rows import compared
from everybyte.measure.comparing.side import Side, side_of_rank
from everybyte.plan.suspects import Suspect, suspects
from everybyte.trace.jobs.program import asked_of
from everybyte.trace.results.answer import answer_of
from everybyte.trace.results.snapshot import snapshot
from everybyte.trace.run import run

SIZES = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 3, "num_attention_heads": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "num_key_value_heads": 4, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen2": {**SIZES, "num_key_value_heads": 2, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "gpt_neox": {**SIZES, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]},
    "gpt2": {"vocab_size": 2048, "n_embd": 256, "n_layer": 3, "n_head": 8, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
    "phi": {**SIZES, "num_key_value_heads": 8, "model_type": "phi", "architectures": ["PhiForCausalLM"]},
}
BASE = {"framework": "transformers", "micro_batch": 2, "seq_len": 256, "precision": "bf16", "optimizer": "adamw"}
CHANGES: dict[str, dict[str, Any]] = {
    "larger batch": {"micro_batch": 4},
    "shorter sequences": {"seq_len": 128},
    "autocast": {"precision": "bf16-mixed"},
    "fp32": {"precision": "fp32"},
    "optimizer": {"optimizer": "rmsprop"},
    "recompute": {"recompute": "full"},
    "attention": {"attention": "eager"},
    "kept gradients": {"zero_grad_set_to_none": False},
    "adapter": {"adapter": {"kind": "lora", "rank": 16, "targets": "all-linear"}},
    "accumulation": {"grad_accum": 2},
}
LEAST_SHARE = 0.002
"""Of the peak: what changes less is no row that was changed on purpose."""


class Outcome(NamedTuple):
    """What a comparison of an unchanged job with the snapshot of a changed step says."""

    changed: set[tuple[str, str]]
    """Rows that differ between the traces of both steps."""
    named: set[tuple[str, str]]
    """Rows of the comparison that differ in the same direction."""
    guilty: tuple[Suspect, ...]
    """Settings that explain the difference, the best first; those that change the same rows stand beside one another."""

    @property
    def names_all(self) -> bool:
        """Whether each changed row is named."""
        return self.changed <= self.named


def job_of(family: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A job."""
    return {"model": {"config": CONFIGS[family]}, "hardware": {"gpu": "a100-80gb"}, "train": {**BASE, **changes}}


def traced_side(job: dict[str, Any], file: Path) -> Side:
    """The rows that the tracer counts, and its snapshot in a file."""
    asked = asked_of(job)
    traced = run(asked)
    file.write_bytes(snapshot(traced))
    answer = answer_of(traced, asked)
    return side_of_rank(answer, answer.worst)


def outcome(family: str, name: str, base: Side, file: Path) -> Outcome:
    """Traces the step with one setting changed and compares the unchanged job with its snapshot."""
    changed = compared(base, traced_side(job_of(family, CHANGES[name]), file))
    job = read_job(job_of(family, {}))
    answer = estimate(job)
    there, _ = opened(str(file), None, "")
    found = compared(side_of_rank(answer, answer.worst), there)
    signs = {(row.category or "", row.place): row.more > 0 for row in found.rows}
    wanted = {(row.category or "", row.place): row.more > 0 for row in changed.rows if abs(row.more) >= LEAST_SHARE * changed.there}
    named = {row for row, sign in wanted.items() if signs.get(row) == sign}
    return Outcome(set(wanted), named, suspects(job, answer, there))
