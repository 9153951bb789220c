"""The page of the HTTP interface, written from the same table as the OpenAPI document."""

from __future__ import annotations

import inspect

import msgspec

from everybyte.job import Job
from everybyte.job.described import field_docs
from everybyte.web import forms
from everybyte.web.openapi import ERRORS, OPERATIONS, Operation
from writers.markdown import block, docstring, page, table
from writers.python_api import written

INTRODUCTION = """\
`everybyte ui` serves the page and this interface, and so does the Dockerfile. Bodies are JSON; `/openapi.json` describes all of it for programs.
Nothing that is sent is stored, and no request makes the server read a path of its own disk: a model is a name of the catalogue or its `config`."""
EXAMPLE = """\
everybyte ui --no-browser --port 8000 &
curl -s localhost:8000/api/estimate -H 'content-type: application/json' \\
  -d '{"model": "meta-llama/Llama-3.2-1B", "hardware": {"gpu": "rtx-4090"},
       "train": {"framework": "pytorch", "micro_batch": 2, "seq_len": 2048, "precision": "bf16"}}'"""
ERROR_INTRODUCTION = """\
## Errors

An error has the form that `--json` gives it, `{"name": "...", "error": {"path": "train.micro_batch", "message": "..."}}`; `path` is the place in the request.
A server that is busy says in `Retry-After` when to come again."""


def http_page() -> str:
    """All routes, then requests and answers by form, then errors."""
    routes = table(("route", "what it does", "request", "answer"), [route(one) for one in OPERATIONS])
    shown = dict.fromkeys(form for one in OPERATIONS for form in (one.body, one.answer) if isinstance(form, type) and form is not Job)
    parts = [form_text(form) for form in shown]
    errors = table(("status", "meaning"), [(str(status), meaning) for status, meaning in ERRORS.items()])
    return page("The HTTP interface", INTRODUCTION, block(EXAMPLE, "console"), "## Routes", routes, ERROR_INTRODUCTION, errors, "## Forms", *parts)


def route(operation: Operation) -> tuple[str, ...]:
    """One row."""
    query = ", ".join(f"`{one['name']}`: {one['description'].lower()}" for one in operation.query)
    return f"`{operation.method.upper()} {operation.path}`", operation.summary, link(operation.body) if operation.body else query, link(operation.answer)


def link(form: type | str) -> str:
    """The name of a form, linked to its table; a media type as it is."""
    if form is Job:
        return "[Job](job-file.md)"
    return f"`{form}`" if isinstance(form, str) else f"[{form.__name__}](#{form.__name__.lower()})"


def form_text(form: type) -> str:
    """A form with its fields."""
    docs = field_docs(forms).get(form.__name__, {}) if form.__module__ == forms.__name__ else {}
    types = {name: kind for base in reversed(form.__mro__) for name, kind in inspect.get_annotations(base).items()}
    assert issubclass(form, msgspec.Struct)
    names = zip(form.__struct_fields__, form.__struct_encode_fields__, strict=True)
    rows = [(f"`{shown}`", f"`{written(types[name])}`", docs.get(name, "")) for name, shown in names]
    return f"### {form.__name__}\n\n{docstring(form)}\n\n{table(('field', 'type', 'meaning'), rows)}"
