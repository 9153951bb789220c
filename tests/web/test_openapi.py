"""The OpenAPI document: it describes the routes that there are, and requests made from it never break the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from servers import TRAIN, post

from everybyte.job import Job
from everybyte.web.openapi import OPERATIONS, described
from everybyte.web.routes.answers import ANSWERS
from everybyte.web.routes.catalogue import CATALOGUE
from everybyte.web.routes.state import STATE

PAGE = {"/", "/static/{name:path}"}
"""Routes for browsers, which are no part of the API."""
CHECKED = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection,unsupported_method"
"""All checks that apply but positive_data_acceptance: a job of the right form may still contradict itself, and is refused with 400 as documented."""


def test_every_route_is_described_and_the_other_way_round() -> None:
    """The table of the document and the routes of the server are the same, method by method."""
    routes = {(method.casefold(), path) for handler in [*ANSWERS, *CATALOGUE, *STATE] for path in handler.paths for method in handler.http_methods}
    assert {(method, path) for method, path in routes if path not in PAGE and method != "options"} == {(o.method, o.path) for o in OPERATIONS}


def test_the_job_of_the_document_is_the_job() -> None:
    """Every key of the job's form is in the document with its meaning bound to no second source, and every reference leads somewhere."""
    schemas = described()["components"]["schemas"]
    assert set(schemas["Job"]["properties"]) == set(Job.__struct_fields__)
    assert schemas["Train"]["additionalProperties"] is False
    text = msgspec.json.encode(described()).decode()
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(schemas)


def run(server: str, folder: Path, *options: str) -> None:
    """Requests made from the document. Fails on any finding, and shows it."""
    # the reader of all measured runs has a test of its own: one request takes half a minute
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server}/openapi.json", "--checks", CHECKED, "--no-color", "--seed", "1"]
    command += ["--exclude-path", "/api/truth", "--exclude-path", "/api/measured", "--generation-database", "none", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "passed" in done.stdout


def test_requests_made_from_the_document(server: str, tmp_path: Path) -> None:
    """Random requests, right and wrong ones: no 5xx, no status, type or shape of answer that the document does not state, nothing wrong accepted."""
    run(server, tmp_path, "--phases", "fuzzing", "--max-examples", "25")
    assert post(server, "estimate", TRAIN).status_code == 200


@pytest.mark.long
def test_more_requests_made_from_the_document(server: str, tmp_path: Path) -> None:
    """The same with every boundary of every key, twelve thousand requests."""
    run(server, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "200")
