"""The OpenAPI document: paths from one table, schemas from the forms that requests and answers really have."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec

from everybyte.basics.version import __version__
from everybyte.job import Job
from everybyte.job.shorthand import HEAD_KEY, LISTS
from everybyte.web import forms

ERRORS = {
    400: "The request cannot be answered; `error.path` is its place.",
    408: "The request did not arrive in time.",
    413: "The request is too large.",
    415: "The request is not JSON.",
    500: "A fault of the server.",
    503: "The server is busy, the time is up, or an optional part is not installed.",
}
REF = "#/components/schemas/{name}"


class Operation(NamedTuple):
    """One route: its words, what is sent, and what comes back (a form, or a media type)."""

    method: str
    path: str
    summary: str
    answer: type | str
    body: type | None = None
    query: tuple[dict[str, Any], ...] = ()


def _query(name: str, meaning: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": meaning, "schema": schema}


_WORDS = _query("q", "Words that all must be found", {"type": "string", "maxLength": 200, "default": ""})
_LIMIT = _query("limit", "Rows at most", {"type": "integer", "minimum": 0, "maximum": 10_000, "default": 20})
_LANG = _query("lang", "Language of the texts", {"type": "string", "enum": ["en", "zh"], "default": "en"})
_GROUP = _query("group", "A regular expression for whole names of groups", {"type": "string", "maxLength": 200, "default": ".*"})

OPERATIONS: tuple[Operation, ...] = (
    Operation("post", "/api/estimate", "What a job needs, where the bytes go, and whether it fits.", forms.JobAnswer, Job),
    Operation("post", "/api/explain", "How rows of the ledger came about.", forms.ExplainAnswer, forms.ExplainAsked),
    Operation("post", "/api/fit", "The largest value of a setting that fits.", forms.FitAnswer, forms.FitAsked),
    Operation("post", "/api/compare", "What differs between two jobs.", forms.CompareAnswer, forms.CompareAsked),
    Operation("post", "/api/charts", "Pictures as Vega-Lite specifications.", forms.ChartsAnswer, forms.ChartsAsked),
    Operation("post", "/api/measured", "The measured runs of a job's kind, beside what is predicted of them.", forms.MeasuredAnswer, forms.MeasuredAsked),
    Operation("post", "/api/report", "The offline report, one HTML file.", "text/html", forms.ReportAsked),
    Operation("post", "/api/job", "The job as a file.", forms.TextAnswer, forms.JobAsked),
    Operation("post", "/api/read", "What dropped files say of a model. Nothing is kept.", forms.ReadAnswer, forms.ReadAsked),
    Operation("post", "/api/plan", "The fastest layouts of a training job that fit a cluster, and the Pareto front.", forms.PlanAnswer, forms.PlanAsked),
    Operation("post", "/api/hardware", "Which GPUs and instances hold a job, and at what price.", forms.HardwareAnswer, forms.HardwareAsked),
    Operation("post", "/api/export", "The job in the words of a framework or an engine.", forms.ExportAnswer, forms.ExportAsked),
    Operation("post", "/api/doctor", "Why a job ran out of memory, from its log. Nothing is kept.", forms.DoctorAnswer, forms.LogAsked),
    Operation("post", "/api/snapshot", "Where the bytes of a memory snapshot are. Nothing is kept.", forms.SnapshotAnswer, forms.SnapshotAsked),
    Operation("post", "/api/figures", "The memory figures that a log or an nvidia-smi table states. Nothing is kept.", forms.LogFiguresAnswer, forms.LogAsked),
    Operation("get", "/api/models", "Models of the catalogue.", forms.ModelsAnswer, query=(_WORDS, _LIMIT)),
    Operation("get", "/api/gpus", "Devices of the catalogue.", forms.GpusAnswer, query=(_WORDS,)),
    Operation("get", "/api/formulas", "Published equations.", forms.FormulasAnswer, query=(_WORDS,)),
    Operation("get", "/api/truth", "Predicted against measured.", forms.TruthAnswer, query=(_GROUP,)),
    Operation("get", "/api/settings", "All settings of a job.", forms.SettingsAnswer),
    Operation("get", "/api/messages", "What the page says in another language.", forms.MessagesAnswer, query=(_LANG,)),
    Operation("get", "/api/words", "How figures and categories are called and coloured.", forms.WordsAnswer),
    Operation("get", "/health", "The state of the server.", forms.HealthAnswer),
    Operation("get", "/metrics", "Counters for Prometheus.", "text/plain"),
    Operation("get", "/openapi.json", "This document.", "application/json"),
)


@cache
def document() -> bytes:
    """The OpenAPI 3.1 document as JSON."""
    return msgspec.json.encode(described())


def described() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = [*(o.answer for o in OPERATIONS if isinstance(o.answer, type)), *(o.body for o in OPERATIONS if o.body), Job, forms.ErrorAnswer]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(types), ref_template=REF)
    _add_shorthand(schemas)
    _name_jobs(schemas)
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    info = {"title": "everybyte", "version": __version__, "description": "Every byte on the GPU, accounted for before you launch."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(operation: Operation) -> dict[str, Any]:
    content = _content(operation.answer)
    statuses = (400, 408, 413, 415, 500, 503) if operation.body else (400, 500, 503)
    errors = {str(status): {"description": ERRORS[status], "content": _content(forms.ErrorAnswer)} for status in statuses}
    found: dict[str, Any] = {
        "operationId": operation.path.strip("/").replace("/", "_").replace(".", "_"),
        "summary": operation.summary,
        "responses": {"200": {"description": operation.summary, "content": content}, **errors},
    }
    if operation.query:
        found["parameters"] = list(operation.query)
    if operation.body:
        found["requestBody"] = {"required": True, "content": _content(operation.body)}
    return found


def _content(answer: type | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {"schema": {"type": "object"} if answer == "application/json" else {"type": "string"}}}
    return {"application/json": {"schema": {"$ref": REF.format(name=answer.__name__)}}}


def _add_shorthand(schemas: dict[str, Any]) -> None:
    """One word may stand for a part of the job with that word as its head key."""
    for section, heads in HEAD_KEY.items():
        properties = schemas[section.capitalize()]["properties"]
        for key in heads:
            properties[key] = {"anyOf": [*properties[key]["anyOf"], {"type": "string"}], "default": None}
        for key in LISTS.get(section, ()):
            properties[key] = {"anyOf": [*properties[key]["anyOf"], {"type": "string"}], "default": None}
    served = schemas["Serve"]["properties"]
    served["kv_dtype"] = {"anyOf": [*served["kv_dtype"]["anyOf"], {"type": "string"}], "default": None}


def _name_jobs(schemas: dict[str, Any]) -> None:
    """In requests a job is a job, though its reader takes any mapping to say what is wrong with it."""
    for operation in OPERATIONS:
        if operation.body is None or operation.body is Job:
            continue
        properties = schemas[operation.body.__name__]["properties"]
        for key in {"job", "against"} & set(properties):
            whole = {"$ref": REF.format(name="Job")}
            properties[key] = {"anyOf": [whole, {"type": "null"}], "default": None} if "default" in properties[key] else whole
