"""LitGPT by day: what its code did when a run was made. Read in the history of github.com/Lightning-AI/litgpt (called lit-gpt until March 2024)."""

from __future__ import annotations

import re

from everybyte.basics.record import Record

Day = tuple[int, int, int]

LATEST = "0.5.13"
TAGS: dict[tuple[int, ...], Day] = {
    (0, 2): (2024, 3, 18), (0, 3, 1): (2024, 5, 8), (0, 4): (2024, 6, 10), (0, 4, 6): (2024, 7, 24), (0, 4, 7): (2024, 8, 1), (0, 5): (2024, 10, 4),
    (0, 5, 1): (2024, 10, 10), (0, 5, 4): (2024, 12, 23), (0, 5, 5): (2025, 1, 8), (0, 5, 13): (2026, 6, 29),
}  # fmt: skip
"""Release -> day of its tag; a release in between has what the earlier one had."""

HALF_PRODUCT: tuple[Day, Day] = ((2024, 2, 23), (2024, 7, 23))
DATA_MODULES: Day = (2024, 2, 29)
STABLE_EMBEDDING: Day = (2024, 10, 4)
BITSANDBYTES_044: Day = (2024, 12, 28)
SPLIT_PARTS: Day = (2024, 12, 26)
CAPPED_CHUNKS: Day = (2024, 12, 31)
CLONED_INDEX: Day = (2026, 4, 7)
SHARDED_ROWS: Day = (2025, 8, 13)


class Release(Record, frozen=True):
    """The code of one day."""

    name: str
    day: Day

    @property
    def half_product(self) -> bool:
        """RMSNorm multiplies by its weight in the type of its input (#941), not in fp32 (#606 before, #1545 after)."""
        return HALF_PRODUCT[0] <= self.day < HALF_PRODUCT[1]

    @property
    def longest_first(self) -> bool:
        """The longest sample is put into the first micro-batch and no later one is as long, until samples were cut by data modules (#950)."""
        return self.day < DATA_MODULES

    @property
    def stable_embedding(self) -> bool:
        """With bitsandbytes the embedding becomes a StableEmbedding, whose table gets a gradient that nothing steps or frees (#1770)."""
        return self.day >= STABLE_EMBEDDING

    @property
    def interleaves(self) -> bool:
        """The joined projection holds the heads of each group together, and keys and values are spread to all query heads before positions are applied;
        since #1013 it holds all queries, then all keys, then all values, and keys are spread after it."""
        return self.day < SPLIT_PARTS

    @property
    def clones_index(self) -> bool:
        """LoRA's index of the chosen parts is cloned in every call, and each call keeps its own (#2225)."""
        return self.day >= CLONED_INDEX

    @property
    def caps_chunks(self) -> bool:
        """Logits that are made in chunks are capped by tanh as whole ones are (#1891)."""
        return self.day >= CAPPED_CHUNKS

    @property
    def shards_rows(self) -> bool:
        """finetune/lora.py shards by FSDP2 on several GPUs (#2086); it and the other scripts by FSDP1 before."""
        return self.day >= SHARDED_ROWS

    @property
    def holds_inputs(self) -> bool:
        """bitsandbytes 0.41 and 0.42 hold the input of every 4-bit product in its autograd node (autograd/_functions.py MatMul4Bit, `ctx.tensors`);
        0.44, which #1893 asks for, does not."""
        return self.day < BITSANDBYTES_044


def release_of(version: str | None) -> Release:
    """The release that a job's `version` names, by number (`0.4.5`) or by date (`2023-10-20`, `2024`); the latest where it names none.

    A date without month or day counts as the middle of its year or month.
    """
    text = version or LATEST
    date = re.search(r"\b(20\d\d)(?:-(\d\d))?(?:-(\d\d))?\b", text)
    if date:
        year, month, day = date.groups()
        return Release(f"LitGPT {date[0]}", (int(year), int(month or 6), int(day or 15)))
    number = re.search(r"\b0\.\d+(?:\.\d+)*", text)
    if number:
        asked = tuple(int(n) for n in number[0].split("."))
        earlier = [tag for tag in TAGS if tag <= asked]
        return Release(f"LitGPT {number[0]}", TAGS[max(earlier)] if earlier else (2023, 6, 15))
    return Release(f"LitGPT {LATEST}", TAGS[0, 5, 13])
