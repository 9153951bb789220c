"""Where a number or a rule comes from."""

from __future__ import annotations

from typing import NamedTuple


class Citation(NamedTuple):
    """A source that a reader can open: paper with equation, repository with commit and path, or measured runs."""

    text: str
    """For example `Korthikanti et al. 2022, table 2` or `pytorch 2.13 torch/optim/adamw.py`."""
    url: str = ""

    def __str__(self) -> str:
        return f"{self.text} <{self.url}>" if self.url else self.text
