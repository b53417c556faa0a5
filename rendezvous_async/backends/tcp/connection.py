"""The server's side of one connection: greet it, answer it, push to it, and never let it cost more than its share.

Requests are answered where they arrive, without a task: the table needs no waiting. All answers to the bytes of one
read go out in one write. Time is bounded: when a slice is over (see ``turns``), the rest of the requests waits for a
later turn, and nothing more is read until then. Memory is bounded from both sides: a peer that does not read is not
read from either, and what it watches is only a position and a mark that something has changed, so that it gets the
newest values when it reads on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, cast

from rendezvous_async.backends.base import Entry, Token
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.addresses import host_of
from rendezvous_async.backends.tcp.auth import new_nonce, prove, verify
from rendezvous_async.backends.tcp.pushes import TOO_LONG
from rendezvous_async.backends.tcp.reading import SharedBufferProtocol
from rendezvous_async.backends.tcp.requests import ANSWERS, Watcher, end_watch, too_long
from rendezvous_async.backends.tcp.unfinished import MAX_UNFINISHED

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.server import TcpServer

__all__ = ["Connection"]

MAX_REVISION: Final = 2**63 - 1
"""No client of ours has seen more: what hellos may claim ends far below; see ``server``."""
_SLOW_READER: Final = 64 * 1024
STRANGERS: Final = "?"
"""The group of those who have not said who they are; no scope is called that."""
_LAST_WORDS: Final = 1.0


class Connection(SharedBufferProtocol):
    """One peer of a ``TcpServer``.

    Args:
        server: Whose peer it is.
        since: When its handshake began, if not with this object.
    """

    __slots__ = (
        "_again",
        "_challenge",
        "_closing",
        "_credit",
        "_dirty",
        "_frames",
        "_handshake",
        "_held",
        "_hello",
        "_lent",
        "_out",
        "_reading",
        "_since",
        "_slow",
        "_transport",
        "_unfinished",
        "_writable",
        "client",
        "scope",
        "server",
        "sessions",
        "watched",
        "watchers",
    )

    def __init__(self, server: TcpServer, since: float | None = None) -> None:
        self.server = server
        self.client: str | None = None
        self.scope = ""
        self.sessions: set[str] = set()
        self.watchers: dict[int, Watcher] = {}
        self.watched = 0
        self._dirty: list[Watcher] = []
        self._transport: asyncio.Transport | None = None
        self._frames = wire.FrameDecoder(min(wire.HANDSHAKE_FRAME, server.limits.frame))
        self._out = bytearray()
        self._held = 0
        self._credit = server.limits.in_flight
        self._lent = 0
        self._writable = True
        self._reading = True
        self._closing = False
        self._hello: tuple[wire.Hello, bytes] | None = None
        self._challenge = b""
        self._since = since
        self._handshake: asyncio.TimerHandle | None = None
        self._again = False
        self._slow = False
        self._unfinished = 0

    def __repr__(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"<Connection {self.client or 'unknown'} from {peer} watches={len(self.watchers)}>"

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._transport = transport
        transport.set_write_buffer_limits(high=_SLOW_READER)
        refused = self.server.admit(self)
        if refused is not None:
            self.refuse(refused.code, refused.message)
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            watch_for_dead_peer(sock)
        loop = asyncio.get_running_loop()
        since = loop.time() if self._since is None else self._since
        self._handshake = loop.call_at(since + self.server.limits.handshake, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._frames.feed(data)
        if self._slow or self.server.turns.is_spent():
            self._read_on(True)
        else:
            self._work()
        growth = self._frames.unfinished - self._unfinished
        if growth and self.client is not None:
            self._unfinished += growth
            if self.server.unfinished.is_too_much(self.scope, growth):
                self.refuse(wire.REFUSED_LIMIT, f"unfinished requests take more than {MAX_UNFINISHED} bytes")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if not self._closing:
            self._work()
            self.server.pushes.push_later(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._out.clear()
        self._dirty.clear()
        self.server.unfinished.is_too_much(self.scope, -self._unfinished)
        if self._handshake is not None:
            self._handshake.cancel()
        self.server.part(self)

    # What the server calls.

    def refuse(self, code: str, message: str) -> None:
        """Say why, and end the connection."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.write(wire.frame(wire.Refused(code, message)))
            # A close with bytes unread would be a reset, and the peer might never read why.
            if self._transport.can_write_eof():
                with contextlib.suppress(OSError):  # the peer may be gone, and the loop not know yet
                    self._transport.write_eof()
            else:
                self._transport.close()
            if not self._reading:
                self._transport.resume_reading()
            asyncio.get_running_loop().call_later(_LAST_WORDS, self.abort)

    def close(self) -> None:
        """End the connection once everything that may go out is sent."""
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now, whatever waits to be read or sent."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def mark(self, watcher: Watcher, settled: Token) -> None:
        """Note that there may be news for a watcher that knew everything up to ``settled``."""
        if not watcher.dirty:
            watcher.dirty = True
            if watcher.seen.revision < settled.revision:
                watcher.seen = settled
            self._dirty.append(watcher)

    def push(self, end: float) -> None:
        """Send news to the watchers that have some, those that wait longest first, as far as the peer reads.

        What is left when the slice is over, at ``end``, is pushed in a later turn.
        """
        dirty = self._dirty
        done = 0
        while done < len(dirty) and self._writable and len(self._out) + self._held < _SLOW_READER:
            if done and self.server.turns.now() >= end:
                self.server.pushes.push_later(self)
                break
            watcher = dirty[done]
            done += 1
            watcher.dirty = False
            if self.watchers.get(watcher.id) is watcher:
                self._tell(watcher)
        del dirty[:done]
        self.flush()

    def _tell(self, watcher: Watcher) -> None:
        news = self.server.pushes.news_for(watcher)
        if news is TOO_LONG:
            end_watch(self, watcher.id)
            self.fail(watcher.id, wire.FAILED_LIMIT, too_long(self))
        elif news is not None:
            watcher.seen = self.server.table.token
            self.send(wire.EncodedChanged(watcher.id, news))
            if len(self._out) >= _SLOW_READER:  # So that the loop in push() never ends here with news left.
                self.flush()

    def send(self, message: wire.Message) -> None:
        """Put a message behind all others that wait to be sent."""
        wire.frame_into(self._out, message)

    def send_at_once(self, message: wire.Message) -> None:
        """Send an answer that tells nothing of the table: behind those that wait, but it need not wait for the disk."""
        journal = self.server.journal
        if journal is None or journal.idle or self._out or self._held or self._transport is None:
            wire.frame_into(self._out, message)
        else:
            self._transport.write(wire.frame(message))

    def fail(self, id: int, code: str, message: str) -> None:
        """Answer a request with an error."""
        self.send(wire.Failed(id, code, message))

    def send_if_short(self, id: int, message: wire.Message, entries: Collection[Entry]) -> bool:
        """Send an answer with these entries, unless it is longer than a client takes: then an error."""
        if self.try_to_send(message, entries):
            return True
        self.fail(id, wire.FAILED_LIMIT, too_long(self))
        return False

    def try_to_send(self, message: wire.Message, entries: Collection[Entry]) -> bool:
        """Send a message with these entries, unless it is longer than a client takes."""
        if entries and not wire.fits(entries):
            return False
        start = len(self._out)
        self.send(message)
        if len(self._out) - start <= wire.MAX_ANSWER:
            return True
        del self._out[start:]
        return False

    def flush(self) -> None:
        """Send what waits to be sent, or have it held until it may be."""
        if not self._out or self._transport is None or self._closing:
            return
        journal = self.server.journal
        if journal is None or journal.idle:
            # The transport may keep the buffer: it is given away, not used again.
            out, self._out = self._out, bytearray()
            self._transport.write(out)
        else:
            journal.hold(self)

    def take_unsent(self) -> bytearray:
        out, self._out = self._out, bytearray()
        self._held = len(out)
        # What was taken before is released already: all requests that count as in flight are answered in this.
        self._lent = self.server.limits.in_flight - self._credit
        return out

    def release(self, data: bytearray) -> None:
        self._held = 0
        self._credit += self._lent
        self._lent = 0
        if self._transport is None or self._closing:
            return
        if data:
            self._transport.write(data)
        # Requests before news: there may be news in every batch, and a peer that waits for its answer all the while.
        if not self._reading:
            self._work()
        if self._dirty:
            self.server.pushes.push_later(self)

    # Requests.

    def _work_on(self, end: float) -> bool:
        self._again = False
        if not self._closing:
            self._work(end)
        return False

    def _work(self, end: float | None = None) -> None:
        """Answer what has come, until there is no more, no more may be taken for now, or the slice is over.

        Whoever has used up its slice must queue with what it sends next, so that many such peers share one slice.
        """
        turns = self.server.turns
        if end is None:
            end = turns.end_of_slice()
        late = False
        if not self._out and not self._held:
            self._credit, self._lent = self.server.limits.in_flight, 0
        unsent = self.server.limits.unsent
        wanting = True
        try:
            while self._credit > 0 and self._writable and not self._closing and len(self._out) + self._held < unsent:
                body = self._frames.next()
                if body is None:
                    wanting = False
                    break
                self._credit -= 1
                if self.client is None:
                    self._greet(body)
                else:
                    request = wire.decode_request(body)
                    ANSWERS[type(request)](self, request)
                if len(self._out) > _SLOW_READER:
                    self.flush()
                late = turns.now() >= end
                if late:
                    break
        except wire.FrameError as error:
            self.refuse(wire.REFUSED_PROTOCOL, str(error))
        self.flush()
        self.server.pushes.settle()
        self._slow = late
        self._read_on(wanting)

    def _read_on(self, wanting: bool) -> None:
        """Read more if everything is answered; otherwise see to it that the rest is, sooner or later."""
        if self._transport is None or self._closing:
            return
        if wanting and self._reading:
            self._reading = False
            self._transport.pause_reading()
        elif not wanting and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if wanting and self._writable and not self._held and not self._out and not self._again:
            self._again = True
            self.server.turns.do_later(self._work_on, STRANGERS if self.client is None else self.scope)

    # The handshake.

    def _too_late(self) -> None:
        self.refuse(wire.REFUSED_LATE, f"the handshake took more than {self.server.limits.handshake:g} s")

    def _greet(self, body: bytes) -> None:
        match wire.decode_greeting(body):
            case wire.Hello() as hello if self._hello is None:
                self._meet(hello, body)
            case wire.Proof(proof) if self._hello is not None:
                self._check(*self._hello, proof)
            case _:
                raise wire.FrameError("a greeting out of turn")

    def _meet(self, hello: wire.Hello, body: bytes) -> None:
        self._hello = hello, body
        if hello.version != wire.PROTOCOL:
            self.refuse(
                wire.REFUSED_VERSION,
                f"the server speaks version {wire.PROTOCOL} of the protocol, the client version {hello.version}",
            )
        elif not 0 < len(hello.client) <= self.server.limits.client_id or not 0 <= hello.revision <= MAX_REVISION:
            raise wire.FrameError("a hello with a bad name or revision")
        elif self.server.secret is None:
            self._welcome(hello, b"")
        else:
            challenge = wire.frame(wire.Challenge(new_nonce()))
            self._challenge = challenge[4:]
            self._out += challenge

    def _check(self, hello: wire.Hello, body: bytes, proof: bytes) -> None:
        assert self.server.secret is not None
        key = self.server.secret.key_for(hello.scope)
        if key is None or not verify(key, "client", body, self._challenge, proof):
            self.refuse(wire.REFUSED_SECRET, "the client does not know the server's secret")
            return
        self._welcome(hello, prove(key, "server", body, self._challenge))

    def _welcome(self, hello: wire.Hello, proof: bytes) -> None:
        if not self.server.welcome(self, hello):
            self.refuse(wire.REFUSED_STALE, "a newer connection of this client is here")
            return
        assert self._handshake is not None
        self._handshake.cancel()
        self._hello = None
        self._frames.max_frame = self.server.limits.frame
        token = self.server.table.token
        peer = "" if self._transport is None else host_of(self._transport.get_extra_info("peername"))
        self.send(wire.Welcome(wire.PROTOCOL, token.epoch, token.revision, proof, peer))


def watch_for_dead_peer(sock: socket.socket) -> None:
    """Have the kernel notice that a peer's machine is gone, so that its connection does not stay for ever."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
