"""Counters for Prometheus."""

from __future__ import annotations

from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from everybyte.web.limits import App, Message, Receive, Scope, Send
from everybyte.web.pool import Pool

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Seconds; an answer is meant to take less than 0.1."""


class Metrics:
    """Counts requests by route and status, and measures how long each takes. A registry of its own, so that several servers in one process do not mix."""

    def __init__(self, pool: Pool) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("everybyte_requests", "Requests answered", ["route", "status"], registry=self._registry)
        self._seconds = Histogram("everybyte_request_seconds", "Time from request to response", ["route"], buckets=BUCKETS, registry=self._registry)
        Gauge("everybyte_requests_inside", "Requests that workers hold or that wait for one", registry=self._registry).set_function(lambda: pool.inside)
        Gauge("everybyte_workers", "Worker processes", registry=self._registry).set(pool.workers)
        Gauge("everybyte_worker_deaths", "How often workers had to be started anew", registry=self._registry).set_function(lambda: pool.deaths)

    def text(self) -> bytes:
        """All of them in Prometheus' format."""
        return generate_latest(self._registry)

    def watch(self, app: App) -> App:
        """The application, counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            began, status = perf_counter(), 500

            async def seen(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, seen)
            finally:
                # only names of routes: a label for each path that somebody makes up would fill the memory
                route = scope.get("path_template") or "other"
                self._requests.labels(route, str(status)).inc()
                self._seconds.labels(route).observe(perf_counter() - began)

        return counted
