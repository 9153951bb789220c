"""Tokens of a sequence under its many names."""

from __future__ import annotations

from everybyte.formats.training.run import Run

LENGTHS = (
    "max_length",
    "max_seq_length",
    "cutoff_len",
    "model_max_length",
    "max_seq_len",
    "sequence_len",
    "seq_length",
    "seq_len",
    "block_size",
    "max_len",
    "max_source_seq_len",
    "max_token_length",
    "max_packed_tokens",
)
SUMS = (
    ("max_prompt_token_length", "response_length"),
    ("max_prompt_length", "max_completion_length"),
    ("max_prompt_length", "max_response_length"),
    ("source_max_len", "target_max_len"),
    ("max_source_length", "max_target_length"),
    ("max_prompt_seq_len", "max_answer_seq_len"),
    ("max_prompt_length", "response_length"),
)
"""Pairs that add up: the longest prompt and the longest answer behind it."""


def read_length(run: Run, *, adds: bool) -> None:
    """States train.seq_len. `adds`: prompt and completion add up even where a whole length is given (GRPO)."""
    draft = run.draft
    stated = run.whole(*LENGTHS)
    if stated and stated > 0 and not adds:
        run.state("train.seq_len", stated, *LENGTHS)
        return
    for first, second in SUMS:
        one, other = run.whole(first), run.whole(second)
        if one and other:
            draft.infer("train.seq_len", one + other, f"{first} {one} + {second} {other}")
            return
    if stated and stated > 0:
        run.state("train.seq_len", stated, *LENGTHS)
