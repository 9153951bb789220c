"""Cases on the cores of this machine, in worker processes. One that ends takes nothing with it but the case that ended it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from everybyte.grid.cases import Case
from everybyte.grid.rows import Row, lost, row_of

AHEAD = 4
"""Cases a worker that are handed out before their turn: enough that none waits for work."""
ENDED = "the process that worked on it ended, most likely because memory ran out"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores(cases: Sequence[Case], workers: int) -> Iterator[tuple[Case, Row]]:
    """Each case with its row, in the order in which they finish; on one worker in this process."""
    if workers == 1 or len(cases) == 1:
        for case in cases:
            yield case, row_of(case)
        return
    suspects: list[Case] = []
    todo = iter(cases)
    left = list(islice(todo, workers * AHEAD))
    while left:
        for case, row in _through_pool(left, todo, workers):
            if row is None:
                suspects.append(case)
            else:
                yield case, row
        left = list(islice(todo, workers * AHEAD))  # the pool broke: a new one takes what was not handed out yet
    again: list[Case] = []
    for case, row in _through_pool(suspects, iter(()), min(workers, len(suspects))) if suspects else ():
        if row is None:
            again.append(case)
        else:
            yield case, row
    for case in again:  # one of them ended a process twice: alone, it shows
        for _, row in _through_pool([case], iter(()), 1):
            yield case, row if row is not None else lost(case, ENDED)


def _through_pool(first: Sequence[Case], more: Iterator[Case], workers: int) -> Iterator[tuple[Case, Row | None]]:
    """Rows of the first cases and, while all goes well, of more; None for those that were under way when a process ended."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
    waiting: dict[Future[Row], Case] = {}
    broken = False
    todo = deque(first)
    try:
        while todo or waiting:
            while todo:
                case = todo.popleft()
                try:
                    waiting[pool.submit(row_of, case)] = case
                except BrokenProcessPool:
                    broken = True
                    yield case, None
            finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                case = waiting.pop(future)
                try:
                    yield case, future.result()
                except BrokenProcessPool:
                    broken = True
                    yield case, None
            if not broken:
                todo.extend(islice(more, len(finished)))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends with it, even if that one is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
