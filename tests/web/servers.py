"""Servers for the tests of the page and its API, and how the tests talk to them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import uvicorn

from everybyte.web.app import Limits, create_app
from everybyte.web.server import address, listen

COMMAND = [sys.executable, "-c", "from everybyte.cli import main; main()", "ui", "--port", "0", "--no-browser"]
TRAIN: dict[str, Any] = {
    "name": "seven",
    "model": "Qwen/Qwen2.5-7B",
    "hardware": {"gpu": "l40s", "gpus": 1},
    "train": {"framework": "trl", "micro_batch": 1, "seq_len": 1024, "adapter": {"kind": "lora", "rank": 16}, "quantization": "nf4", "precision": "bf16"},
}
SERVE: dict[str, Any] = {"name": "served", "model": "Qwen/Qwen2.5-7B", "hardware": {"gpu": "l40s"}, "serve": {"engine": "vllm", "context": 8192}}
SLOW: dict[str, Any] = {
    "job": {
        "model": "Qwen/Qwen3-235B-A22B",
        "hardware": {"gpu": "b200", "gpus": 188},
        "train": {"framework": "megatron", "micro_batch": 1, "seq_len": 512, "mesh": {"tp": 4, "pp": 47}},
    },
    "grow": "seq_len",
}
"""Tries many lengths over 47 pipeline stages: seconds, where one GPU takes a third of one."""


def start_process(*more: str) -> tuple[subprocess.Popen[str], str]:
    """`everybyte ui` at a free port, and its address without the last slash."""
    process = subprocess.Popen([*COMMAND, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, line.split()[3].rstrip("/")


@contextmanager
def running(**limits: Any) -> Iterator[str]:
    """The address of a server in this process with other limits."""
    app = create_app(Limits(**{"workers": 1, **limits}))
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield address("127.0.0.1", listening).rstrip("/")
    finally:
        app.end()
        server.should_exit = True
        thread.join()
        app.wait()
        listening.close()


@cache
def client() -> httpx.Client:
    """One client for all tests: each new one reads the certificates of all authorities. Every request has a connection of its own."""
    return httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def post(base: str, task: str, body: Any, **more: Any) -> httpx.Response:
    """The response to a posted JSON object, or to bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client().post(f"{base}/api/{task}", content=content, headers={"content-type": "application/json", **more.pop("headers", {})}, timeout=60, **more)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response in the contract's form; anything else fails."""
    body = response.json()
    assert set(body) == {"name", "error"}
    assert {"path", "message"} <= set(body["error"]) <= {"path", "message", "needs"}
    assert "Traceback" not in response.text
    return body["error"]
