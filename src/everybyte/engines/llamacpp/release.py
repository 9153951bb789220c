"""Which build of llama.cpp, or of its fork ik_llama.cpp, a job means. What each build changed is data (`catalog/data/releases`).

Builds are numbered by commits: llama.cpp b1 to b11434 and on (date of b5145: April 2025), ik_llama.cpp from its own branch point, b3400 to b3800 in the first
half of 2025.
"""

from __future__ import annotations

import itertools
import re

from everybyte.basics.errors import Unsupported
from everybyte.catalog.releases import Number, Release, newest, releases
from everybyte.job import Serve
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

LINE, FORK = "llama.cpp", "ik_llama.cpp"
_BUILD = re.compile(r"b?(\d{3,6})$")


def is_fork(release: Release) -> bool:
    """Whether a build is one of ik_llama.cpp."""
    return release.line == FORK


def release_of(serve: Serve, fork: str, choices: ResolvedSettings) -> Release:
    """The build that a job names; without one the build that is assumed, which is told. Raises Unsupported for an unknown fork."""
    line = fork or LINE
    if line not in (LINE, FORK):
        raise Unsupported("serve.extra.fork", f"{line!r} is not supported; supported: {LINE} and {FORK}")
    found = _BUILD.match((serve.version or "").strip())
    if found:
        build = (int(found[1]),)
        return Release(line, _of_same_day(build, choices) if line == FORK and build >= _same_days()[0][0] else build)
    release = newest(line)
    release = Release(line, (release.whole("assumed"),))
    named = f"{line} {release.text}"
    choices.assume(f"rules of {named}; serve.version (b1234) chooses another" if not serve.version else f"version {serve.version}: rules of {named}")
    return release


def _same_days() -> list[tuple[Number, int]]:
    """Builds of llama.cpp and of the fork on the same days (March to August 2025)."""
    return [(change.since, int(change.value)) for change in releases(LINE).changes if change.name == "fork_of_same_day"]


def _of_same_day(build: Number, choices: ResolvedSettings) -> Number:
    """The fork's build of the days of a build of llama.cpp, for a job of the fork that names a number of llama.cpp's."""
    days = _same_days()
    for ((early,), low), ((late,), high) in itertools.pairwise(days):
        if build[0] <= late:
            own = low + (build[0] - early) * (high - low) // (late - early)
            choices.assume(f"b{build[0]} is a llama.cpp build number: ik_llama.cpp b{own} of the same days")
            return (own,)
    return (days[-1][1],)
