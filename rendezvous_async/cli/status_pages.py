"""The pages of ``rdzv serve --http``: the status page, its JSON, metrics and health. Read-only."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import msgspec

from rendezvous_async.cli.http import Page, Pages
from rendezvous_async.cli.metrics import metrics
from rendezvous_async.cli.overview import Overview

__all__ = ["status_pages"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def status_pages(overview: Overview) -> Pages:
    """Return everything that there is to see of a server."""

    def health() -> Page:
        failure = overview.server.failure
        return Page(b"ok\n") if failure is None else Page(f"failed: {failure}\n".encode(), code=503)

    def status() -> Page:
        server = overview.server
        facts = {
            "endpoint": server.endpoint,
            "connections": server.connections,
            "sessions": server.table.sessions,
            "epoch": server.table.epoch,
            "revision": server.table.revision,
            "runs": overview.runs(),
        }
        return Page(msgspec.json.encode(facts), "application/json")

    return Pages(
        {
            "/": _asset("index.html"),
            "/page.css": _asset("page.css"),
            "/page.js": _asset("page.js"),
            "/api/status": status,
            "/metrics": lambda: Page(metrics(overview).encode(), "text/plain; version=0.0.4; charset=utf-8"),
            "/health": health,
        },
        public=frozenset({"/health"}),
    )


def _asset(name: str) -> Callable[[], Page]:
    body = (files("rendezvous_async.cli") / "page" / name).read_bytes()
    page = Page(body, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")
    return lambda: page
