"""The state of the server, its description, and the page."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from everybyte.basics.version import __version__
from everybyte.web.forms import HealthAnswer
from everybyte.web.metrics import MEDIA, Metrics
from everybyte.web.openapi import document
from everybyte.web.pages import Pages
from everybyte.web.pool import Pool
from everybyte.web.replies import JSON

HOME = "index.html"


@get("/health", name="health", sync_to_thread=False)
def health(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Whether the server takes requests."""
    pool: Pool = request.app.state.pool
    found = HealthAnswer(status="busy" if pool.is_full else "ok", everybyte=__version__, workers=pool.workers, waiting=max(0, pool.inside - pool.workers))
    return Response(msgspec.json.encode(found), media_type=JSON)


@get("/metrics", name="metrics", sync_to_thread=False)
def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Counters for Prometheus."""
    counters: Metrics = request.app.state.metrics
    return Response(counters.text(), media_type=MEDIA)


@get("/openapi.json", name="openapi", sync_to_thread=False)
def openapi() -> Response[bytes]:
    """The description of this API."""
    return Response(document(), media_type=JSON)


@get("/", name="home", sync_to_thread=False)
def home(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The page."""
    return _page(request, HOME)


@get("/static/{name:path}", name="static", sync_to_thread=False)
def static(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    """A file of the page."""
    return _page(request, name.lstrip("/"))


def _page(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    """A file, compressed if the client takes that; nothing but its tag where the client has it."""
    pages: Pages = request.app.state.pages
    page = pages.find(name)
    if page is None:
        raise NotFoundException
    headers = {"etag": page.etag, "cache-control": "no-cache", "vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == page.etag:
        return Response(b"", status_code=304, headers=headers, media_type=page.media)
    if page.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(page.zipped, headers={**headers, "content-encoding": "gzip"}, media_type=page.media)
    return Response(page.body, headers=headers, media_type=page.media)


STATE = [health, metrics, openapi, home, static]
