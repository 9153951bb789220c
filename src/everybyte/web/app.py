"""The application: routes, limits and headers put together."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException

from everybyte.job.read import MOST_BYTES
from everybyte.web.limits import App, Gate, Receive, Scope, Send
from everybyte.web.metrics import Metrics
from everybyte.web.pages import Pages, SecurityHeaders
from everybyte.web.pool import Pool
from everybyte.web.routes.answers import ANSWERS, response
from everybyte.web.routes.catalogue import CATALOGUE
from everybyte.web.routes.state import STATE
from everybyte.web.work import error_reply

MOST_READ_BYTES = 48 * 2**20
"""Of uploads: 32 MiB of a header, a log or a snapshot, which base64 makes a third longer, and a config beside it."""
UPLOADS = ("/api/read", "/api/doctor", "/api/snapshot", "/api/figures")
"""Routes that take files."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

MOST_WORKERS = 8
"""Processes that a server starts unasked; each takes some 100 MB."""

log = logging.getLogger("everybyte.web")


class Limits(NamedTuple):
    """What one server takes on."""

    workers: int = min(os.cpu_count() or 1, MOST_WORKERS)
    queue: int = 64
    """Requests that wait for a worker; further ones are refused with 503."""
    time_limit_s: float = 10.0
    """For one answer; 0 is no limit."""
    uploads: int = 4
    """Dropped files that are taken in at once."""


USUAL = Limits()


class Application:
    """The ASGI application. `end` lets go of all that it is computing, so that a server can end at once; `wait` returns when nothing is left."""

    def __init__(self, app: App, pool: Pool) -> None:
        self._app = app
        self.end, self.wait = pool.close, pool.wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        await self._app(scope, receive, send)


def create_app(limits: Limits = USUAL, hosts: frozenset[str] = LOOPBACK) -> Application:
    """The application. `hosts` are the names it answers to; `*` is any."""
    pool = Pool(limits.workers, limits.queue, limits.time_limit_s)
    metrics = Metrics(pool)

    @asynccontextmanager
    async def life(_: Litestar) -> AsyncIterator[None]:
        await pool.warm()
        try:
            yield
        finally:
            pool.close()

    routes = Litestar(
        route_handlers=[*ANSWERS, *CATALOGUE, *STATE],
        lifespan=[life],
        state=State({"pool": pool, "metrics": metrics, "pages": Pages()}),
        exception_handlers={HTTPException: _refused, Exception: _failed},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,  # the gate in front counts the bytes
    )
    gate = Gate(cast("App", routes), hosts, MOST_BYTES, dict.fromkeys(UPLOADS, MOST_READ_BYTES), limits.uploads)
    return Application(metrics.watch(SecurityHeaders(gate)), pool)


def _refused(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Unknown routes, wrong methods, wrong queries."""
    path = request.scope["path"]
    if isinstance(error, ValidationException):
        first: dict[str, Any] = error.extra[0] if isinstance(error.extra, list) and error.extra else {}
        return response(error_reply(400, "", str(first.get("key", "query")), str(first.get("message", error.detail))))
    says = {404: "there is nothing here", 405: f"does not take {request.method}"}.get(error.status_code, error.detail)
    found = response(error_reply(error.status_code, "", path, says))
    for name, value in (error.headers or {}).items():
        found.headers[name] = value
    return found


def _failed(request: Request[Any, Any, Any], fault: Exception) -> Response[bytes]:
    """A fault of the server itself: the log has it, the client is told that it happened."""
    log.error("%s %s", request.method, request.scope["path"], exc_info=fault)
    return response(error_reply(500, "", "", f"internal error ({type(fault).__name__}); the server's log has the details. Please report it"))
