"""Answers as JSON, in exactly the contract's form (section 3)."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte import __version__
from everybyte.basics.errors import BadInput
from everybyte.ledger.answer import SCHEMA, Answer


def head(name: str | None) -> dict[str, Any]:
    """The first keys of every object that a command prints."""
    return {"everybyte": __version__, "schema": SCHEMA, "name": name or ""}


def answer_object(answer: Answer) -> dict[str, Any]:
    """The answer with the contract's keys in the contract's order; settings as key, value, origin."""
    return {
        **head(answer.name),
        "job": answer.job,
        "settings": [setting._asdict() for setting in answer.settings],
        "model": answer.model,
        "hardware": answer.hardware,
        "fits": answer.fits,
        "headroom": answer.headroom,
        "figures": answer.figures,
        "range": answer.range,
        "ranks": answer.ranks,
        "host": answer.host,
        "assumptions": answer.assumptions,
        "warnings": answer.warnings,
        "advice": answer.advice,
    }


def error_object(name: str | None, error: BadInput) -> dict[str, Any]:
    """The line of a job that cannot be answered."""
    return {"name": name or "", "error": {"path": error.path, "message": error.message}}


def line(thing: object) -> str:
    """One line of JSON; structs become objects and tuples become lists."""
    return msgspec.json.encode(thing).decode()
