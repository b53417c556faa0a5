"""One HTTP/1.1 request and its response, without I/O: bytes in, bytes out. h11 parses, frames and bounds.

This module does not know the pages: a function maps a request to a ``Document``. Each connection gets one response and
is then closed, so there is no keep-alive, no pipelining and no request body.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import h11
import msgspec

__all__ = ["Document", "Exchange", "Ongoing"]

MAX_REQUEST = 8192
_ALWAYS = (
    ("Connection", "close"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)
_FOR_CODE = {401: (("WWW-Authenticate", 'Basic realm="rdzv", charset="UTF-8"'),), 405: (("Allow", "GET, HEAD"),)}


class Document(msgspec.Struct, frozen=True):
    """The content of a response."""

    body: bytes
    type: str = "text/plain; charset=utf-8"
    code: int = 200


class Ongoing(msgspec.Struct, frozen=True):
    """A response that goes on: whoever holds the connection sends its body piece by piece."""

    type: str


class Exchange:
    """A request that arrives in chunks, and its response.

    Args:
        answer: Maps a request to a document, or to a stream.

    Attributes:
        is_streaming: Whether the response is a stream, whose head was sent.
    """

    def __init__(self, answer: Callable[[h11.Request], Document | Ongoing]) -> None:
        self.is_streaming = False
        self._answer = answer
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
        self._with_body = True

    def receive(self, data: bytes) -> bytes:
        """Take a chunk of the request; return the whole response, or nothing while the request is incomplete."""
        self._connection.receive_data(data)
        try:
            event = self._connection.next_event()
        except h11.RemoteProtocolError as error:
            return self.write(Document(b"malformed or oversized request\n", code=error.error_status_hint))
        if not isinstance(event, h11.Request):
            return b""
        self._with_body = event.method != b"HEAD"
        answer = self._answer(event)
        if isinstance(answer, Document):
            return self.write(answer)
        if not self._with_body:
            return self.write(Document(b"", answer.type))
        self.is_streaming = True
        headers = [("Content-Type", answer.type), *_ALWAYS]
        return self._connection.send(h11.Response(status_code=200, headers=headers, reason="OK")) or b""

    def piece(self, data: bytes) -> bytes:
        """Return a piece of a stream's body as bytes to send."""
        return self._connection.send(h11.Data(data)) or b""

    def write(self, document: Document) -> bytes:
        """Return a document as a response, even if no request was complete."""
        headers = [
            ("Content-Type", document.type),
            ("Content-Length", str(len(document.body))),
            *_FOR_CODE.get(document.code, ()),
            *_ALWAYS,
        ]
        phrase = HTTPStatus(document.code).phrase
        head = h11.Response(status_code=document.code, headers=headers, reason=phrase)
        body = h11.Data(document.body if self._with_body else b"")
        return b"".join(self._connection.send(event) or b"" for event in (head, body, h11.EndOfMessage()))
