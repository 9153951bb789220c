"""The worker processes: how many requests they hold at once, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from everybyte.web import work
from everybyte.web.replies import Reply
from everybyte.web.work import error_reply

BUSY = "the server is busy; try again in a second"
ENDS = "the server is shutting down"
DIED = "the worker process died; try again in a second"


class Pool:
    """`workers` processes and at most `queue` requests that wait for one."""

    def __init__(self, workers: int, queue: int, time_limit_s: float) -> None:
        self.workers, self.queue, self.time_limit_s = workers, queue, time_limit_s
        self.inside = 0
        """Requests that are being answered or wait."""
        self.is_closed = False
        self.deaths = 0
        """How often the processes had to be started anew."""
        self._context = multiprocessing.get_context("spawn")  # alike on all systems, and no copy of the server's threads and sockets
        self._executor, self._end = self._start()

    async def warm(self) -> None:
        """Starts the processes and waits until the first is ready."""
        loop = asyncio.get_running_loop()
        starting = [loop.run_in_executor(self._executor, work.ready) for _ in range(self.workers)]
        await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_full(self) -> bool:
        """Whether the next request is refused."""
        return self.inside >= self.workers + self.queue

    async def answer(self, task: str, body: bytes, seconds: float | None = None) -> Reply:
        """The reply of a worker; 503 where the queue is full or the worker dies."""
        if self.is_closed:
            return error_reply(503, "", "", ENDS)
        if self.is_full:
            return error_reply(503, "", "", BUSY)
        self.inside += 1
        executor = self._executor
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work.work, task, body, seconds)
        except (BrokenProcessPool, asyncio.CancelledError) as gone:
            mine = asyncio.current_task()
            if isinstance(gone, asyncio.CancelledError) and mine is not None and mine.cancelling():
                raise  # it is this request that is let go, not its place in the queue
            if not self.is_closed:
                self._renew(executor)
            return error_reply(503, "", "", ENDS if self.is_closed else DIED)
        finally:
            self.inside -= 1

    def close(self) -> None:
        """Ends all processes, whatever they are doing; requests that they hold get a 503."""
        self.is_closed = True
        self._stop()

    def wait(self) -> None:
        """Returns when the processes are gone and what they shared is given back."""
        self._executor.shutdown(wait=True)

    def _stop(self) -> None:
        self._end.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> tuple[ProcessPoolExecutor, multiprocessing.connection.Connection]:
        """Fresh processes, and the end of a pipe that keeps them alive while it is open. The first request starts them."""
        theirs, ours = self._context.Pipe(duplex=False)
        executor = ProcessPoolExecutor(self.workers, mp_context=self._context, initializer=work.start, initargs=(theirs, self.time_limit_s))
        return executor, ours

    def _renew(self, broken: ProcessPoolExecutor) -> None:
        """Starts anew, once for all requests that the same death took along."""
        if broken is not self._executor:
            return
        self.deaths += 1
        self._stop()
        self._executor, self._end = self._start()
