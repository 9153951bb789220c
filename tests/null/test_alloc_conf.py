"""PYTORCH_CUDA_ALLOC_CONF: what is read from it, what is refused and how, and what `estimate` makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.allocator.settings import KNOWN, AllocatorSettings, read_alloc_conf
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.units import GiB, MiB

JOB = {
    "model": "meta-llama/Llama-3.2-1B",
    "hardware": {"gpu": "a100-80gb"},
    "train": {"framework": "pytorch", "precision": "bf16", "micro_batch": 2, "seq_len": 2048},
}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", AllocatorSettings()),
        ("expandable_segments:True", AllocatorSettings(expandable_segments=True)),
        ("backend:native, expandable_segments : False", AllocatorSettings()),
        ("max_split_size_mb:128,", AllocatorSettings(max_split_bytes=128 * MiB)),
        ("max_split_size_mb:64,max_non_split_rounding_mb:32", AllocatorSettings(max_split_bytes=64 * MiB, max_rounding_bytes=32 * MiB)),
        ("large_segment_size_mb:40", AllocatorSettings(segment_bytes=40 * MiB, max_rounding_bytes=40 * MiB)),
        ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.9", AllocatorSettings(collect_above=0.8, memory_fraction=0.9)),
        ("roundup_power2_divisions:8", AllocatorSettings(roundup_divisions=(8,) * 16)),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", AllocatorSettings(roundup_divisions=(1,) * 9 + (2, 4) + (8,) * 5)),
        ("roundup_power2_divisions:[2:4,16:0,>:2]", AllocatorSettings(roundup_divisions=(4, 4, 0, 0, 0) + (2,) * 11)),
        ("roundup_power2_divisions:[>:4,4:2]", AllocatorSettings(roundup_divisions=(2, 2, 2) + (4,) * 13)),
        ("pinned_use_background_threads:True,release_lock_on_cudamalloc:True", AllocatorSettings()),
        ("max_split_size_mb:32,max_split_size_mb:64", AllocatorSettings(max_split_bytes=64 * MiB)),
    ],
)
def test_settings(text: str, settings: AllocatorSettings) -> None:
    """Each option, in any order and with blanks; a list fills what lies below its first interval, and `>` what lies above its last; the last word holds."""
    assert read_alloc_conf(text) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size:128", r"^env\.alloc_conf: 'max_split_size' is no option of PyTorch's allocator \(did you mean max_split_size_mb, "),
        ("expandable_segments=True", r"'expandable_segments=True' is not of the form option:value"),
        ("expandable_segments", r"is not of the form option:value"),
        ("expandable_segments:true", r"^env\.alloc_conf: expandable_segments: 'true' is neither True nor False"),
        ("max_split_size_mb:19", r"^env\.alloc_conf: max_split_size_mb: 19 is less than 20, the size of a large segment"),
        ("max_non_split_rounding_mb:30,large_segment_size_mb:40", r"30 is less than 40"),
        ("large_segment_size_mb:10", r"10 is not above 10"),
        ("max_split_size_mb:128MB", r"'128MB' is not a whole number"),
        ("max_split_size_mb:-1", r"'-1' is not a whole number"),
        ("garbage_collection_threshold:80%", r"'80%' is not a number"),
        ("garbage_collection_threshold:1", r"1 is not between 0 and 1"),
        ("garbage_collection_threshold:nan", r"nan is not between 0 and 1"),
        ("per_process_memory_fraction:1.5", r"1.5 is not from 0 to 1"),
        ("roundup_power2_divisions:3", r"'3' is not a power of two"),
        ("roundup_power2_divisions:0", r"'0' is not a power of two"),
        ("roundup_power2_divisions:[100:2]", r"'100' is not a power of two"),
        ("roundup_power2_divisions:[256:1,512:2", r"lists are written"),
        ("backend:other", r"'other' is not known; native is"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    """What PyTorch does not start with is refused with its option, and the nearest known one."""
    with pytest.raises(BadInput, match=message):
        read_alloc_conf(text)


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "hipMallocAsync"])
def test_the_driver_s_allocator_is_refused_by_name(backend: str) -> None:
    """Memory that the driver keeps is not modelled."""
    with pytest.raises(Unsupported, match=rf"^env\.alloc_conf: backend: {backend}'s pools belong to the driver"):
        read_alloc_conf(f"backend:{backend},expandable_segments:True")


def test_names_are_complete() -> None:
    """Every known option is either modelled, the backend, or without effect, and is written but once."""
    assert len(KNOWN) == len(set(KNOWN))


def figures(text: str, **hardware: Any) -> dict[str, int]:
    """Figures of the job with these settings."""
    return estimate({**JOB, "hardware": {**JOB["hardware"], **hardware}, "env": {"alloc_conf": text}}).figures


def test_estimate_answers_each_option() -> None:
    """What is asked for is the same under all settings; less is reserved with expandable segments, more where sizes are rounded up or nothing is
    split, and there torch counts more as allocated, which is told."""
    plain = figures("")
    found = {text: figures(text) for text in ("expandable_segments:True", "roundup_power2_divisions:2", "max_split_size_mb:20")}
    assert {f["peak.allocated"] for f in found.values()} == {plain["peak.allocated"]}
    assert found["expandable_segments:True"]["peak.reserved"] < plain["peak.reserved"]
    assert found["roundup_power2_divisions:2"]["peak.reserved"] > plain["peak.reserved"]
    assert found["max_split_size_mb:20"]["peak.reserved"] > 1.1 * plain["peak.reserved"]
    warnings = " ".join(estimate({**JOB, "env": {"alloc_conf": "max_split_size_mb:20"}}).warnings)
    assert "torch.cuda.max_memory_allocated() counts the blocks of these settings, 2" in warnings


def test_estimate_has_no_expandable_segments_on_amd() -> None:
    """ROCm builds say that they are not supported, and go on without."""
    assert figures("expandable_segments:True", gpu="mi300x") == figures("", gpu="mi300x")


def test_a_part_of_the_card_that_is_too_small() -> None:
    """A process that may have a tenth of the card does not fit, and a warning says what it may have; one that may have it all says nothing."""
    answer = estimate({**JOB, "env": {"alloc_conf": "per_process_memory_fraction:0.1"}})
    assert answer.fits is False
    assert f"per_process_memory_fraction:0.1 allows {answer.hardware.capacity / 10 / GiB:,.1f} GiB to be reserved" in " ".join(answer.warnings)
    assert estimate({**JOB, "env": {"alloc_conf": "per_process_memory_fraction:1"}}).warnings == estimate(JOB).warnings


def test_a_threshold_without_a_part_is_told() -> None:
    """garbage_collection_threshold alone changes nothing in PyTorch, and the answer says so."""
    answer = estimate({**JOB, "env": {"alloc_conf": "garbage_collection_threshold:0.5"}})
    assert "garbage_collection_threshold has no effect" in " ".join(answer.warnings)
    assert answer.figures == estimate(JOB).figures
