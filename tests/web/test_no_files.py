"""No request makes the server read a file of its machine or ask the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers import SERVE, TRAIN, error_of, post, running

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
PATHS = [
    "/etc/passwd",
    "./x",
    "../x",
    "~",
    "~root/x",
    "hf:org/name",
    "hf:",
    "file.gguf",
    "model.safetensors",
    "config.json",
    "src",
    "tests",
    ".",
    "..",
    "/",
    "",
    "C:\\x",
    ".\\x",
    "file:///etc/passwd",
    "//host/share",
    "%2Fetc%2Fpasswd",
    "x" * 5000,
]


def jobs_with(path: str) -> list[dict[str, Any]]:
    """Jobs that hold a path wherever a job may name a model."""
    draft = {**SERVE, "serve": {**SERVE["serve"], "draft": {"method": "draft_model", "model": path, "tokens": 3}}}
    gguf = {**draft, "serve": {**draft["serve"], "engine": "llama.cpp", "weights": "q4_k_m"}}
    return [{**TRAIN, "model": path}, {**SERVE, "model": path}, draft, gguf]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:20] or "empty")
def test_paths_are_refused_everywhere(server: str, path: str) -> None:
    """A model, or a draft model, that is no catalogue name is refused by every route, and the message says what to do instead."""
    for job in jobs_with(path):
        bodies = {task: {"job": job} for task in ("explain", "charts", "report")}
        bodies |= {"estimate": job, "fit": {"job": job, "grow": "seq_len" if "train" in job else "context"}}
        bodies |= {"compare": {"job": TRAIN, "against": job}}
        for task, body in bodies.items():
            response = post(server, task, body)
            assert response.status_code == 400, (task, job, response.text)
            message = error_of(response)["message"]
            assert "no file or hub is read here" in message or (path == "" and "empty" in message), message
            assert len(message) < 600


def test_an_existing_file_and_one_that_is_not_there_get_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can find out which files the server has: a valid config, a folder beside the server and a name that is not there are refused alike."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    with running() as base:
        said = []
        for path in (str(tmp_path / "config.json"), str(tmp_path / "cinfog.json"), "folder", "redlof"):
            message = error_of(post(base, "estimate", {**TRAIN, "model": path}))["message"]
            said.append(message.replace(repr(path), "").partition(" (did you mean")[0].partition(",")[0])
        assert len(set(said)) == 1
        assert post(base, "estimate", {**TRAIN, "model": {"config": CONFIG}}).status_code == 200


AUDIT = """
import json, sys
from everybyte.models.source import close_door
from everybyte.web.work import work
import everybyte.catalog
close_door()
root = everybyte.__file__.rpartition("/")[0]
homes = (root, *(path for path in sys.path if path), sys.base_prefix)
seen = []
def hook(event, args):
    if event == "open" and not str(args[0]).startswith(homes) and not isinstance(args[0], int):
        seen.append(str(args[0]))
    if event in ("os.listdir", "os.scandir", "subprocess.Popen", "os.system") or event.startswith(("socket.", "urllib.", "http.")):
        if not str(args[0]).startswith(homes):
            seen.append(event)
sys.addaudithook(hook)
statuses = [work(task, json.dumps(body).encode()).status for task, body in json.load(sys.stdin)]
print(json.dumps({"seen": seen, "statuses": statuses}))
"""


def test_nothing_is_opened() -> None:
    """An audit of the interpreter sees no file opened beside the package and Python itself, no folder listed, no socket made, whatever a job holds."""
    extra = {**TRAIN, "train": {**TRAIN["train"], "extra": {"algorithm": "dpo", "ref_model": "/etc/passwd", "reward_model": "./x", "value_model": "hf:a/b"}}}
    jobs = [job for path in PATHS for job in jobs_with(path)] + [extra, TRAIN, SERVE, {**TRAIN, "env": {"alloc_conf": "/etc/passwd"}}]
    asked = [("estimate", job) for job in jobs] + [("explain", {"job": job}) for job in jobs]
    done = subprocess.run([sys.executable, "-c", AUDIT], input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found["seen"] == []
    assert set(found["statuses"]) <= {200, 400}
    assert found["statuses"].count(200) >= 4
