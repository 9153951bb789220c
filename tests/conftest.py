"""Shared by all tests. Its place puts this folder on the import path, so that tests can import the helpers beside it."""

from __future__ import annotations

from hypothesis import settings

# A deadline measures the machine and what else runs on it, not the code.
settings.register_profile("everybyte", deadline=None)
settings.load_profile("everybyte")
