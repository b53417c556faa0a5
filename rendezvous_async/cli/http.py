"""A very small HTTP server for pages that only show: GET and HEAD, one answer for each connection, everything bounded.

It knows nothing of what it shows: a ``Site`` maps a path to a function that makes the page. With a secret, every page
that is not public wants it, as the password of HTTP Basic (any user name) or as a bearer token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence

import msgspec

__all__ = ["Page", "Pages", "Site"]

logger = logging.getLogger(__name__)

MAX_REQUEST = 8192
MAX_CONNECTIONS = 64
TIMEOUT = 10.0
"""Seconds for one connection, from its start to its end."""
_PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
_PHRASES |= {431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable"}
_HEADERS = (
    "Connection: close\r\n"
    "Cache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
)


class Page(msgspec.Struct, frozen=True):
    """What a path answers with."""

    body: bytes
    type: str = "text/plain; charset=utf-8"
    code: int = 200


class Pages(msgspec.Struct, frozen=True):
    """What there is to see.

    Attributes:
        by_path: Makes each page.
        public: The paths that need no secret.
    """

    by_path: Mapping[str, Callable[[], Page]]
    public: frozenset[str] = frozenset()


class Site:
    """Serves pages on sockets that listen.

    Args:
        pages: What there is to see.
        secret: What those who look must know; None lets everybody in.
    """

    def __init__(self, pages: Pages, secret: str | None = None) -> None:
        self.pages = pages
        self._secret = None if secret is None else _digest(secret)
        self._visits: set[_Visit] = set()
        self._listeners: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Serve."""
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self._listeners.append(await loop.create_server(lambda: _Visit(self), sock=sock, ssl=tls))

    def close(self) -> None:
        """Stop serving, at once."""
        for listener in self._listeners:
            listener.close()
        for visit in tuple(self._visits):
            visit.abort()

    def answer(self, request: bytes) -> tuple[Page, bool]:
        """Return the page for a request, and whether its body is wanted, too."""
        try:
            lines = request.decode("ascii").split("\r\n")
            method, target, version = lines[0].split(" ")
        except ValueError:
            return Page(b"not an HTTP request\n", code=400), True
        if not version.startswith("HTTP/1."):
            return Page(b"only HTTP/1 is spoken here\n", code=400), True
        if method not in ("GET", "HEAD"):
            return Page(b"this server only shows; use GET\n", code=405), True
        headers = _headers(lines[1:])
        if self._secret is None and not _names_this_machine(headers.get("host", "")):
            # A web page elsewhere may give a name of its own our address, and so read what only we should see.
            return Page(
                b"ask for this machine by its address or its own name, or serve with a secret\n", code=400
            ), True
        path = target.partition("?")[0]
        if path not in self.pages.public and not self._may_see(headers.get("authorization", "")):
            return Page(b"the server's secret is needed: as the password, or as a bearer token\n", code=401), True
        make = self.pages.by_path.get(path)
        if make is None:
            return Page(b"there is no such page\n", code=404), True
        try:
            return make(), method == "GET"
        except Exception:
            logger.exception("the page %s could not be made", path)
            return Page(b"the page could not be made; the server's log says why\n", code=500), True

    def admit(self, visit: _Visit) -> bool:
        """Take in a connection, if there is a place for it."""
        if len(self._visits) >= MAX_CONNECTIONS:
            return False
        self._visits.add(visit)
        return True

    def part(self, visit: _Visit) -> None:
        """Let go of a connection."""
        self._visits.discard(visit)

    def _may_see(self, authorization: str) -> bool:
        if self._secret is None:
            return True
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            given = _password(given.strip())
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(self._secret, _digest(given))


def _headers(lines: Sequence[str]) -> dict[str, str]:
    """Return the headers by their names in small letters; of two with one name, the last."""
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _names_this_machine(host: str) -> bool:
    """Tell whether a Host header has an address, or this machine's own name, and not one that somebody made up."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    own = socket.gethostname().lower()
    if name.lower() in ("", "localhost", own) or name.lower().startswith(f"{own}."):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Visit(asyncio.Protocol):
    """One connection: one request, one answer."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._request = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._site.admit(self):
            self._send(Page(b"too many connections\n", code=503), True)
            return
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT, self.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._request += data
        head, end, _ = self._request.partition(b"\r\n\r\n")
        if end:
            self._send(*self._site.answer(head))
        elif len(self._request) > MAX_REQUEST:
            self._send(Page(b"the request is too long\n", code=431), True)

    def connection_lost(self, error: Exception | None) -> None:
        self._site.part(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, page: Page, with_body: bool) -> None:
        assert self._transport is not None
        ask = 'WWW-Authenticate: Basic realm="rdzv", charset="UTF-8"\r\n' if page.code == 401 else ""
        allow = "Allow: GET, HEAD\r\n" if page.code == 405 else ""
        head = (
            f"HTTP/1.1 {page.code} {_PHRASES[page.code]}\r\n"
            f"Content-Type: {page.type}\r\nContent-Length: {len(page.body)}\r\n{ask}{allow}{_HEADERS}\r\n"
        )
        self._transport.write(head.encode() + (page.body if with_body else b""))
        self._transport.close()


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode(errors="surrogateescape").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _digest(text: str) -> bytes:
    """Comparing digests tells nothing of the secret, not even its length."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
