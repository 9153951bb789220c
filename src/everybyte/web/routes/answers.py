"""Everything that is computed: a request's body goes to a worker process, whose reply is passed on as it is."""

from __future__ import annotations

import gzip
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from everybyte.web.limits import retry
from everybyte.web.pool import Pool
from everybyte.web.replies import JSON, Reply
from everybyte.web.work import error_reply

POSTED = ("estimate", "explain", "fit", "compare", "charts", "measured", "report", "job", "read", "plan", "hardware", "export", "doctor", "snapshot", "figures")
"""Each is the name of a task and of its route, /api/NAME."""
Pattern = Annotated[str, QueryParameter(max_length=200)]
LEAST_COMPRESSED = 16 * 1024


def response(reply: Reply, request: Request[Any, Any, Any] | None = None) -> Response[bytes]:
    """A reply as Litestar's response; a long one compressed, if the client takes that."""
    headers = {name.decode(): value.decode() for name, value in retry(reply.status)}
    body = reply.body
    if request is not None and len(body) >= LEAST_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, 3, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "Accept-Encoding"}
    return Response(body, status_code=reply.status, media_type=reply.media, headers=headers)


def _post(task: str) -> HTTPRouteHandler:
    @post(f"/api/{task}", status_code=200, name=task)
    async def handler(request: Request[Any, Any, Any]) -> Response[bytes]:
        if request.headers.get("content-type", "").partition(";")[0].strip().casefold() != JSON:
            return response(error_reply(415, "", "Content-Type", f"must be {JSON}"))
        pool: Pool = request.app.state.pool
        return response(await pool.answer(task, await request.body()), request)

    return handler


@get("/api/truth", name="truth")
async def truth(request: Request[Any, Any, Any], group: Pattern = ".*") -> Response[bytes]:
    """What `everybyte truth --json` prints."""
    pool: Pool = request.app.state.pool
    return response(await pool.answer("truth", group.encode()), request)


ANSWERS = [*(_post(task) for task in POSTED), truth]
