"""torchtitan by day: what its code did when a run was made. Read in the history of github.com/pytorch/torchtitan."""

from __future__ import annotations

import re

from everybyte.basics.record import Record

Day = tuple[int, int, int]

TAGS: dict[tuple[int, ...], Day] = {
    (0, 0, 2): (2024, 12, 17), (0, 1, 0): (2025, 6, 5), (0, 2, 0): (2025, 10, 17), (0, 2, 1): (2025, 12, 26), (0, 2, 2): (2026, 2, 20),
}  # fmt: skip
"""Version -> day of its tag."""
TORCH_BRANCHES: dict[tuple[int, int], Day] = {
    (2, 5): (2024, 9, 4), (2, 6): (2024, 12, 2), (2, 7): (2025, 3, 17), (2, 8): (2025, 6, 23), (2, 9): (2025, 9, 3), (2, 10): (2025, 12, 10),
}  # fmt: skip
"""PyTorch version -> day on which its branch was cut: a nightly build `2.7.0a0` is older than that."""
LATEST: Day = (2026, 8, 21)

FUSED_OPTIMIZER: Day = (2025, 2, 24)
NATIVE_NORM: Day = (2025, 3, 19)
CUDNN: Day = (2025, 5, 14)
COMPILED_LOSS: Day = (2025, 4, 2)
SEPARATE_ENDS: Day = (2025, 7, 28)
WEIGHTED_STAGES: Day = (2025, 7, 30)
FUSED_NORM: Day = (2025, 8, 1)
CUDNN_STORED: Day = (2025, 12, 1)
GROUPED_ATTENTION: Day = (2026, 1, 27)
CHUNKED_HEAD: Day = (2026, 4, 27)
ROPE_BY_LAYER: Day = (2026, 6, 5)
FUSED_QKV: Day = (2026, 6, 24)


class Release(Record, frozen=True):
    """The code of one day."""

    name: str
    day: Day

    @property
    def fused_optimizer(self) -> bool:
        """AdamW is fused where the configuration does not say (#881); before, foreach."""
        return self.day >= FUSED_OPTIMIZER

    @property
    def native_norm(self) -> bool:
        """torch.nn.RMSNorm (#985) instead of torchtitan's own, which casts back before it multiplies by the weight."""
        return self.day >= NATIVE_NORM

    @property
    def fused_norm(self) -> bool:
        """PyTorch has one CUDA kernel for torch.nn.RMSNorm (aten `_fused_rms_norm`, torch 2.9; nightly builds from 2025-08)."""
        return self.day >= FUSED_NORM

    @property
    def compiles_loss(self) -> bool:
        """With `compile` the cross entropy is compiled too (#1033); before, that was switched off because of CUDA errors."""
        return self.day >= COMPILED_LOSS

    @property
    def separate_ends(self) -> bool:
        """Embedding, and norm with head, are FSDP units of their own (#1094); before, both are the root's, and the last block stays gathered."""
        return self.day >= SEPARATE_ENDS

    @property
    def weighs_ends(self) -> bool:
        """Embedding and head count as layers where a pipeline is divided (#1416)."""
        return self.day >= WEIGHTED_STAGES

    def stores_attention(self, compute_capability: str) -> bool:
        """Selective recomputing keeps the result of attention. On GPUs of capability 10.0 cuDNN's kernel runs (#1196), which the list of kept
        operations did not know until #2095."""
        return compute_capability != "10.0" or not CUDNN <= self.day < CUDNN_STORED

    @property
    def repeats_kv(self) -> bool:
        """Keys and values are repeated to all heads before attention, until #2259."""
        return self.day < GROUPED_ATTENTION

    @property
    def rope_by_layer(self) -> bool:
        """Every layer has a table of rotary positions of its own (#3458), for all positions that its model file names (#3395)."""
        return self.day >= ROPE_BY_LAYER

    @property
    def fuses_qkv(self) -> bool:
        """Queries, keys and values are one projection, whose parts are copied (#3714)."""
        return self.day >= FUSED_QKV

    @property
    def chunks_head(self) -> bool:
        """A chunked loss runs head, loss and their backward on one part of the tokens after the other (#2937); before, it cut finished logits (#996)."""
        return self.day >= CHUNKED_HEAD


def release_of(version: str | None) -> Release:
    """The release that a job's `version` names: by date (`2025-08`, `2024-12 (torch 1963fc8, titan 9dec370)`), or by number (`0.1.0`).

    A date without month or day counts as its last day, unless the PyTorch nightly build or torchtitan's own number beside it is older.
    """
    text = version or ""
    date = re.search(r"\b(20\d\d)(?:-(\d\d))?(?:-(\d\d))?\b", text)
    torch = re.search(r"torch (\d+)\.(\d+)\.0a0", text)
    number = re.search(r"(?:titan |^v?)(\d+)\.(\d+)\.(\d+)\b", text)
    limits = [LATEST]
    if date is not None:
        year, month, day = date.groups()
        limits.append((int(year), int(month or 12), int(day or 31)))
    if torch is not None:
        limits.append(TORCH_BRANCHES.get((int(torch[1]), int(torch[2])), LATEST))
    if number is not None and date is None:
        limits.append(TAGS.get((int(number[1]), int(number[2]), int(number[3])), LATEST))
    day_of = min(limits)
    return Release("torchtitan {}-{:02}-{:02}".format(*day_of), day_of)
