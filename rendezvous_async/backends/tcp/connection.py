"""The server's side of one connection: greet it, answer it, push to it, and never let it cost more than its share.

Requests are answered where they arrive, without a task: the table needs no waiting. All answers to the bytes of one
read go out in one write. Memory is bounded from both sides: a peer that does not read is not read from either, and what
it watches is only a position and a mark that something has changed, so that it gets the newest values when it reads on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rendezvous_async.backends.base import Condition, Put, Token, Write
from rendezvous_async.backends.table import CommitId
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import new_nonce, prove, verify
from rendezvous_async.errors import RendezvousSessionError

if TYPE_CHECKING:
    from msgspec import Raw

    from rendezvous_async.backends.tcp.server import TcpServer

__all__ = ["Connection", "Watcher"]

MAX_NAME: Final = 4096
MAX_REVISION: Final = 2**53
_SLOW_READER: Final = 64 * 1024
_LAST_WORDS: Final = 1.0


class Watcher:
    """A watch as the server sees it: what is watched, and up to where the watcher knows it."""

    __slots__ = ("connection", "dirty", "id", "names", "seen")

    def __init__(self, connection: Connection, id: int, names: tuple[str, ...], seen: Token) -> None:
        self.connection = connection
        self.id = id
        self.names = names
        self.seen = seen
        self.dirty = False


class Connection(asyncio.Protocol):
    """One peer of a ``TcpServer``."""

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
        "_out",
        "_reading",
        "_transport",
        "_writable",
        "client",
        "number",
        "scope",
        "server",
        "sessions",
        "watchers",
    )

    def __init__(self, server: TcpServer) -> None:
        self.server = server
        self.client: str | None = None
        self.number = 0
        self.scope = ""
        self.sessions: set[str] = set()
        self.watchers: dict[int, Watcher] = {}
        self._dirty: list[Watcher] = []
        self._transport: asyncio.Transport | None = None
        self._frames = wire.FrameDecoder(min(wire.HANDSHAKE_FRAME, server.limits.frame))
        self._out = bytearray()
        self._held = 0
        self._credit = server.limits.in_flight
        self._writable = True
        self._reading = True
        self._closing = False
        self._hello: tuple[wire.Hello, bytes] | None = None
        self._challenge = b""
        self._handshake: asyncio.TimerHandle | None = None
        self._again: asyncio.Handle | None = None

    def __repr__(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"<Connection {self.client or 'unknown'} from {peer} watches={len(self.watchers)}>"

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_SLOW_READER)
        limits = self.server.limits
        if not self.server.admit(self):
            self.refuse(wire.REFUSED_LIMIT, f"the server has its {limits.connections} connections; try again later")
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            watch_for_dead_peer(sock)
        loop = asyncio.get_running_loop()
        self._handshake = loop.call_later(limits.handshake, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._frames.feed(data)
        self._work()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if not self._closing:
            self.push()
            self._work()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._out.clear()
        self._dirty.clear()
        if self._handshake is not None:
            self._handshake.cancel()
        if self._again is not None:
            self._again.cancel()
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

    def push(self, memo: dict[tuple[tuple[str, ...], int], Raw | None] | None = None) -> None:
        """Send news to the watchers that have some, as far as the peer reads.

        Args:
            memo: Listings that were made and encoded for others in this round of pushes.
        """
        if memo is None:
            memo = {}
        table = self.server.table
        dirty = self._dirty
        while dirty and self._writable and len(self._out) + self._held < _SLOW_READER:
            watcher = dirty.pop()
            watcher.dirty = False
            if watcher.id not in self.watchers:
                continue
            place = (watcher.names, watcher.seen.revision)
            if place in memo:
                listing = memo[place]
            else:
                changes = table.changes(watcher.names, watcher.seen)
                listing = memo[place] = None if changes is None else wire.encode_listing(changes)
            if listing is not None:
                watcher.seen = table.token
                self._send(wire.EncodedChanged(watcher.id, listing))
                if len(self._out) > _SLOW_READER:
                    self.flush()
        self.flush()

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
        return out

    def release(self, data: bytearray) -> None:
        self._held = 0
        if self._transport is None or self._closing:
            return
        if data:
            self._transport.write(data)
        if self._dirty:
            self.push()
        if not self._reading:
            self._work()

    # Requests.

    def _work(self) -> None:
        """Answer what has come, until there is no more, or no more may be taken for now."""
        self._again = None
        self._credit = self.server.limits.in_flight if not self._out and not self._held else self._credit
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
                    _ANSWERS[type(request)](self, request)
                if len(self._out) > _SLOW_READER:
                    self.flush()
        except wire.FrameError as error:
            self.refuse(wire.REFUSED_PROTOCOL, str(error))
        self.flush()
        self.server.settle_soon()
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
        if wanting and self._writable and not self._held and not self._out and self._again is None:
            # Others' turn first.
            self._again = asyncio.get_running_loop().call_soon(self._work)

    def _send(self, message: wire.Message) -> None:
        wire.frame_into(self._out, message)

    def _fail(self, id: int, code: str, message: str) -> None:
        self._send(wire.Failed(id, code, message))

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
        self._send(wire.Welcome(wire.PROTOCOL, token.epoch, token.revision, proof))

    # One method for each kind of request.

    def _get(self, request: wire.Get) -> None:
        if self._may_name(request.id, request.key):
            self._send(wire.Found(request.id, self.server.table.get(request.key)))

    def _list(self, request: wire.List) -> None:
        if self._may_name(request.id, request.name):
            start = len(self._out)
            self._send(wire.Listed(request.id, self.server.table.list(request.name)))
            self._check_length(request.id, start)

    def _transact(self, request: wire.Transact) -> None:
        id = request.id
        if self._may_write(id, request.writes, request.when):
            assert self.client is not None
            commit_id = CommitId(self.client, request.number, request.settled)
            try:
                commit = self.server.commit(request.writes, request.when, commit_id)
            except RendezvousSessionError as error:
                self._fail(id, wire.FAILED_SESSION, str(error))
            else:
                self._send(wire.Committed(id, commit))

    def _follow(self, request: wire.Follow) -> None:
        limits = self.server.limits
        if request.id in self.watchers:
            raise wire.FrameError(f"a second watch with the id {request.id}")
        if not request.names or len(request.names) > limits.writes or len(self.watchers) >= limits.watches:
            self._fail(
                request.id,
                wire.FAILED_LIMIT,
                f"a connection may have {limits.watches} watches, of 1 to {limits.writes} names each",
            )
        elif all(self._may_name(request.id, name) for name in request.names):
            table = self.server.table
            watcher = Watcher(self, request.id, request.names, table.token)
            start = len(self._out)
            self._send(wire.Changed(request.id, table.changes(request.names, request.after)))
            if self._check_length(request.id, start):
                self.watchers[request.id] = watcher
                self.server.fanout.add(request.names, watcher)

    def _unfollow(self, request: wire.Unfollow) -> None:
        watcher = self.watchers.pop(request.id, None)
        if watcher is not None:
            self.server.fanout.remove(watcher.names, watcher)

    def _open_session(self, request: wire.OpenSession) -> None:
        ttl, limits = request.ttl, self.server.limits
        if not 0 < ttl <= limits.longest_ttl:
            self._fail(
                request.id, wire.FAILED_INVALID, f"a session's ttl is at most {limits.longest_ttl:g} s, not {ttl:g}"
            )
        elif self.server.table.sessions >= limits.sessions:
            self._fail(request.id, wire.FAILED_LIMIT, f"the server has its {limits.sessions} sessions")
        else:
            granted = max(ttl, limits.shortest_ttl)
            self._send(wire.Opened(request.id, self.server.open_session(self, granted), granted))

    def _keep_alive(self, request: wire.KeepAlive) -> None:
        if self._may_use(request.id, request.session):
            if self.server.keep_alive(self, request.session):
                self._send(wire.Done(request.id))
            else:
                self._fail(request.id, wire.FAILED_SESSION, f"session {request.session} has ended")

    def _resume(self, request: wire.Resume) -> None:
        if self._may_use(request.id, request.session):
            if self.server.resume(self, request.session):
                self._send(wire.Done(request.id))
            else:
                self._fail(request.id, wire.FAILED_SESSION, f"session {request.session} has ended")

    def _end_session(self, request: wire.EndSession) -> None:
        if self._may_use(request.id, request.session):
            self.server.end_session(request.session)
            self._send(wire.Done(request.id))

    def _ping(self, request: wire.Ping) -> None:
        self._send(wire.Done(request.id))

    def _goodbye(self, _: wire.Goodbye) -> None:
        self.flush()
        self.server.forget(self)
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # What a peer may do.

    def _may_name(self, id: int, name: str) -> bool:
        if not is_sound(name):
            self._fail(id, wire.FAILED_INVALID, f"not a name: {name[:64]!r}")
            return False
        if not name.startswith(self.scope):
            self._fail(id, wire.FAILED_DENIED, f"this client's secret opens {self.scope}* only, not {name}")
            return False
        return True

    def _may_use(self, id: int, session: str) -> bool:
        if self.scope and session.partition("@")[2] != self.scope:
            self._fail(id, wire.FAILED_DENIED, f"session {session} is not one of those that {self.scope}* opened")
            return False
        return True

    def _may_write(self, id: int, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> bool:
        limits = self.server.limits
        if max(len(writes), len(when)) > limits.writes:
            self._fail(id, wire.FAILED_LIMIT, f"a commit has at most {limits.writes} writes and conditions")
            return False
        puts = size = 0
        for write in writes:
            if isinstance(write, Put):
                puts += 1
                size += len(write.key) + len(write.value)
                if not self._may_name(id, write.key) or not self._is_key(id, write.key):
                    return False
                if write.session is not None and not self._may_use(id, write.session):
                    return False
            elif not self._may_name(id, write.name):
                return False
        for condition in when:
            if not self._may_name(id, condition.key):
                return False
        table = self.server.table
        if puts and (len(table) + puts > limits.keys or table.size + size > limits.bytes):
            self._fail(id, wire.FAILED_LIMIT, f"the server is full: {len(table)} keys, {table.size} bytes")
            return False
        return True

    def _is_key(self, id: int, key: str) -> bool:
        if key.endswith("/"):
            self._fail(id, wire.FAILED_INVALID, f"a key must not end in a slash: {key[:64]!r}")
            return False
        return True

    def _check_length(self, id: int, start: int) -> bool:
        """Take back an answer that is longer than a client takes."""
        length = len(self._out) - start
        if length <= wire.MAX_ANSWER:
            return True
        del self._out[start:]
        self._fail(id, wire.FAILED_LIMIT, f"the answer has {length} bytes, more than {wire.MAX_ANSWER}; ask for less")
        return False


_ANSWERS: Final[dict[type, Callable[[Connection, Any], None]]] = {
    wire.Get: Connection._get,
    wire.List: Connection._list,
    wire.Transact: Connection._transact,
    wire.Follow: Connection._follow,
    wire.Unfollow: Connection._unfollow,
    wire.OpenSession: Connection._open_session,
    wire.KeepAlive: Connection._keep_alive,
    wire.Resume: Connection._resume,
    wire.EndSession: Connection._end_session,
    wire.Ping: Connection._ping,
    wire.Goodbye: Connection._goodbye,
}


def is_sound(name: str) -> bool:
    """Tell whether a client of ours could have sent this name."""
    return 0 < len(name) <= MAX_NAME and name[0] != "/" and "//" not in name and name.isprintable()


def watch_for_dead_peer(sock: socket.socket) -> None:
    """Have the kernel notice that a peer's machine is gone, so that its connection does not stay for ever."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
