"""The client's side of one connection: the handshake, then requests out and answers in. It is used once, and lost once.

It knows nothing of calls, sessions or watches; ``channel.py`` gives it what to send and takes what comes.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Final, cast

from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.addresses import host_of
from rendezvous_async.backends.tcp.auth import Secret, prove, verify
from rendezvous_async.backends.tcp.reading import SharedBufferProtocol
from rendezvous_async.texts import printable

__all__ = ["HttpAnswersError", "Link", "RefusedError"]

_FINAL: Final = frozenset({wire.REFUSED_VERSION, wire.REFUSED_SECRET, wire.REFUSED_PROTOCOL})
_FOR_NOW: Final = frozenset({wire.REFUSED_LIMIT, wire.REFUSED_STORAGE})
_NO_ANSWERS: Final = frozenset({wire.Challenge, wire.Welcome, wire.Refused})


_HTTP: Final = (b"http/", b"<!doctype", b"<html")


class RefusedError(ConnectionError):
    """The other side will not talk to us.

    Attributes:
        final: To ask again later does not help either.
    """

    def __init__(self, message: str, *, final: bool = True) -> None:
        self.final = final
        super().__init__(message)


class HttpAnswersError(RefusedError):
    """Another kind of server listens there."""

    def __init__(self) -> None:
        super().__init__("an HTTP server answers there, not an rdzv server (is it another port?)")


class Link(SharedBufferProtocol):
    """One connection to a server.

    Args:
        hello: What to say first.
        secret: What to prove, and to demand a proof of.
        on_answer: Called for each answer and push after the handshake.

    Attributes:
        welcomed: Done when the handshake is over; fails with RefusedError, or with another error if it may work later.
        lost: Done when the connection is closed.
        why: What ended it, if that is known.
        heard_at: When bytes last came, by the loop's clock.
        local_address: This end of it; empty before it is connected.
        seen_address: The same as the server sees it; empty before the handshake is over, and if it does not say.
    """

    def __init__(self, hello: wire.Hello, secret: Secret | None, on_answer: Callable[[wire.Answer], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[wire.Welcome] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.why: Exception | None = None
        self.heard_at = self._loop.time()
        self.local_address = ""
        self.seen_address = ""
        self._hello = wire.frame(hello)
        self._challenge = b""
        self._secret = secret
        self._on_answer = on_answer
        self._frames = wire.FrameDecoder(wire.HANDSHAKE_FRAME)
        self._out = bytearray()
        self._scheduled = False
        self._is_encrypted = False
        self._is_welcome = False
        self._transport: asyncio.Transport | None = None

    def __repr__(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"<Link to {peer}>"

    def send(self, message: wire.Request) -> None:
        """Send a request, at the end of this turn of the loop, together with all others."""
        wire.frame_into(self._out, message)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def send_now(self, message: wire.Request) -> None:
        """Send a request at once: for when there are no others to send it with."""
        wire.frame_into(self._out, message)
        self._flush(scheduled=False)

    def close(self) -> None:
        """Close the connection once everything is sent; ``lost`` tells when."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: Exception | None = None) -> None:
        """Close the connection at once."""
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

    def _flush(self, scheduled: bool = True) -> None:
        if scheduled:
            self._scheduled = False
        if self._out and self._transport is not None:
            # The transport may keep the buffer: it is given away, not used again.
            out, self._out = self._out, bytearray()
            self._transport.write(out)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._transport = transport
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        self.local_address = host_of(transport.get_extra_info("sockname"))
        transport.write(self._hello)

    def provoke(self) -> None:
        """Make an HTTP server answer that waits for the end of a request; to a slow rdzv server it is nonsense."""
        if self._transport is not None:
            self._transport.write(b"\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        frames = self._frames
        frames.feed(data)
        try:
            while (body := frames.next()) is not None:
                message = wire.decode_answer(body)
                if self._is_welcome and type(message) not in _NO_ANSWERS:
                    self._on_answer(cast(wire.Answer, message))
                elif isinstance(message, wire.Refused):
                    self._refused(message)
                    return
                else:
                    self._greeted(message, body)
        except wire.FrameError as error:
            if not self._is_welcome and data[:9].lower().startswith(_HTTP):
                self.abort(HttpAnswersError())
            else:
                self.abort(ConnectionError(f"what answers there is no rdzv server ({error})"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if isinstance(error, ssl.SSLError):
            self.why = self.why or RefusedError(f"TLS failed: {describe(error)}")
        if not self.welcomed.done():
            self.welcomed.set_exception(self.why or error or self._silence())
            self.welcomed.exception()  # whoever dialled may have given up already
        if not self.lost.done():
            self.lost.set_result(None)

    def _silence(self) -> Exception:
        """What it probably means that the server closed the connection and said nothing."""
        if self._is_encrypted:
            # Or it was killed in that moment: so this is not final.
            text = "closed the connection right after the TLS handshake (does it demand a certificate?)"
            return RefusedError(text, final=False)
        return ConnectionError("closed the connection without a word (does it expect TLS?)")

    # The handshake.

    def _refused(self, refused: wire.Refused) -> None:
        text = f"refused: {printable(refused.message)}"
        if refused.code in _FINAL | _FOR_NOW:
            self.abort(RefusedError(text, final=refused.code in _FINAL))
        else:
            self.abort(ConnectionError(text))

    def _greeted(self, message: wire.Challenge | wire.Welcome | wire.Answer, body: bytes) -> None:
        if self._is_welcome:
            raise wire.FrameError("a second greeting")
        match message:
            case wire.Challenge() if not self._challenge:
                if self._secret is None:
                    self.abort(RefusedError("the server wants a secret; set secret= (rdzv: --secret-file)"))
                    return
                self._challenge = body
                proof = prove(self._secret.key, "client", self._hello[4:], body)
                assert self._transport is not None
                self._transport.write(wire.frame(wire.Proof(proof)))
            case wire.Welcome():
                self._welcomed(message)
            case _:
                raise wire.FrameError("a greeting out of turn")

    def _welcomed(self, welcome: wire.Welcome) -> None:
        if welcome.version != wire.PROTOCOL:
            self.abort(RefusedError(f"the server speaks version {welcome.version}, this client {wire.PROTOCOL}"))
            return
        if self._secret is not None and not (
            self._challenge and verify(self._secret.key, "server", self._hello[4:], self._challenge, welcome.proof)
        ):
            self.abort(RefusedError("the server does not know the secret that this client was given"))
            return
        self._frames.max_frame = wire.MAX_ANSWER
        self.seen_address = welcome.peer
        self._is_welcome = True
        if not self.welcomed.done():
            self.welcomed.set_result(welcome)


def describe(error: BaseException) -> str:
    """Return what an error of the system says, without its number."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:  # of the resolver, which counts its errors by itself
        return error.strerror.lower()
    return str(error) or type(error).__name__
