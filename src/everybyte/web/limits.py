"""What reaches the routes: requests for a host that is ours, with a body of bearable size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from everybyte.web.replies import Reply
from everybyte.web.work import error_reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_DISCARDED = 128 * 2**20
"""Bytes of a refused body that are thrown away, so that a browser that only listens after it has sent everything hears why."""
PATIENCE_S = 20.0
"""Seconds for a body to arrive."""


class Gate:
    """Refuses wrong hosts (a page of somebody else whose name was made to point here) and bodies that are too large, before any route sees them."""

    def __init__(self, app: App, hosts: frozenset[str], most_bytes: int, most_for: dict[str, int], uploads: int) -> None:
        self.app, self.hosts, self.most_bytes, self.most_for = app, hosts, most_bytes, most_for
        self.free_uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it itself."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        if not self._is_ours(headers.get(b"host", b"")):
            return await send_reply(send, error_reply(400, "", "Host", "this server does not answer to that name; --allow-host NAME lets it"))
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self.app(scope, receive, send)
        return await self._with_body(scope, receive, send, headers.get(b"content-length", b""))

    def _is_ours(self, host: bytes) -> bool:
        name = host.decode("latin-1").casefold()
        bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
        return "*" in self.hosts or bare in self.hosts

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, stated: bytes) -> None:
        most = self.most_for.get(scope["path"], self.most_bytes)
        is_upload = most > self.most_bytes
        if stated.isdigit() and int(stated) > most:
            return await _refuse_size(receive, send, most)
        if is_upload and not self.free_uploads:
            return await send_reply(send, error_reply(503, "", "", "other files are being read; try again in a second"))
        self.free_uploads -= is_upload
        try:
            async with asyncio.timeout(PATIENCE_S):
                body = await _body(receive, most)
            if body is None:
                return await _refuse_size(receive, send, most)
            return await self.app(scope, _once(body, receive), send)
        except TimeoutError:
            return await send_reply(send, error_reply(408, "", "", f"the request did not arrive within {PATIENCE_S:g} s"))
        finally:
            self.free_uploads += is_upload


async def _body(receive: Receive, most: int) -> bytes | None:
    """The whole body; None if it is longer than `most`."""
    chunks, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        chunks.append(message.get("body", b""))
        length += len(chunks[-1])
        if length > most:
            return None
        more = message.get("more_body", False)
    return b"".join(chunks)


def _once(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body in one piece, then what else comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse_size(receive: Receive, send: Send, most: int) -> None:
    """Says at once that the body is too large, and throws away what still comes of it: nothing of it is kept."""
    reply = error_reply(413, "", "request", f"is larger than {most // 2**20} MiB")
    await _send_head(send, reply)
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    try:
        async with asyncio.timeout(PATIENCE_S):
            left, more = MOST_DISCARDED, True
            while more and left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_reply(send: Send, reply: Reply) -> None:
    """Sends a reply without any framework."""
    await _send_head(send, reply)
    await send({"type": "http.response.body", "body": reply.body})


async def _send_head(send: Send, reply: Reply) -> None:
    headers = [(b"content-type", reply.media.encode()), (b"content-length", str(len(reply.body)).encode()), *retry(reply.status)]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})


def retry(status: int) -> list[tuple[bytes, bytes]]:
    """When to come back, for those who come at a bad time."""
    return [(b"retry-after", b"1")] if status == 503 else []
