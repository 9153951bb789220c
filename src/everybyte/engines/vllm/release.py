"""Which release of vLLM a job means, and which of its two engines runs. What each release changed is data (`catalog/data/releases/vllm.csv`)."""

from __future__ import annotations

import re

from everybyte.basics.errors import BadInput
from everybyte.catalog.releases import Release, newest, number_of, written
from everybyte.engines.vllm.extra import Keys
from everybyte.job import Serve
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

LINE = "vllm"
V0, V1 = "v0", "v1"
"""The two engines, as the table calls them."""
OLDEST = (0, 2, 0)
"""A version below it is a build without tags (0.1.dev20073)."""
_NUMBER = re.compile(r"(?:vllm[ =]*)?v?(\d+)\.(\d+)(?:\.(\d+))?")
_ON, _OFF = (1, "1", True), (0, "0", False)


def release_of(serve: Serve, keys: Keys, choices: ResolvedSettings) -> Release:
    """The version of a job; without one the latest that was read, or where VLLM_USE_V1 is 0 the last that many ran with V0. Raises BadInput for text
    that is no version."""
    asked = keys.VLLM_USE_V1
    found = _NUMBER.search(serve.version or "")
    if serve.version and found is None:
        raise BadInput("serve.version", f"{serve.version!r} is no version of vLLM; write for example 0.19.0")
    number = tuple(int(part or 0) for part in found.groups()) if found else ()
    if number < OLDEST:
        latest = newest(LINE)
        number = number_of(latest.value("assumed_with_v0")) if asked in _OFF else latest.number
        choices.assume(f"vLLM {written(number)}: serve.version says another; cache, profiling run and graphs differ by version")
    release = Release(LINE, number)
    runs_v1 = release.has("v1_by_default") if asked is None else asked in _ON
    return Release(LINE, number, V1 if runs_v1 or not release.has("has_v0") else V0)


def is_v1(release: Release) -> bool:
    """Whether the second engine runs."""
    return release.variant == V1
