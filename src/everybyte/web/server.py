"""The server: a socket, uvicorn, and a word when it answers."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable

import uvicorn

from everybyte.basics.errors import BadInput
from everybyte.web.app import LOOPBACK, Limits, create_app

PATIENCE_S = 1
"""Seconds that requests have to finish when the server ends."""


def listen(host: str, port: int) -> socket.socket:
    """A socket at host and port; port 0 is any free one. Raises BadInput with a way out if there is none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        raise _no_socket(host, port, error) from None
    return found


def _no_socket(host: str, port: int, error: OSError) -> BadInput:
    if error.errno == errno.EADDRINUSE:
        return BadInput("--port", f"{port} is in use by another program; try --port {port + 1}, or --port 0 for any free one")
    if error.errno == errno.EACCES:
        return BadInput("--port", f"{port} needs administrator rights; try --port 8000, or --port 0 for any free one")
    return BadInput("--host", f"{host!r} is not an address of this machine: {error.strerror}")


def address(host: str, listening: socket.socket) -> str:
    """What to type into a browser."""
    port = listening.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  # a comparison, nothing is bound
    return f"http://{name}:{port}/"


def serve(listening: socket.socket, hosts: frozenset[str], limits: Limits, when_ready: Callable[[], None]) -> None:
    """Answers requests until Ctrl-C or SIGTERM, which ends as KeyboardInterrupt."""
    app = create_app(limits, hosts | LOOPBACK)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=PATIENCE_S, lifespan="on", proxy_headers=False
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises it anew when it has ended: then it is as Ctrl-C
    try:
        _Server(config, when_ready, app.end).run(sockets=[listening])
    finally:
        app.wait()


class _Server(uvicorn.Server):
    """Says when it answers, and does not wait for answers when it ends."""

    def __init__(self, config: uvicorn.Config, when_ready: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_ready, self._end = when_ready, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        if self.started:
            self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        self._end()
        await super().shutdown(sockets)
