"""The pages of ``rdzv serve --http``: the status page, its JSON, metrics and health. Read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files

import anyio
import msgspec

from rendezvous_async.backends.tcp import TcpServer
from rendezvous_async.backends.tcp.addresses import listen_on, resolve
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.page.http import Document
from rendezvous_async.page.live import Live
from rendezvous_async.page.metrics import CONTENT_TYPE_LATEST, Metrics
from rendezvous_async.page.overview import Overview
from rendezvous_async.page.site import Documents, Site
from rendezvous_async.settings import format_address

__all__ = ["serve_pages", "status_pages"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


@asynccontextmanager
async def serve_pages(
    server: TcpServer,
    host: str,
    port: int,
    *,
    secret: str | None = None,
    insecure: bool = False,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> AsyncIterator[str]:
    """Serve a server's pages until the block ends; yield their URL.

    Args:
        server: A server in this process.
        host: Address or name to listen on.
        port: Port to listen on; 0 picks a free one.
        secret: The secret that visitors need.
        insecure: Serve other machines without TLS.
        tls_ca: As for ``serve``.
        tls_cert: As for ``serve``.
        tls_key: As for ``serve``.

    Raises:
        ValueError: Other machines could reach the pages without TLS.
        RendezvousConnectionError: The address is in use or does not belong to this machine.
    """
    where = format_address(host, port)
    tls = Tls.make(ca=tls_ca, cert=tls_cert, key=tls_key).server
    try:
        addresses = await resolve(host, port)
        if tls is None and not insecure and not all(address.is_loopback for address in addresses):
            raise ValueError(
                f"the status page at {where} would be open to other machines without TLS, so its secret could be "
                "intercepted: set --tls-cert and --tls-key, or pass --insecure if the network is trusted"
            )
        sockets = listen_on(addresses)
    except OSError as error:
        why = str(error.strerror).removeprefix(f"{where}: ")
        raise RendezvousConnectionError(f"cannot serve the status page on {where}: {why}") from None
    overview = Overview(server)
    live = Live(overview)
    site = Site(status_pages(overview, live), secret, [host])
    try:
        site.start(sockets, tls)
        yield f"{'http' if tls is None else 'https'}://{format_address(host, sockets[0].getsockname()[1])}/"
    finally:
        with anyio.CancelScope(shield=True):
            await site.aclose()
        live.close()
        overview.close()


def status_pages(overview: Overview, live: Live | None = None) -> Documents:
    """Return all pages of a server."""

    def health(query: Mapping[str, str]) -> Document:
        failure = overview.server.failure
        return Document(b"ok\n") if failure is None else Document(f"failed: {failure}\n".encode(), code=503)

    def run(query: Mapping[str, str]) -> Document:
        run_id = query.get("id", "")
        overview.look()
        if overview.summary(run_id) is None:
            return Document(b"no such run\n", code=404)
        return Document(msgspec.json.encode(overview.describe(run_id)), "application/json")

    def status(query: Mapping[str, str]) -> Document:
        server = overview.server
        facts = {
            "endpoint": server.endpoint,
            "connections": server.connections,
            "sessions": server.table.sessions,
            "epoch": server.table.epoch,
            "revision": server.table.revision,
            "runs": overview.runs(),
        }
        return Document(msgspec.json.encode(facts), "application/json")

    metrics = Metrics(overview)
    return Documents(
        {
            "/": _asset("index.html"),
            "/page.css": _asset("page.css"),
            "/page.js": _asset("page.js"),
            "/api/status": status,
            "/api/run": run,
            "/metrics": lambda query: Document(metrics.text(), CONTENT_TYPE_LATEST),
            "/health": health,
        },
        public=frozenset({"/health"}),
        live=live,
    )


def _asset(name: str) -> Callable[[Mapping[str, str]], Document]:
    body = (files("rendezvous_async.page") / "assets" / name).read_bytes()
    document = Document(body, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")
    return lambda query: document
