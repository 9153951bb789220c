"""`everybyte ui` as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from servers import COMMAND, SLOW, TRAIN, post, start_process


def children_of(process: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in done.stdout.split()]


def lives(process: int) -> bool:
    """Whether a process is there and no zombie, whose parent has not looked yet."""
    try:
        return "zombie" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(processes: list[int], patience_s: float) -> bool:
    """Whether none of the processes lives after some time."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if not any(lives(process) for process in processes):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_start_answer_and_end(how: signal.Signals) -> None:
    """The first answer comes within 1.5 s of the address; the signal ends it within a second, without a word but a line's end, and without a process left."""
    process, base = start_process()
    began = time.monotonic()
    assert post(base, "estimate", TRAIN).status_code == 200
    assert time.monotonic() - began < 1.5
    workers = children_of(process.pid)
    assert workers
    began = time.monotonic()
    process.send_signal(how)
    out, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 1
    assert process.returncode == 0
    assert (out, err) == ("", "\n")
    assert gone(workers, 1)


def test_ctrl_c_in_the_midst_of_work() -> None:
    """Also while workers compute and requests wait; a terminal sends the signal to every process of the group."""
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    base = process.stdout.readline().split()[3].rstrip("/")
    body = httpx.Request("POST", f"{base}/api/fit", json=SLOW)
    with httpx.Client() as client, socket.create_connection(("127.0.0.1", httpx.URL(base).port or 0)) as connection:
        content = body.read()
        head = f"POST /api/fit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        waiting = [socket.create_connection(("127.0.0.1", httpx.URL(base).port or 0)) for _ in range(8)]
        for other in waiting:
            other.sendall(head.encode() + content)
        time.sleep(0.3)
        assert client.get(f"{base}/health").status_code == 200
        workers = children_of(process.pid)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=10)
        for other in waiting:
            other.close()
    assert time.monotonic() - began < 2
    assert (out, err) == ("", "\n")
    assert gone(workers, 1)


def test_workers_end_with_a_server_that_is_killed() -> None:
    """No process is left when the server dies without a word."""
    process, base = start_process()
    assert post(base, "estimate", TRAIN).status_code == 200
    workers = children_of(process.pid)
    process.kill()
    process.communicate(timeout=10)
    assert gone(workers, 2)


def test_a_taken_port_is_one_sentence() -> None:
    """Exit code 2 and a way out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [*COMMAND[:-3], "--port", str(port), "--no-browser"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: --port: {port} is in use by another program; try --port {port + 1}, or --port 0 for any free one\n"


def test_a_missing_extra_is_one_sentence() -> None:
    """Without Litestar the command says what to install."""
    code = "import sys; sys.modules['litestar'] = None; from everybyte.cli import main; sys.argv[1:] = ['ui']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the web page needs an optional dependency: pip install 'everybyte[web]'\n"


def test_the_command_line_pays_nothing() -> None:
    """Neither `import everybyte` nor an estimate loads a library of the web."""
    code = (
        "import sys; import everybyte; everybyte.estimate({'model': 'Qwen/Qwen2.5-0.5B', 'train': {'micro_batch': 1, 'seq_len': 64}})\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('litestar', 'uvicorn', 'prometheus_client', 'asyncio', 'httpx')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == "[]"
