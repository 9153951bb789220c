"""What worker processes do: the bytes of a request go in, the bytes of its answer come out.

A worker reads no file and asks no hub for a model (`models.source.close_door`), stops at a time limit, and ends with the server.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import msgspec

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.web.forms import ErrorAnswer, Fault
from everybyte.web.replies import MoreNeeded, Reply

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python looks for garbage every 700 objects; an answer makes thousands of them, and few in cycles."""
MOST_MEMORY_BYTES = 4 * 2**30
FIRST_JOB = b'{"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "l4"}, "train": {"micro_batch": 1, "seq_len": 64}}'


class TimeIsUp(BaseException):
    """Raised in the midst of an answer when its time is up. No Exception, so that nothing takes it for a fault of its own."""


def start(end: Connection, time_limit_s: float) -> None:
    """Prepares a worker and answers one small job, so that the first request finds everything loaded. When `end` closes, the worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes; the server tells us when to go
    threading.Thread(target=_end_with_server, args=(end,), daemon=True).start()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    limit_memory(MOST_MEMORY_BYTES)
    from everybyte.models.source import close_door
    from everybyte.report.language import speak

    speak("en")  # answers are for programs; who wants another language asks for it

    close_door()
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _time_is_up)
    _limits["seconds"] = time_limit_s
    work("estimate", FIRST_JOB)
    gc.freeze()


def limit_memory(most: int) -> None:
    """Lets this process take no more memory than that, where the system can limit it: a request that wants more is refused, and the machine lives on."""
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def ready() -> int:
    """Nothing but a sign of life: the id of the process."""
    return os.getpid()


_limits = {"seconds": 0.0}


def work(task: str, body: bytes, seconds: float | None = None) -> Reply:
    """The reply to a request. Whatever goes wrong becomes an error in the contract's form; an unexpected fault is told on standard error."""
    try:
        return _timed(task, body, _limits["seconds"] if seconds is None else seconds)
    except TimeIsUp:
        return error_reply(503, "", "", "time limit reached; ask for less, or run everybyte on your own machine, where there is no limit")
    except MoreNeeded as more:
        return error_reply(400, "", more.path, more.message, more.needs)
    except BadInput as error:
        return error_reply(400, _name(body), error.path, error.message)
    except EverybyteError as error:
        return error_reply(503, _name(body), "", str(error))
    except MemoryError:
        return error_reply(503, "", "", "the answer needs more memory than this server allows")
    except Exception as fault:  # noqa: BLE001  # the last line of defence: no request takes a worker down, and nobody sees a traceback
        traceback.print_exception(fault, file=sys.stderr)
        return error_reply(500, _name(body), "", f"internal error ({type(fault).__name__}); the server's log has the details. Please report it")


def error_reply(status: int, name: str, path: str, message: str, needs: int | None = None) -> Reply:
    """An error in the contract's form."""
    return Reply(status, msgspec.json.encode(ErrorAnswer(name=name, error=Fault(path=path, message=message, needs=needs))))


def _timed(task: str, body: bytes, seconds: float) -> Reply:
    from everybyte.web.tasks import TASKS

    answer: Callable[[bytes], bytes | Reply] = TASKS[task]
    if not seconds or not hasattr(signal, "setitimer"):
        found = answer(body)
    else:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            found = answer(body)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return found if isinstance(found, Reply) else Reply(200, found)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise TimeIsUp


def _name(body: bytes) -> str:
    """What the job of a request calls itself, if it can be found."""
    try:
        asked: Any = msgspec.json.decode(body)
        name = (asked["job"] if isinstance(asked.get("job"), dict) else asked).get("name")
    except (msgspec.DecodeError, AttributeError, UnicodeDecodeError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""


def _end_with_server(end: Connection) -> None:
    """Waits until the server closes its end of the pipe, or is no more."""
    wait([end])
    os._exit(0)
