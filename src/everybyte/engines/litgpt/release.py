"""Which day of LitGPT's code a job means. What changed on which day is data (`catalog/data/releases/litgpt.csv`)."""

from __future__ import annotations

import re

from everybyte.catalog.releases import Release, newest, number_of, releases, tagged

LINE = "litgpt"


def release_of(version: str | None) -> Release:
    """The release that a job's `version` names, by number (`0.4.5`) or by date (`2023-10-20`, `2024`); the latest where it names none.

    A date without month or day counts as the middle of its year or month. A release between two tags has what the earlier one had.
    """
    latest = releases(LINE).newest.name
    text = version or latest
    date = re.search(r"\b(20\d\d)(?:-(\d\d))?(?:-(\d\d))?\b", text)
    if date:
        year, month, day = date.groups()
        return Release(LINE, (int(year), int(month or 6), int(day or 15)), name=date[0])
    number = re.search(r"\b0\.\d+(?:\.\d+)*", text)
    found = tagged(LINE, number_of(number[0])) if number else None
    if number is None or found is None:
        return Release(LINE, newest(LINE).number, name=latest)
    return Release(LINE, found, name=number[0])
