"""A small read-only HTTP server: GET and HEAD, everything bounded.

It does not know the pages: each path maps to a function that makes its document. With a secret, every document that is
not public requires it, as the password of HTTP Basic (with any user name) or as a bearer token.

This is not an ASGI server: those count and time a connection only after its TLS handshake. Here the main port's
``door`` does so from the accept on, and h11 does the rest.
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
from urllib.parse import parse_qsl

import h11
import msgspec

from rendezvous_async.backends.tcp.server.door import Caller, Gate
from rendezvous_async.page.http import Document, Exchange, Ongoing
from rendezvous_async.page.live import Live

__all__ = ["Documents", "Site"]

logger = logging.getLogger("rendezvous_async.page")

MAX_CONNECTIONS = 64
MAX_REFUSALS = 16
"""Connections above the limit that are answered with 503; any more are aborted."""
TIMEOUT = 10.0
"""Seconds for one connection, from accept to close; for a stream, those that it may not read."""
LIFETIME = 3600.0
"""Seconds that a stream lasts; browsers then connect again."""
LIVE_PATH = "/api/live"
MAX_FIELDS = 8
_HOST = re.compile(r"(?:\[(?P<address>[^][]*)\]|(?P<name>[^][:]*))(?::[0-9]*)?")


class Documents(msgspec.Struct, frozen=True):
    """The documents of a site.

    Attributes:
        by_path: Maps each path to the function that makes its document, from the query.
        live: What is told at ``LIVE_PATH``; None if nothing is.
        public: The paths that need no secret.
    """

    by_path: Mapping[str, Callable[[Mapping[str, str]], Document]]
    public: frozenset[str] = frozenset()
    live: Live | None = None


class Site:
    """Serves documents on listening sockets.

    Args:
        documents: The documents.
        secret: The secret that visitors need; None admits every request whose Host names this machine.
        names: Names of this machine besides ``localhost`` and its host name.
    """

    def __init__(self, documents: Documents, secret: str | None = None, names: Iterable[str] = ()) -> None:
        self.documents = documents
        self._names = {name.lower() for name in ("", "localhost", socket.gethostname(), *names)}
        self._secret = None if secret is None else _digest(secret)
        self._visits: set[_Visit | Caller] = set()
        self._refused: set[_Visit | Caller] = set()
        self._gate: Gate | None = None

    def start(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on the sockets."""
        self._gate = Gate(
            "the status page", self.admit, self.part, lambda since: _Visit(self, since), tls=tls, handshake=TIMEOUT
        )
        self._gate.open(sockets)

    async def aclose(self) -> None:
        """Stop serving and abort all connections."""
        for visit in (*self._visits, *self._refused):
            visit.abort()
        if self._gate is not None:
            await self._gate.aclose()

    def answer(self, request: h11.Request) -> Document | Ongoing:
        """Return the document for a request, or the stream."""
        if not request.http_version.startswith(b"1."):
            return Document(b"this server speaks only HTTP/1\n", code=400)
        if request.method not in (b"GET", b"HEAD"):
            return Document(b"this server is read-only; use GET\n", code=405)
        headers = {name: value.decode("utf-8", "surrogateescape") for name, value in request.headers}
        if self._secret is None and not self._is_called(headers.get(b"host", "")):
            # DNS rebinding: a foreign web page resolves its own name to this address to read the pages.
            return Document(
                b"unknown Host: use this machine's address or own name (rdzv serve --http-host NAME adds one), "
                b"or serve with a secret\n",
                code=400,
            )
        path, _, query = request.target.decode("ascii").partition("?")
        if path not in self.documents.public and not self._may_see(headers.get(b"authorization", "")):
            return Document(b"this page needs the server's secret, as the password or as a bearer token\n", code=401)
        if path == LIVE_PATH and self.documents.live is not None:
            return Ongoing("text/event-stream")
        try:
            fields = dict(parse_qsl(query, max_num_fields=MAX_FIELDS))
        except ValueError:
            return Document(b"too many fields in the query\n", code=400)
        make = self.documents.by_path.get(path)
        if make is None:
            return Document(b"no such page\n", code=404)
        try:
            return make(fields)
        except Exception:
            logger.exception("cannot make the page %s", path)
            return Document(b"internal error; see the server's log\n", code=500)

    def admit(self, visit: _Visit | Caller) -> bool:
        """Register a connection; return False if there are too many."""
        if len(self._visits) < MAX_CONNECTIONS:
            self._visits.add(visit)
            return True
        if len(self._refused) < MAX_REFUSALS:
            self._refused.add(visit)
        else:
            visit.abort()
        return False

    def part(self, visit: _Visit | Caller) -> None:
        """Forget a closed connection."""
        self._visits.discard(visit)
        self._refused.discard(visit)

    def _is_called(self, host: str) -> bool:
        """Return whether a Host header has an IP address or exactly a name of this machine; ignore the port."""
        match = _HOST.fullmatch(host.lower()) if host.isascii() else None
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


class _Visit(asyncio.Protocol):
    """One connection.

    Args:
        site: The site.
        since: When the connection was accepted.
    """

    def __init__(self, site: Site, since: float) -> None:
        self._site = site
        self._since = since
        self._exchange = Exchange(site.answer)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._live: Live | None = None
        self.is_slow = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it
        self._set_timer(self._since + TIMEOUT)
        if not self._site.admit(self) and not self._transport.is_closing():
            self._end(self._exchange.write(Document(b"too many connections\n", code=503)))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing() or self._exchange.is_streaming:
            return
        answer = self._exchange.receive(data)
        if self._exchange.is_streaming:
            self._go_live(answer)
        else:
            self._end(answer)

    def _go_live(self, head: bytes) -> None:
        """Begin the stream: from now on the connection lasts as long as it is read, and ``LIFETIME`` at most."""
        assert self._transport is not None
        live = self._site.documents.live
        assert live is not None
        if not live.enter(self):
            self._exchange = Exchange(self._site.answer)
            self._end(self._exchange.write(Document(b"too many readers\n", code=503)))
            return
        self._live = live
        self._transport.write(head)
        self._set_timer(asyncio.get_running_loop().time() + LIFETIME)

    def push(self, data: bytes) -> None:
        """Send a piece of the stream."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._exchange.piece(data))

    def pause_writing(self) -> None:
        self.is_slow = True
        self._patience = asyncio.get_running_loop().call_later(TIMEOUT, self.abort)

    def resume_writing(self) -> None:
        self.is_slow = False
        if self._patience is not None:
            self._patience.cancel()
        if self._live is not None:
            self._live.wake(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._site.part(self)
        if self._live is not None:
            self._live.leave(self)
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, answer: bytes) -> None:
        """Send the response and close; do nothing if there is none yet."""
        if answer and self._transport is not None:
            self._transport.write(answer)
            self._transport.close()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode(errors="surrogateescape").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _digest(text: str) -> bytes:
    """Return a digest; comparing digests takes constant time, independent even of the secret's length."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
