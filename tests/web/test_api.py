"""Each route of the API: the shape of its answers, and each of its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from servers import SERVE, TRAIN, error_of, post

from everybyte.cli.app import group
from everybyte.web import forms

EXAMPLES = sorted(path for path in (Path(__file__).parents[2] / "examples").rglob("*.yaml") if path.parent.name != "configs")  # those are configurations


def printed(*args: str, job: dict[str, Any]) -> Any:
    """What a command prints under --json for a job."""
    done = CliRunner().invoke(group, [*args, "--json"], input=json.dumps(job))
    return json.loads(done.stdout)


def fits(response: httpx.Response, form: type) -> Any:
    """The JSON of a response, which has exactly the keys and types of the form."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    msgspec.json.decode(response.content, type=form)
    return response.json()


@pytest.mark.parametrize("job", [TRAIN, SERVE], ids=["train", "serve"])
def test_estimate_is_what_the_command_prints(server: str, job: dict[str, Any]) -> None:
    """/api/estimate answers with exactly the object of `estimate --json`."""
    assert fits(post(server, "estimate", job), forms.JobAnswer) == printed("estimate", "-", job=job)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_answered(server: str, path: Path) -> None:
    """Each example file, read as /api/read reads it, is answered as the command answers it."""
    import base64

    dropped = {"files": [{"name": path.name, "base64": base64.b64encode(path.read_bytes()).decode()}]}
    job = fits(post(server, "read", dropped), forms.ReadAnswer)["job"]
    response = post(server, "estimate", job)
    if response.status_code == 400:
        assert "catalogue" in error_of(response)["message"]  # a model that lies beside the example is not read
        return
    assert fits(response, forms.JobAnswer) == printed("estimate", "-", job=job)


def test_explain_adds_tex(server: str) -> None:
    """/api/explain answers as `explain --json`, each row with its formula as TeX besides."""
    found = fits(post(server, "explain", {"job": TRAIN}), forms.ExplainAnswer)
    for row in found["rows"]:
        assert row.pop("tex")
        assert row.pop("tex_numbers")
    assert found == printed("explain", "-", job=TRAIN)


def test_explain_one_row_and_one_setting(server: str) -> None:
    """An entry picks rows, and the key of a setting its origin."""
    rows = fits(post(server, "explain", {"job": TRAIN, "entry": "weights"}), forms.ExplainAnswer)["rows"]
    assert rows
    assert all(row["id"].startswith("weights/") for row in rows)
    setting = fits(post(server, "explain", {"job": TRAIN, "entry": "train.attention"}), forms.ExplainAnswer)["setting"]
    assert setting["origin"].startswith("default of")


@pytest.mark.parametrize(("job", "key"), [(TRAIN, "micro_batch"), (SERVE, "context"), (SERVE, "weights"), (SERVE, "memory_fraction")])
def test_fit_is_what_the_command_prints(server: str, job: dict[str, Any], key: str) -> None:
    """/api/fit answers with exactly the object of `fit --json`, for numbers, formats and shares."""
    assert fits(post(server, "fit", {"job": job, "grow": key}), forms.FitAnswer) == printed("fit", "-", "--grow", key, job=job)


def test_compare(server: str) -> None:
    """Twice the batch: only batch-sized places differ, the changed setting is named, and both verdicts are there."""
    other = {**TRAIN, "train": {**TRAIN["train"], "micro_batch": 2}}
    found = fits(post(server, "compare", {"job": TRAIN, "against": other}), forms.CompareAnswer)
    assert found["settings"] == [{"key": "train.micro_batch", "here": 1, "there": 2}]
    assert sum(row["more"] for row in found["differences"]) == found["rank"]["allocated"] - found["against"]["allocated"]
    assert [verdict["fits"] for verdict in found["verdicts"]] == [True, True]
    assert all(row["more"] < 0 for row in found["differences"])


def test_charts(server: str) -> None:
    """Pictures come as Vega-Lite specifications with a description; a knob's picture only when asked for."""
    found = fits(post(server, "charts", {"job": TRAIN, "theme": "dark", "knob": "seq_len"}), forms.ChartsAnswer)["pictures"]
    assert set(found) == {"card", "phases", "ranks", "places", "knob"}
    assert all(spec["$schema"].endswith("v5.json") and spec["description"] for spec in found.values())
    assert set(fits(post(server, "charts", {"job": TRAIN, "pictures": ["card"]}), forms.ChartsAnswer)["pictures"]) == {"card"}
    without_card = {**TRAIN, "hardware": {"gpus": 1}}
    assert "card" not in fits(post(server, "charts", {"job": without_card}), forms.ChartsAnswer)["pictures"]


def test_report(server: str) -> None:
    """The report is one HTML file that names the job."""
    response = post(server, "report", {"job": TRAIN})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "seven" in response.text


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_job_text_is_the_same_job(server: str, kind: str) -> None:
    """The written job file, read again, is the job."""
    import yaml

    text = fits(post(server, "job", {"job": TRAIN, "format": kind}), forms.TextAnswer)["text"]
    again = fits(post(server, "estimate", yaml.safe_load(text)), forms.JobAnswer)
    assert again == fits(post(server, "estimate", TRAIN), forms.JobAnswer)


def test_catalogues(server: str) -> None:
    """Models, devices, formulas and settings are listed, searched by words and counted beyond the limit."""
    models = fits(httpx.get(f"{server}/api/models", params={"q": "qwen2.5 7b", "limit": 2}), forms.ModelsAnswer)
    assert len(models["models"]) == 2 < models["found"]
    one = fits(httpx.get(f"{server}/api/models", params={"q": "Qwen/Qwen2.5-7B"}), forms.ModelsAnswer)["models"]
    assert [(row["params"], row["layers"], row["hidden"], row["context"]) for row in one] == [(7_615_616_512, 28, 3584, 131_072)]
    every = fits(httpx.get(f"{server}/api/models", params={"limit": 10_000}), forms.ModelsAnswer)["models"]
    assert len([row for row in every if row["layers"] and row["hidden"]]) > 0.9 * len(every)
    assert fits(httpx.get(f"{server}/api/gpus", params={"q": "4090"}), forms.GpusAnswer)["gpus"][0]["name"] == "RTX-4090"
    assert fits(httpx.get(f"{server}/api/gpus", params={"q": "nothing like it"}), forms.GpusAnswer)["gpus"] == []
    assert fits(httpx.get(f"{server}/api/formulas", params={"q": "zero-2"}), forms.FormulasAnswer)["formulas"][0]["tex"]
    settings = {row["key"]: row for row in fits(httpx.get(f"{server}/api/settings"), forms.SettingsAnswer)["settings"]}
    assert settings["train.micro_batch"]["kind"] == "whole"
    assert settings["train.micro_batch"]["minimum"] == 1
    assert "fsdp2" in settings["train.sharding"]["values"]
    assert settings["train.buckets.live"]["wide"]
    assert not settings["serve.context"]["wide"]


def test_truth_of_a_group(server: str) -> None:
    """The errors of one group of records come with their number, and a group that is none is refused."""
    found = fits(httpx.get(f"{server}/api/truth", params={"group": "fms-lora"}, timeout=60), forms.TruthAnswer)
    assert found["all"]["answered"] > 0
    assert {row["group"] for row in found["groups"]} == {"fms-lora"}
    assert error_of(httpx.get(f"{server}/api/truth", params={"group": "none-such"}))["path"] == "group"
    assert "regular expression" in error_of(httpx.get(f"{server}/api/truth", params={"group": "("}))["message"]


def test_state(server: str) -> None:
    """Health, metrics by route, and the description are there."""
    assert fits(httpx.get(f"{server}/health"), forms.HealthAnswer)["status"] == "ok"
    metrics = httpx.get(f"{server}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'route="/health"' in metrics.text
    assert "/nothing-here-" not in httpx.get(f"{server}/metrics").text
    assert httpx.get(f"{server}/openapi.json").json()["openapi"] == "3.1.0"


def test_the_page_is_served(server: str) -> None:
    """The page and its files come compressed, with a tag, and as nothing but the tag when the client has them."""
    page = httpx.get(f"{server}/", headers={"accept-encoding": "gzip"})
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    again = httpx.get(f"{server}/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/none.js"])
def test_no_other_file_is_served(server: str, path: str) -> None:
    """Nothing outside the folder of the page can be had."""
    import http.client

    connection = http.client.HTTPConnection(server.removeprefix("http://"))
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 404
    assert b"error" in response.read()
    connection.close()


def test_every_response_carries_the_security_headers(server: str) -> None:
    """Pages, answers, refusals and unknown routes alike."""
    for response in (httpx.get(server), httpx.get(f"{server}/nothing"), post(server, "estimate", b"x"), post(server, "estimate", TRAIN)):
        assert "script-src 'self'; " in response.headers["content-security-policy"]
        assert "unsafe-eval" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("task", "body", "path"),
    [
        ("estimate", b"", "request"),
        ("estimate", b"[1]", "request"),
        ("estimate", b'{"model": "x", "model": "y"}', "request"),
        ("estimate", b'{"model": NaN}', "request"),
        ("estimate", b"\xff\xfe", "request"),
        ("estimate", b"[" * 100_000, "request"),
        ("estimate", {**TRAIN, "train": {"micro_batc": 1}}, "train.micro_batc"),
        ("estimate", {**TRAIN, "train": {"micro_batch": 0}}, "train.micro_batch"),
        ("estimate", {**TRAIN, "model": "<script>alert(1)</script>"}, "model"),
        ("explain", {"job": TRAIN, "rank": "none"}, "rank"),
        ("explain", {"job": TRAIN, "entry": "none at all"}, "entry"),
        ("explain", {"job": TRAIN, "more": 1}, "more"),
        ("explain", {}, "job"),
        ("fit", {"job": TRAIN, "grow": "nothing"}, "grow"),
        ("fit", {"job": {**TRAIN, "hardware": {}}, "grow": "micro_batch"}, "hardware.gpu"),
        ("compare", {"job": TRAIN, "against": {**TRAIN, "model": "none/such"}}, "against.model"),
        ("charts", {"job": TRAIN, "pictures": ["cat"]}, "pictures[0]"),
        ("charts", {"job": TRAIN, "knob": "nothing"}, "knob"),
        ("job", {"job": TRAIN, "format": "toml"}, "format"),
        ("read", {"files": []}, "files"),
    ],
)
def test_bad_requests_name_their_place(server: str, task: str, body: Any, path: str) -> None:
    """What cannot be answered is a 400 in the contract's form with the place of the fault."""
    response = post(server, task, body)
    assert response.status_code == 400, response.text
    assert error_of(response)["path"].startswith(path)


def test_an_error_carries_the_name_of_its_job(server: str) -> None:
    """As the command's error line does."""
    assert post(server, "estimate", {**TRAIN, "train": {"micro_batch": -1}}).json()["name"] == "seven"
    assert post(server, "explain", {"job": {**TRAIN, "train": {"micro_batch": -1}}}).json()["name"] == "seven"


def test_unknown_routes_and_wrong_methods(server: str) -> None:
    """404 and 405 have the contract's form, and 405 says what is allowed; what is not JSON is a 415."""
    assert error_of(httpx.get(f"{server}/api/none")) == {"path": "/api/none", "message": "there is nothing here"}
    wrong = httpx.get(f"{server}/api/estimate")
    assert wrong.status_code == 405
    assert error_of(wrong)["path"] == "/api/estimate"
    assert "POST" in wrong.headers["allow"]
    form = httpx.post(f"{server}/api/estimate", data={"a": "b"})
    assert form.status_code == 415
    assert error_of(form)["path"] == "Content-Type"
    for query in ("limit=x", "limit=-1"):
        refused = httpx.get(f"{server}/api/models?{query}")
        assert refused.status_code == 400
        assert error_of(refused)["path"] == "limit"


def test_a_name_that_is_not_ours_is_refused(server: str) -> None:
    """A page of somebody else whose name points here (DNS rebinding) gets nothing."""
    for host in ("evil.example", "evil.example:80", "", "localhost.evil.example"):
        assert httpx.get(f"{server}/health", headers={"host": host}).status_code == 400
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80"):
        assert httpx.get(f"{server}/health", headers={"host": host}).status_code == 200


def test_long_answers_are_compressed(server: str) -> None:
    """A long ledger is sent as gzip to who takes it, and plain to who does not."""
    zipped = post(server, "estimate", TRAIN, headers={"accept-encoding": "gzip"})
    plain = post(server, "explain", {"job": TRAIN}, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert post(server, "explain", {"job": TRAIN}, headers={"accept-encoding": "gzip"}).headers["content-encoding"] == "gzip"
    assert zipped.json()["name"] == "seven"
