"""What is known of an engine's command or file on its way to a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from everybyte.formats.bag import Bag
from everybyte.formats.command import Command, Word
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.serving.flag_table import FlagTable


class Reading(NamedTuple):
    """An engine's command or file on its way to a job."""

    engine: str
    draft: JobDraft
    table: FlagTable
    bag: Bag
    positional: tuple[Word, ...] = ()
    command: Command | None = None
    environment: Mapping[str, Given] = {}
