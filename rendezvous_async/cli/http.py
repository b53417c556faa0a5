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
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import msgspec

from rendezvous_async.backends.tcp.door import Caller, Gate

__all__ = ["Page", "Pages", "Site"]

logger = logging.getLogger("rendezvous_async.page")

MAX_REQUEST = 8192
MAX_CONNECTIONS = 64
MAX_REFUSALS = 16
"""Connections beyond those that are told that there are too many; any others are cut off."""
TIMEOUT = 10.0
"""Seconds for one connection, from its start to its end."""
_HOST = re.compile(r"(?:\[(?P<address>[^][]*)\]|(?P<name>[^][:]*))(?::[0-9]*)?")
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
        secret: What those who look must know; None lets everybody in who calls this machine by one of its names.
        names: Of this machine, besides ``localhost`` and its host name.
    """

    def __init__(self, pages: Pages, secret: str | None = None, names: Iterable[str] = ()) -> None:
        self.pages = pages
        self._names = {name.lower() for name in ("", "localhost", socket.gethostname(), *names)}
        self._secret = None if secret is None else _digest(secret)
        self._visits: set[_Visit | Caller] = set()
        self._refused: set[_Visit | Caller] = set()
        self._gate: Gate | None = None

    def start(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Serve."""
        self._gate = Gate(
            "the status page", self.admit, self.part, lambda since: _Visit(self, since), tls=tls, handshake=TIMEOUT
        )
        self._gate.open(sockets)

    async def aclose(self) -> None:
        """Stop serving, at once."""
        for visit in (*self._visits, *self._refused):
            visit.abort()
        if self._gate is not None:
            await self._gate.aclose()

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
        if self._secret is None and not self._is_called(headers.get("host", "")):
            # A web page elsewhere may give a name of its own our address, and so read what only we should see.
            return Page(
                b"ask for this machine by its address or its own name (rdzv serve --http-host NAME adds one), "
                b"or serve with a secret\n",
                code=400,
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

    def admit(self, visit: _Visit | Caller) -> bool:
        """Take in a connection, if there is a place for it."""
        if len(self._visits) < MAX_CONNECTIONS:
            self._visits.add(visit)
            return True
        if len(self._refused) < MAX_REFUSALS:
            self._refused.add(visit)
        else:
            visit.abort()
        return False

    def part(self, visit: _Visit | Caller) -> None:
        """Let go of a connection."""
        self._visits.discard(visit)
        self._refused.discard(visit)

    def _is_called(self, host: str) -> bool:
        """Tell whether a Host header has an address or exactly a name of this machine; the port does not matter."""
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name = match["address"] or match["name"]
        return name in self._names or _is_address(name)

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


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Visit(asyncio.Protocol):
    """One connection: one request, one answer.

    Args:
        site: What it visits.
        since: When it was accepted.
    """

    def __init__(self, site: Site, since: float) -> None:
        self._site = site
        self._since = since
        self._request = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._timer = asyncio.get_running_loop().call_at(self._since + TIMEOUT, self.abort)
        if not self._site.admit(self) and not self._transport.is_closing():
            self._send(Page(b"too many connections\n", code=503), True)

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
