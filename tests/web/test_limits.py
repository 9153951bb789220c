"""What the server does when it is asked too much: size, time, number, and workers that die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from servers import SLOW, TRAIN, error_of, post, running


def wait_until_busy(base: str) -> None:
    """Returns when a server without a queue holds a request."""
    while httpx.get(f"{base}/health").json()["status"] == "ok":
        time.sleep(0.01)


def test_a_body_that_is_too_large_is_refused_unread(server: str) -> None:
    """A request that says it brings 50 MB is refused before any of it has come."""
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        head = f"POST /api/estimate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"nosniff" in answer


def test_fifty_megabytes_get_a_clean_refusal(server: str) -> None:
    """Somebody who sends all of a 50 MB paste before listening hears why it is refused, also without a stated length; the server goes on."""
    paste = b'{"model": "' + b"x" * 50_000_000 + b'"}'
    response = post(server, "estimate", paste)
    assert response.status_code == 413
    assert error_of(response)["message"] == "is larger than 4 MiB"

    def pieces() -> Any:
        yield from (paste[i : i + 100_000] for i in range(0, len(paste), 100_000))
        yield paste

    chunked = httpx.post(f"{server}/api/read", content=pieces(), headers={"content-type": "application/json"}, timeout=30)
    assert chunked.status_code == 413
    assert error_of(chunked)["message"] == "is larger than 48 MiB"
    assert post(server, "estimate", TRAIN).status_code == 200


def test_a_full_queue_is_refused_at_once() -> None:
    """One worker and no queue: while it works, others are told to come back, and health says busy."""
    with running(queue=0, time_limit_s=3) as base, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, base, "fit", SLOW)
        wait_until_busy(base)
        began = time.monotonic()
        refused = post(base, "estimate", TRAIN)
        assert time.monotonic() - began < 1
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "try again" in error_of(refused)["message"]
        assert first.result().status_code in (200, 503)
        assert post(base, "estimate", TRAIN).status_code == 200


def test_time_is_up() -> None:
    """An answer that takes longer than the limit is stopped with a 503, and the worker answers the next request."""
    with running(time_limit_s=0.3) as base:
        began = time.monotonic()
        late = post(base, "fit", SLOW)
        assert time.monotonic() - began < 2
        assert late.status_code == 503
        assert "time" in error_of(late)["message"]
        assert post(base, "job", {"job": TRAIN}).status_code == 200


def test_a_worker_that_dies_is_replaced() -> None:
    """The request that it held gets a 503; the next is answered by a new process, and the metrics count the death."""
    with running(queue=0, time_limit_s=20) as base, ThreadPoolExecutor(1) as pool:
        lost = pool.submit(post, base, "fit", SLOW)
        wait_until_busy(base)
        children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "spawn_main"], capture_output=True, text=True, check=True).stdout.split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        response = lost.result()
        assert response.status_code == 503
        assert "died" in error_of(response)["message"]
        assert post(base, "estimate", TRAIN).status_code == 200
        assert "everybyte_worker_deaths 1.0" in httpx.get(f"{base}/metrics").text


def test_many_at_once_are_all_answered(server: str) -> None:
    """Forty requests at once, each for another job, get their own answers."""
    jobs = [{**TRAIN, "name": f"job {i}", "train": {**TRAIN["train"], "seq_len": 256 + 8 * i}} for i in range(40)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda job: post(server, "estimate", job).json(), jobs))
    assert [answer["name"] for answer in found] == [job["name"] for job in jobs]
    peaks = [answer["figures"]["peak.allocated"] for answer in found]
    assert peaks == sorted(peaks)


def test_an_unexpected_fault_is_told_without_a_traceback(monkeypatch: Any, capsys: Any) -> None:
    """A fault of the program is a 500 in the contract's form; the details are on standard error alone."""
    from everybyte.web import tasks
    from everybyte.web.work import work

    def broken(_: bytes) -> bytes:
        raise RuntimeError("secret detail")

    monkeypatch.setitem(tasks.TASKS, "estimate", broken)
    reply = work("estimate", b'{"name": "mine"}')
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert b'"mine"' in reply.body
    assert "secret detail" in capsys.readouterr().err


def test_memory_is_limited() -> None:
    """A worker that wants more than its share gets a MemoryError, not the machine."""
    code = "from everybyte.web.work import limit_memory; limit_memory(2**29); bytearray(2**30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "MemoryError" in done.stderr


def test_a_client_that_goes_away_leaves_the_server_well(server: str) -> None:
    """Connections that end in the midst of a request disturb nobody."""
    host, port = server.removeprefix("http://").split(":")

    def leave() -> None:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"POST /api/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")

    threads = [threading.Thread(target=leave) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert post(server, "estimate", TRAIN).status_code == 200
