"""The client's side of one connection: the handshake, then requests out and answers in. A link is never reused.

It knows nothing of calls, sessions or watches; ``channel.py`` gives it requests and takes its answers.
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
_CLOSE_SECONDS = 1.0
_HTTP: Final = (b"http/", b"<!doctype", b"<html")


class RefusedError(ConnectionError):
    """The server refuses this client.

    Attributes:
        final: Whether trying again is pointless.
    """

    def __init__(self, message: str, *, final: bool = True) -> None:
        self.final = final
        super().__init__(message)


class HttpAnswersError(RefusedError):
    """An HTTP server listens there."""

    def __init__(self) -> None:
        super().__init__("an HTTP server answers there, not an rdzv server (is it another port?)")


class Link(SharedBufferProtocol):
    """One connection to a server.

    Args:
        hello: The first message.
        secret: The secret to prove, and to demand a proof of.
        on_answer: Called for each answer and push after the handshake.

    Attributes:
        welcomed: Done when the handshake is over; fails with RefusedError, or with another error if a retry may work.
        lost: Done when the connection is closed.
        why: What ended the connection, if known.
        heard_at: When bytes last arrived, by the loop's clock.
        local_address: The address of this end; empty before the connection is made.
        seen_address: The same as the server sees it; empty before the handshake is over, or if the server omits it.
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
        self._versions = hello.versions
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
        """Send a request at the end of this turn of the loop, in one write with all others."""
        wire.frame_into(self._out, message)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def say_goodbye(self) -> None:
        """Tell the server that this client will not come back, and close the connection once that is sent."""
        self.send(wire.Goodbye())
        self._flush()
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait((self.lost,), timeout=_CLOSE_SECONDS)
        self.abort()
        await asyncio.wait((self.lost,), timeout=_CLOSE_SECONDS)

    def abort(self, why: Exception | None = None) -> None:
        """Close the connection at once."""
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._scheduled = False
        if self._out and self._transport is not None:
            # The transport may keep the buffer, so it is never reused.
            out, self._out = self._out, bytearray()
            self._transport.write(out)

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # not an instance of it under uvloop
        self._transport = transport
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        self.local_address = host_of(transport.get_extra_info("sockname"))
        transport.write(self._hello)

    def provoke(self) -> None:
        """End the request that an HTTP server would be waiting for; an rdzv server refuses these bytes."""
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
                    if self.why is not None:  # aborted: the rest is ignored
                        return
        except wire.FrameError as error:
            if not self._is_welcome and data[:9].lower().startswith(_HTTP):
                self.abort(HttpAnswersError())
            else:
                what = "the server sent invalid data" if self._is_welcome else "what answers there is no rdzv server"
                self.abort(ConnectionError(f"{what} ({error})"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if isinstance(error, ssl.SSLError):
            self.why = self.why or RefusedError(f"TLS failed: {describe(error)}")
        if not self.welcomed.done():
            self.welcomed.set_exception(self.why or error or self._silence())
            self.welcomed.exception()  # marked as retrieved: the dialler may have given up
        if not self.lost.done():
            self.lost.set_result(None)

    def _silence(self) -> Exception:
        """Return the likely reason why the server closed the connection without an answer."""
        if self._is_encrypted:
            # Not final: the server may have been killed at that moment.
            text = "closed the connection right after the TLS handshake (does it demand a certificate?)"
            return RefusedError(text, final=False)
        return ConnectionError("closed the connection without a word (does it expect TLS?)")

    # The handshake

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
            case wire.Challenge(version=version) | wire.Welcome(version=version) if version not in self._versions:
                # Not offered by this client, or not the version of the challenge: a downgrade.
                offered = ", ".join(map(str, self._versions))
                self.abort(RefusedError(f"the server picked version {version} of the protocol, not one of: {offered}"))
            case wire.Challenge(version=version) if not self._challenge:
                if self._secret is None:
                    self.abort(RefusedError("the server wants a secret; set secret= (rdzv: --secret-file)"))
                    return
                self._challenge, self._versions = body, (version,)
                proof = prove(self._secret.key, "client", self._hello[4:], body)
                assert self._transport is not None
                self._transport.write(wire.frame(wire.Proof(proof)))
            case wire.Welcome():
                self._welcomed(message)
            case _:
                raise wire.FrameError("a greeting out of turn")

    def _welcomed(self, welcome: wire.Welcome) -> None:
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
    """Return the text of an OS error without its number."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:  # of the resolver, which has error numbers of its own
        return error.strerror.lower()
    return str(error) or type(error).__name__
