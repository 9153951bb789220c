"""Completion in the shell, by click: names of models and GPUs beside commands and flags. Used only while a shell completes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

VARIABLE = "_EVERYBYTE_COMPLETE"
"""Set by the shell while it completes."""
MOST = 200
"""Names beyond these are not offered; further letters bring them."""


class Name(click.ParamType[str]):
    """A name of the catalogue, or anything else: what is not known is refused where the job is read."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin so, or that hold it behind the organisation; for models paths as well."""
        folded = incomplete.casefold()
        found = [name for name in _names(self.name) if folded in name.casefold()]
        first = sorted(found, key=lambda name: not name.casefold().startswith(folded))
        items = [CompletionItem(name) for name in first[:MOST]]
        return items or ([CompletionItem(incomplete, type="file")] if self.name == "model" else [])


KINDS = {"model": "model", "gpu": "gpu", "flag_gpu": "gpu"}
"""Parameters that are completed, by name."""


def completing(command: click.Command) -> click.Command:
    """The command, its models and GPUs completed while a shell asks."""
    if VARIABLE in os.environ:
        for parameter in command.params:
            if parameter.name in KINDS:
                parameter.type = Name(KINDS[parameter.name])
    return command


def _names(kind: str) -> Iterable[str]:
    if kind == "gpu":
        from everybyte.catalog.gpus import all_gpus

        return [gpu.name.casefold() for gpu in all_gpus()]
    from everybyte.catalog.models import all_models

    return [row.name for row in all_models()]
