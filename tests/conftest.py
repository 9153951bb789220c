"""Shared by all tests. Its place puts this folder on the import path, so that tests can import the helpers beside it."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# A deadline measures the machine and what else runs on it, not the code. CI tries the same examples each time, so that a commit is judged by what it
# changes; elsewhere every run tries new ones.
settings.register_profile("everybyte", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("everybyte")


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    """What modules and earlier tests hold is set aside, so that looking for garbage, which oracles do before each measurement, takes no time."""
    gc.collect()
    gc.freeze()
