"""The page of releases: what each framework, engine and library changed, as far as memory goes."""

from __future__ import annotations

from itertools import groupby

from everybyte.catalog.releases import Line, events, lines, releases
from everybyte.report.releases import named
from writers.markdown import page, table

INTRODUCTION = """\
Rules differ by release. `version` in a job says which hold; without it those of the newest release that was read. What is listed here is what answers depend
on, not everything that a release changed. A place is a version, the day of a commit, or the number of a build. `everybyte releases vllm 0.20` shows one
release. The tables are files of `src/everybyte/catalog/data/releases`; a new release is a row there."""


def releases_page() -> str:
    """A chapter for each line."""
    return page("Releases", INTRODUCTION, *(_chapter(releases(name)) for name in lines()), wide=True)


def _chapter(line: Line) -> str:
    rows = [
        (f"`{named(release)}`" if release else "before", event.text, event.change.source)
        for release, happened in groupby(events(line), key=lambda event: event.release)
        for event in happened
    ]
    read = f"Newest release read: {line.newest.name} ({line.newest.source})."
    return f"## {line.title}\n\n{read}" + (f"\n\n{table(('release', 'what changed', 'source'), rows)}" if rows else "")
