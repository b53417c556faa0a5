"""The server's side of one connection: answers requests and pushes news, within bounds of time and memory.

Requests are answered as they arrive, without a task: the table never waits. All answers to one read go out in one
write. Time is bounded: when a slice is over (see ``turns``), the remaining requests wait for a later turn, and nothing
more is read until then. Memory is bounded in both directions: the server stops reading from a peer that does not read,
and a watch is only a position and a dirty flag, so a slow peer gets the newest values once it reads again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, cast

from rendezvous_async.aio import clock
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.addresses import host_of, silence_of, watch_for_dead_peer
from rendezvous_async.backends.tcp.reading import SharedBufferProtocol
from rendezvous_async.backends.tcp.server.handshake import Handshake, Proven
from rendezvous_async.backends.tcp.server.pushes import TOO_LONG
from rendezvous_async.backends.tcp.server.requests import ANSWERS, Watcher, end_watch, too_long
from rendezvous_async.backends.tcp.server.turns import SLICE
from rendezvous_async.backends.tcp.server.unfinished import MAX_UNFINISHED
from rendezvous_async.backends.values import Entry, Token

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.server.server import TcpServer

__all__ = ["Connection"]

_SLOW_READER: Final = 64 * 1024
STRANGERS: Final = "?"
"""The group of connections whose handshake is not over; no scope has this name."""
_LAST_WORDS: Final = 1.0


class Connection(SharedBufferProtocol):
    """One peer of a ``TcpServer``.

    Args:
        server: The server.
        since: When the handshake began; by default, when the connection is made.
    """

    __slots__ = (
        "_again",
        "_closing",
        "_credit",
        "_dirty",
        "_frames",
        "_handshake",
        "_held",
        "_late",
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
        self._handshake: Handshake | None = Handshake(server)
        self._since = since
        self._late: asyncio.TimerHandle | None = None
        self._again = False
        self._slow = False
        self._unfinished = 0

    def __repr__(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"<Connection {self.client or 'unknown'} from {peer} watches={len(self.watchers)}>"

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # not an instance of it under uvloop
        self._transport = transport
        transport.set_write_buffer_limits(high=_SLOW_READER)
        refused = self.server.admit(self)
        if refused is not None:
            self.refuse(refused.code, refused.message)
            return
        self.server.counts.connections += 1
        sock = transport.get_extra_info("socket")
        if sock is not None:
            watch_for_dead_peer(sock)
        loop = asyncio.get_running_loop()
        since = loop.time() if self._since is None else self._since
        self._late = loop.call_at(since + self.server.limits.handshake, self._too_late)

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
        if self._late is not None:
            self._late.cancel()
        self.server.part(self)

    # Called by the server

    def heard_at(self) -> float:
        """Return when the peer's last bytes arrived: before this turn of the loop, if the loop has stalled since."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return clock.now() - (0.0 if sock is None else silence_of(sock))

    def refuse(self, code: str, message: str) -> None:
        """Send the reason and end the connection."""
        if self._closing:
            return
        self.server.counts.refused[code] += 1
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.write(wire.frame(wire.Refused(code, message)))
            # A close with unread bytes would reset the connection, and the peer might never read the reason.
            if self._transport.can_write_eof():
                with contextlib.suppress(OSError):  # the peer may be gone already
                    self._transport.write_eof()
            else:
                self._transport.close()
            if not self._reading:
                self._transport.resume_reading()
            asyncio.get_running_loop().call_later(_LAST_WORDS, self.abort)

    def close(self) -> None:
        """End the connection once everything that may be sent is sent."""
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once, and drop what is unsent."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def mark(self, watcher: Watcher, settled: Token) -> None:
        """Mark a watcher that knows everything up to ``settled`` as having news."""
        if not watcher.dirty:
            watcher.dirty = True
            if watcher.seen.revision < settled.revision:
                watcher.seen = settled
            self._dirty.append(watcher)

    def push(self, end: float) -> None:
        """Send news to dirty watchers, the longest-waiting first, for as long as the peer reads.

        What is left when the slice ends, at ``end``, is pushed in a later turn.
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
            if len(self._out) >= _SLOW_READER:  # Otherwise push() could stop here with news left.
                self.flush()

    def send(self, message: wire.AnyMessage) -> None:
        """Queue a message."""
        wire.frame_into(self._out, message)

    def send_at_once(self, message: wire.AnyMessage) -> None:
        """Send an answer that reveals nothing of the table: it keeps its place in line but does not wait for fsync."""
        journal = self.server.journal
        if journal is None or journal.idle or self._out or self._held or self._transport is None:
            wire.frame_into(self._out, message)
        else:
            self._transport.write(wire.frame(message))

    def fail(self, id: int, code: str, message: str) -> None:
        """Answer a request with an error."""
        self.send(wire.Failed(id, code, message))

    def send_if_short(self, id: int, message: wire.AnyMessage, entries: Collection[Entry]) -> bool:
        """Send an answer with these entries, or an error if it is longer than a client accepts."""
        if self.try_to_send(message, entries):
            return True
        self.fail(id, wire.FAILED_LIMIT, too_long(self))
        return False

    def try_to_send(self, message: wire.AnyMessage, entries: Collection[Entry]) -> bool:
        """Send a message with these entries; False if it is longer than a client accepts."""
        if entries and not wire.fits(entries):
            return False
        start = len(self._out)
        self.send(message)
        if len(self._out) - start <= wire.MAX_ANSWER:
            return True
        del self._out[start:]
        return False

    def flush(self) -> None:
        """Write the queued bytes, or have the journal hold them until the changes before them are on disk."""
        if not self._out or self._transport is None or self._closing:
            return
        journal = self.server.journal
        if journal is None or journal.idle:
            # The transport may keep the buffer, so it is never reused.
            out, self._out = self._out, bytearray()
            self._transport.write(out)
        else:
            journal.hold(self)

    def take_unsent(self) -> bytearray:
        out, self._out = self._out, bytearray()
        self._held = len(out)
        # Earlier batches are released already, so this one answers every request that is still in flight.
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
        # Requests before news: with news in every batch, a request might otherwise never be answered.
        if not self._reading:
            self._work()
        if self._dirty:
            self.server.pushes.push_later(self)

    # Requests

    def _work_on(self, end: float) -> bool:
        self._again = False
        if not self._closing:
            self._work(end)
        return False

    def _work(self, end: float | None = None) -> None:
        """Answer requests until none is left, a bound is reached, or the slice is over.

        A peer that used up its slice must queue with its next bytes, so that all such peers share one slice.
        """
        turns, durations = self.server.turns, self.server.counts.requests
        began = turns.now()
        if end is None:
            end = began + SLICE
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
                request = None
                if self._handshake is not None:
                    self._greet(self._handshake, body)
                else:
                    request = wire.decode_request(body)
                    ANSWERS[type(request)](self, request)
                if len(self._out) > _SLOW_READER:
                    self.flush()
                now = turns.now()
                if request is not None:
                    durations[type(request)].add(now - began)
                began = now
                late = now >= end
                if late:
                    break
        except wire.FrameError as error:
            self.refuse(wire.REFUSED_PROTOCOL, str(error))
        self.flush()
        self.server.pushes.settle()
        self._slow = late
        self._read_on(wanting)

    def _read_on(self, wanting: bool) -> None:
        """Resume reading if every request is answered; otherwise pause, and schedule the rest if nothing else will."""
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

    # The handshake

    def _too_late(self) -> None:
        self.refuse(wire.REFUSED_LATE, f"the handshake took more than {self.server.limits.handshake:g} s")

    def _greet(self, handshake: Handshake, body: bytes) -> None:
        match handshake.take(body):
            case wire.Challenge() as challenge:
                self.send(challenge)
            case wire.Refused(code, message):
                self.refuse(code, message)
            case Proven(hello, version, proof):
                self._welcome(hello, version, proof)

    def _welcome(self, hello: wire.Hello, version: int, proof: bytes) -> None:
        if not self.server.welcome(self, hello):
            self.refuse(wire.REFUSED_STALE, "a newer connection of this client is here")
            return
        assert self._late is not None
        self._late.cancel()
        self._handshake = None
        self._frames.max_frame = self.server.limits.frame
        token = self.server.table.token
        peer = "" if self._transport is None else host_of(self._transport.get_extra_info("peername"))
        self.send(wire.Welcome(version, token.epoch, token.revision, proof, peer))
