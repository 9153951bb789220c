"""Settings of PyTorch's allocator against torch itself, whose builds for CPUs read them too (c10/core/AllocatorConfig.cpp)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from everybyte.allocator.settings import read_alloc_conf
from everybyte.basics.errors import BadInput

ACCEPTED = (
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb: 128 , expandable_segments:True",
    "max_split_size_mb:128,",
    "large_segment_size_mb:11,max_split_size_mb:12",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,>:8]",
    "roundup_power2_divisions:[256:0]",
    "roundup_power2_divisions:[131072:2]",
    "roundup_power2_divisions:[>:4]",
    "roundup_power2_divisions:[256:1,>:4,512:2]",
    "max_non_split_rounding_mb:20",
    "pinned_max_cached_size_mb:7",
)
REFUSED = (
    "expandable_segments:true",
    "expandable_segments",
    "expandable_segments=True",
    "max_split_size_mb:19",
    "max_split_size_mb:1e3",
    "max_split_size_mb:30,large_segment_size_mb:40",
    "large_segment_size_mb:10",
    "max_non_split_rounding_mb:5",
    "garbage_collection_threshold:1",
    "garbage_collection_threshold:80%",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[100:2]",
    "roundup_power2_divisions:[256:1,512:2,>:8",
    "garbage_collection_threshold:",
)


@pytest.fixture(autouse=True)
def _default_settings() -> Iterator[None]:
    """torch starts each test with the settings that it has by itself, and goes on with them."""
    reset = "large_segment_size_mb:20,max_non_split_rounding_mb:20,expandable_segments:False"
    torch._C._accelerator_setAllocatorSettings(reset)
    yield
    torch._C._accelerator_setAllocatorSettings(reset)


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    """torch takes the text, and so do we."""
    torch._C._accelerator_setAllocatorSettings(text)
    read_alloc_conf(text)


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    """torch does not start with the text, and we say why."""
    with pytest.raises((ValueError, RuntimeError)):
        torch._C._accelerator_setAllocatorSettings(text)
    with pytest.raises(BadInput):
        read_alloc_conf(text)
