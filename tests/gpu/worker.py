"""Processes that run one job each. The next one imports its libraries while the current one works."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
RESULT = "RESULT "
TAIL = 20
"""Lines of a failed process that are shown."""


class Worker:
    """One process of run_job.py."""

    def __init__(self) -> None:
        command = [sys.executable, "-u", str(HERE / "run_job.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=HERE)
        self.out: queue.Queue[str | None] = queue.Queue()
        self.err: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.threads = [self._reader(self.process.stdout, self.out.put), self._reader(self.process.stderr, self._keep)]

    def _reader(self, stream: IO[str], take: Any) -> threading.Thread:
        def read() -> None:
            for line in stream:
                take(line.rstrip("\n"))
            take(None)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def _keep(self, line: str | None) -> None:
        if line is not None:
            self.err = [*self.err[-TAIL:], line]

    def run(self, task: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The result of a task; `error` where the process died or took longer than `timeout` seconds."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            while True:
                line = self.out.get(timeout=timeout)
                if line is None:
                    return {"error": f"the process ended with {self.process.wait()}: {' | '.join(self.err[-3:])}"}
                if line.startswith(RESULT):
                    found: dict[str, Any] = json.loads(line.removeprefix(RESULT))
                    return found
        except queue.Empty:
            return {"error": f"no result after {timeout:.0f} s"}
        except BrokenPipeError:
            return {"error": f"the process did not start: {' | '.join(self.err[-3:])}"}
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the process if it still runs."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
