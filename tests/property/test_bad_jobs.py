"""Whatever a job holds, reading it ends in a job or in one BadInput, and the command in one message and exit code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.cli.app import run
from everybyte.engines.registry import TRAIN as ENGINES
from everybyte.estimator import estimate
from everybyte.job import Job, job_to_dict, read_job
from everybyte.job.yaml_text import load
from everybyte.ledger.answer import Answer
from everybyte.report.as_json import answer_object, line

SAMPLES = [json.loads(line) for line in (Path(__file__).parents[1] / "null" / "data" / "jobs_of_all_kinds.jsonl").read_text().splitlines()]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["adamw", "full", "none", "bf16", "auto", "4", "", "\0", "\ud800", "1e999"])
)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4), max_leaves=12)


def all_paths(form: inspect.Type, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Key paths of the whole form."""
    members = form.types if isinstance(form, inspect.UnionType) else (form,)
    found = [path] if path else []
    for member in members:
        if isinstance(member, inspect.StructType):
            found += [below for field in member.fields for below in all_paths(field.type, (*path, field.encode_name))]
    return found


PATHS = all_paths(inspect.type_info(Job))


def put(raw: dict, path: tuple[str, ...], value: object) -> dict:
    """A copy of the job with one key set."""
    copy = json.loads(json.dumps(raw))
    target = copy
    for key in path[:-1]:
        if not isinstance(target.get(key), dict):
            target[key] = {}
        target = target[key]
    target[path[-1]] = value
    return copy


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the refusal that it raises."""
    try:
        return call()
    except EverybyteError as error:
        return error


def read_or_refuse(raw: object) -> None:
    result = outcome(lambda: read_job(raw))  # type: ignore[arg-type]
    if isinstance(result, Job):
        assert read_job(job_to_dict(result)) == result
    else:
        assert str(result).isprintable()


@given(st.sampled_from(SAMPLES), st.sampled_from(PATHS), anything)
@settings(max_examples=400, deadline=None)
def test_one_key_of_a_good_job_replaced(raw: dict, path: tuple[str, ...], value: object) -> None:
    """Any value at any key of a real job is accepted or refused, and what is accepted survives a round trip."""
    read_or_refuse(put(raw, path, value))


@given(st.dictionaries(st.text(max_size=10) | st.sampled_from(["model", "train", "serve", "hardware", "given"]), anything, max_size=6))
@settings(max_examples=200, deadline=None)
def test_arbitrary_mappings(raw: dict) -> None:
    """Mappings that nobody meant as jobs are refused like any other."""
    read_or_refuse(raw)


@given(st.text(alphabet=st.sampled_from("ab:{}[],&*!<>|-#?'\"\n \t0.e~%@`\\"), max_size=60))
@settings(max_examples=300, deadline=None)
def test_arbitrary_yaml(text: str) -> None:
    """Any text is YAML of plain data or a BadInput with its place."""
    result = outcome(lambda: load(text, "job.yaml"))
    assert not isinstance(result, BadInput) or result.path.startswith("job.yaml")


@given(
    text=st.text(max_size=80) | st.sampled_from([json.dumps(raw) for raw in SAMPLES]).flatmap(lambda whole: st.integers(0, len(whole)).map(lambda n: whole[:n]))
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_command_never_shows_a_traceback(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut and random files end with exit code 2, one line on standard error and nothing on standard output."""
    path = tmp_path / "job.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    if isinstance(outcome(lambda: read_job(path)), BadInput):
        assert run(["estimate", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert "Traceback" not in err
        assert "internal error" not in err


PLAUSIBLE = st.sampled_from(
    [
        0,
        1,
        2,
        3,
        7,
        128,
        10**6,
        10**9,
        0.5,
        True,
        False,
        ["nothing"],
        [],
        {},
        "none",
        "full",
        "cpu",
        "adamw",
        "sgd",
        "nf4",
        "int8",
        "lora",
        "prefix",
        "sdpa",
        "eager",
        "fp8",
        "bf16",
        "fp32",
        "bf16-mixed",
        "all-linear",
        "chunked",
        "foreach",
        "fused",
        "zero3",
        "transformers",
        "pytorch",
        "trl",
        "liger",
    ]
)


def has_engine(raw: dict) -> bool:
    """Whether the engine that a job names is a folder of this package."""
    folder = ENGINES.get(raw.get("train", {}).get("framework", "pytorch"))
    return folder is None or find_spec(f"everybyte.engines.{folder}") is not None


@given(st.sampled_from(SAMPLES), st.lists(st.tuples(st.sampled_from(PATHS), PLAUSIBLE), max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_estimator_answers_or_refuses(raw: dict, changes: list[tuple[tuple[str, ...], object]]) -> None:
    """A job of the form, however odd, has an answer that can be printed, or is refused in one line; nothing else comes out of the estimator."""
    for path, value in changes:
        raw = put(raw, path, value)
    job = outcome(lambda: read_job(raw))
    assume(isinstance(job, Job) and has_engine(raw))
    result = outcome(lambda: estimate(job))  # type: ignore[arg-type]
    if isinstance(result, Answer):
        assert line(answer_object(result))
    else:
        assert str(result).isprintable()
