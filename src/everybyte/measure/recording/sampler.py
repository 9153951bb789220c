"""Looks at a run from outside, ten times a second: GPUs, its processes on them, host memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Self

from everybyte.measure.recording.gpus import Driver
from everybyte.measure.recording.host import resident, tree

PERIOD_S = 0.1


class Sampler:
    """`with Sampler(pid, driver) as sampler:` … then `sampler.result()`. A thread that sleeps between two looks."""

    def __init__(self, root: int, driver: Driver | None, period_s: float = PERIOD_S) -> None:
        self._root, self._driver, self._period = root, driver, period_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peaks: dict[int, int] = defaultdict(int)
        self._own: dict[tuple[int, int], int] = defaultdict(int)
        self._before: dict[int, int] = {}
        self._gpus: dict[int, tuple[str, int]] = {}
        self._host = 0
        self._looks = 0

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._period):
            self._look()

    def _look(self) -> None:
        pids = tree(self._root)
        self._host = max(self._host, resident(pids))
        self._looks += 1
        if self._driver is None:
            return
        for state in self._driver.states():
            self._gpus[state.number] = (state.name, state.capacity)
            self._before.setdefault(state.number, state.used)
            self._peaks[state.number] = max(self._peaks[state.number], state.used)
            for pid in set(pids) & state.processes.keys():
                self._own[state.number, pid] = max(self._own[state.number, pid], state.processes[pid])

    def result(self) -> dict[str, Any]:
        """Highest values that were seen, bytes. GPUs that the run did not use are left out where some was used."""
        used = {index for index, _ in self._own}
        gpus = [
            {
                "index": index,
                "name": name,
                "capacity": capacity,
                "used_before": self._before[index],
                "used_peak": self._peaks[index],
                "processes": {str(pid): peak for (at, pid), peak in sorted(self._own.items()) if at == index},
            }
            for index, (name, capacity) in sorted(self._gpus.items())
            if not used or index in used
        ]
        return {"gpus": gpus, "host_peak": self._host, "looks": self._looks, "period_s": self._period}
