"""Answers the job that flags stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everybyte.cli.answers import Options, Source, answer_all
from everybyte.cli.flags import Flag, raw_job
from everybyte.job import RawJob, write_job


def answer_flags(purpose: str, model: str, flags: Sequence[Flag], options: dict[str, Any]) -> int:
    """Makes the job, writes it if --save asks for it, answers it; the exit code."""
    save_to = options.pop("save")
    settings = options.pop("set_")
    given = {name: options.pop(name) for name in list(options) if name.startswith("flag_")}

    def load() -> RawJob:
        raw = raw_job(purpose, model, flags, given, settings)
        if save_to is not None:
            write_job(raw.job(), save_to)
        return raw

    return answer_all([Source(given.get("flag_name") or model, load)], Options(**options))
