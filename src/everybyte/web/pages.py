"""The page's files, and the headers that every response carries."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

from everybyte.web.limits import App, Message, Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
LEAST_COMPRESSED = 1024
"""Bytes below which compression gains nothing."""
COMPRESSED = ("text/", "application/json", "application/javascript", "image/svg+xml", "font/ttf")

SECURITY: list[tuple[bytes, bytes]] = [
    (
        b"content-security-policy",
        (
            b"default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
            b"object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
"""The page runs its own scripts alone and talks to its own server alone. Vega and KaTeX set styles inline."""


class Page(NamedTuple):
    """A file as it is sent."""

    media: str
    etag: str
    body: bytes
    zipped: bytes | None
    """None where compression gains nothing."""


class Pages:
    """The files of a folder. Only names that the folder had at the start are ever looked up; a file that changes is read anew."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        self._read: dict[str, tuple[int, Page]] = {}

    def find(self, name: str) -> Page | None:
        """The file called `name`; None if there is none."""
        path = self._paths.get(name)
        if path is None or not path.is_file():
            return None
        changed = path.stat().st_mtime_ns
        if name not in self._read or self._read[name][0] != changed:
            self._read[name] = (changed, _page(path))
        return self._read[name][1]


def _page(path: Path) -> Page:
    body = path.read_bytes()
    media = {".js": "text/javascript", ".mjs": "text/javascript", ".woff2": "font/woff2"}.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    media = media or "application/octet-stream"
    zipped = gzip.compress(body, 6, mtime=0) if media.startswith(COMPRESSED) and len(body) >= LEAST_COMPRESSED else None
    charset = "; charset=utf-8" if media.startswith("text/") else ""
    return Page(media + charset, f'"{hashlib.sha256(body).hexdigest()[:20]}"', body, zipped)


class SecurityHeaders:
    """Adds the headers to every response, also to refusals and faults."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY]
            await send(message)

        await self.app(scope, receive, with_headers)
