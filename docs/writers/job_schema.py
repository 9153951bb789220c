"""The JSON schema of the job file, for editors: what the form says, with the meaning of each key and the short ways to write a part."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from everybyte.job import Job
from everybyte.job.described import field_docs
from everybyte.job.shorthand import HEAD_KEY, LISTS

SHORT = {"Train": (*HEAD_KEY["train"], *LISTS["train"]), "Serve": (*HEAD_KEY["serve"], "kv_dtype")}
"""Parts that one word can stand for, by the struct that holds them."""
PARTS_SAID_BY_NONE = {"Train": ("offload",)}


def job_schema() -> str:
    """The schema as indented JSON."""
    (root, *_), parts = msgspec.json.schema_components([Job], ref_template="#/$defs/{name}")
    for name, part in parts.items():
        _described(name, part)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "everybyte job", **root, "$defs": parts}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _described(name: str, part: dict[str, Any]) -> None:
    """Adds the meaning of each key, and that a word may stand for a part."""
    docs = field_docs().get(name, {})
    for key, form in part.get("properties", {}).items():
        if key in docs:
            form["description"] = docs[key]
        if key in (*SHORT.get(name, ()), *PARTS_SAID_BY_NONE.get(name, ())):
            part["properties"][key] = {"description": docs.get(key, ""), "anyOf": [{"type": "string"}, *_choices(form)]}


def _choices(form: dict[str, Any]) -> list[dict[str, Any]]:
    bare = {word: value for word, value in form.items() if word not in ("default", "description")}
    found: list[dict[str, Any]] = bare.get("anyOf", [bare])
    return found
