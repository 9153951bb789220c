"""Cases on a Dask cluster that is already there. A worker that goes away takes nothing with it: the scheduler hands its cases to others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from everybyte.basics.errors import BadInput, MissingExtra
from everybyte.basics.version import __version__
from everybyte.grid.cases import Case
from everybyte.grid.rows import Row, lost, row_of

FLAG = "--scheduler"
ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://[^\s/]+:\d{1,5}/?")
WAIT_S = 5
"""Seconds for a scheduler to answer."""
AHEAD = 8
"""Cases a thread that the scheduler holds before their turn: enough that no worker waits for the network."""
LEAST_AHEAD = 64
"""Of the whole cluster: workers may join later."""


def on_cluster(cases: Sequence[Case], address: str) -> Iterator[tuple[Case, Row]]:
    """Each case with its row, in the order in which they finish. Raises BadInput where no scheduler answers, MissingExtra without dask.distributed."""
    client = _client(address)
    try:
        _same_release(client, address)
        from distributed import as_completed

        todo = iter(cases)
        ahead = max(LEAST_AHEAD, AHEAD * sum(client.nthreads().values()))
        by_key = {case.key: case for case in islice(todo, ahead)}
        running = as_completed([_submit(client, case) for case in by_key.values()], loop=client.loop)
        for future in running:
            case = by_key.pop(future.key)
            yield case, _row(case, future)
            future.release()
            following = next(todo, None)
            if following is not None:
                by_key[following.key] = following
                running.add(_submit(client, following))
    finally:
        client.close()


def _submit(client: Any, case: Case) -> Any:
    return client.submit(row_of, case, key=case.key, pure=False)


def _row(case: Case, future: Any) -> Row:
    """The row of a case that finished, or that ended one worker after another."""
    from distributed import KilledWorker

    try:
        found: Row = future.result()
    except KilledWorker:
        return lost(case, "each worker that took it ended, most likely because memory ran out")
    except (OSError, asyncio.CancelledError):
        raise BadInput(FLAG, "the scheduler went away; the same command goes on where it was when there is one again") from None
    return found


def _client(address: str) -> Any:
    if not ADDRESS.fullmatch(address):
        raise BadInput(FLAG, f"{address!r} is no address of a Dask scheduler, such as tcp://10.0.0.1:8786")
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise MissingExtra(FLAG, "cluster") from None
    import logging

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said in one message, or is a row
    try:
        client = Client(address, timeout=WAIT_S, set_as_default=False)
    except (TimeoutError, OSError, ValueError):
        raise BadInput(FLAG, f"no Dask scheduler answers at {address} within {WAIT_S} s; start one with `dask scheduler`, or leave the flag out") from None
    try:
        client.wait_for_workers(1, timeout=WAIT_S)
    except (TimeoutError, OSError):
        client.close()
        raise BadInput(FLAG, f"the scheduler at {address} has no workers; start some with `dask worker {address}`") from None
    return client


def _same_release(client: Any, address: str) -> None:
    """Refuses workers that would answer otherwise than this machine."""
    found = client.run(release_here, on_error="return")
    for worker, release in found.items():
        if release != __version__:
            has = "no everybyte" if isinstance(release, Exception) else f"everybyte {release}"
            client.close()
            raise BadInput(FLAG, f"the worker {worker} of {address} has {has}; install everybyte {__version__} there")


def release_here() -> str:
    """The release that a worker has."""
    return __version__
