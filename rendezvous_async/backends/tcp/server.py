"""The TCP server: a table, who watches it, and the connections that use it.

One event loop, no task (but for TLS, in ``door``): connections call in from their transports, a timer ends sessions,
and at the end of each turn in which something has changed its watchers are told, all changes at once. It can live
inside any process of the run, or alone (``serve``).

A session belongs to the connection that last opened or refreshed it. When that connection goes, the session is suspect:
it ends ``disconnect_grace`` later unless its client is back by then, and at once if its client has said goodbye. A peer
that is merely silent has its whole TTL.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.base import Commit, Condition, Write, owned
from rendezvous_async.backends.fanout import Fanout
from rendezvous_async.backends.frames import Committed, Ended, Forgotten, Opened
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import CommitId, Table
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.addresses import BACKLOG
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.connection import Connection
from rendezvous_async.backends.tcp.door import TlsDoor
from rendezvous_async.backends.tcp.journal import Journal
from rendezvous_async.backends.tcp.limits import OTHER_FILES, Limits
from rendezvous_async.backends.tcp.requests import Watcher
from rendezvous_async.clock import Alarm

if TYPE_CHECKING:
    import ssl

    from msgspec import Raw

__all__ = ["DISCONNECT_GRACE", "TcpServer"]

logger = logging.getLogger(__name__)

DISCONNECT_GRACE = 1.0
REMEMBER_CLIENT = 600.0
"""Seconds for which the answers of a client that is gone are kept, should it ask again."""
REMEMBERED_CLIENTS = 65_536
CLAIM = 2**62
SCOPED_CLAIM = 2**48
"""Up to which revision a server without a log believes a hello. No history gets there by commits.

A lie lifts the counter to here and no further, and the honest soon have seen more. They are let in again, since
``MAX_REVISION`` is as far above as no history gets either. The next server believes them only as far as here; so a
client whose secret opens some runs only is believed less, and those who have the whole secret make up for its lies.
"""
ACCEPT_AT_ONCE = 64
TURNED_AWAY_AT_ONCE = OTHER_FILES // 2
_STALL = 0.25
"""A timer that comes so much late means that this loop stood still: the peers' keep-alives wait to be read."""


class TcpServer:
    """Serves a table on sockets.

    Args:
        log: Where the table is kept; None for a table in memory, whose history ends with the server.
        secret: What every client must know.
        limits: What clients are given.
        disconnect_grace: Seconds that a session outlives its connection.
        endpoint: What to hand out to clients, for the repr and for messages.
    """

    def __init__(
        self,
        *,
        log: Log | None = None,
        secret: Secret | None = None,
        limits: Limits | None = None,
        disconnect_grace: float = DISCONNECT_GRACE,
        endpoint: str = "",
    ) -> None:
        self.table = Table(secrets.token_hex(8)) if log is None else log.table
        self.journal = None if log is None else Journal(log, self._fail)
        self.secret = secret
        self.limits = limits or Limits()
        self.disconnect_grace = disconnect_grace
        self.endpoint = endpoint
        self.fanout: Fanout[Watcher] = Fanout()
        self.listeners: list[Callable[[Sequence[str]], None]] = []
        """Called with the keys that have changed, as soon as some have; must not raise."""
        self.failed = anyio.Event()
        self.failure: Exception | None = None
        self._connections: set[Connection | TlsDoor] = set()
        self._turned_away: set[Connection | TlsDoor] = set()
        self._clients: dict[str, Connection] = {}
        self._numbers: dict[str, int] = {}
        now = clock.now()
        answers = self.table.snapshot().answers if log is not None else {}
        self._gone: OrderedDict[str, float] = OrderedDict.fromkeys(answers, now)
        self._logged = set(answers)
        self._owners: dict[str, Connection] = {}
        self._settled = self.table.token
        self._touched: dict[Connection, None] = {}
        self._pushing: asyncio.Handle | None = None
        self._alarm = Alarm(self._expire)
        self._no_expiry_before = 0.0
        self._listeners: list[asyncio.Server] = []
        self._sessions_ended = anyio.Event()
        self._stopped = False
        self._closed = False
        self._set_alarm()

    def __repr__(self) -> str:
        return f"<TcpServer {self.endpoint} connections={len(self._connections)} {self.table!r}>"

    @property
    def connections(self) -> int:
        """How many are open, also those whose handshake is under way; without those that are being refused."""
        return len(self._connections)

    async def start(self, sockets: Iterable[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Serve on sockets that listen already."""
        loop = asyncio.get_running_loop()
        make_peer: Callable[[], asyncio.BaseProtocol] = partial(Connection, self)
        options: dict[str, Any] = {}
        if tls is not None and isinstance(loop, asyncio.BaseEventLoop):
            make_peer = partial(TlsDoor, self, tls)
        elif tls is not None:
            # uvloop reads on though it is told to pause: there TLS comes first, and a peer counts from then on.
            options = {"ssl": tls, "ssl_handshake_timeout": self.limits.handshake}
        for sock in sockets:
            listener = await loop.create_server(
                make_peer, sock=sock, backlog=ACCEPT_AT_ONCE, start_serving=False, **options
            )
            self._listeners.append(listener)  # First: whatever ends this here must not leave it in the loop.
            await listener.start_serving()
            sock.listen(BACKLOG)  # asyncio has one number for the queue and for how many to accept in one turn

    async def aclose(self) -> None:
        """Stop serving; with a log, everything that was done is on disk afterwards. Closing twice is no error."""
        self._closed = True
        self._stop()
        for peer in tuple(self._connections):
            peer.refuse(wire.REFUSED_CLOSING, "the server is closing")
        if self.journal is not None:
            await self.journal.aclose()
        peers = [*self._connections, *self._turned_away]
        for peer in peers:
            peer.abort()
        handshakes = [peer.task for peer in peers if isinstance(peer, TlsDoor) and peer.task is not None]
        if handshakes:
            await asyncio.wait(handshakes)
        # The transports close in the next turn; then nothing of ours is left in the loop.
        await anyio.lowlevel.checkpoint()

    def _stop(self) -> None:
        """Give the addresses back, and let nothing happen by itself any more."""
        self._stopped = True
        for listener in self._listeners:
            listener.close()
        self._alarm.cancel()
        if self._pushing is not None:
            self._pushing.cancel()

    async def without_sessions(self) -> None:
        """Wait until no session is open."""
        while self.table.sessions and self.failure is None and not self._closed:
            self._sessions_ended = anyio.Event()
            await self._sessions_ended.wait()

    # Connections

    def admit(self, peer: Connection | TlsDoor) -> wire.Refused | None:
        """Take in a peer, or return why not; where many are being told so already it is cut off without a word."""
        most = self.limits.connections_now
        if self._closed:
            refused = wire.Refused(wire.REFUSED_CLOSING, "the server is closing")
        elif len(self._connections) >= most:
            hint = " (its limit of open files allows no more)" if most < self.limits.connections else ""
            refused = wire.Refused(wire.REFUSED_LIMIT, f"the server has its {most} connections{hint}; try again later")
        else:
            self._connections.add(peer)
            return None
        if len(self._turned_away) < TURNED_AWAY_AT_ONCE:
            self._turned_away.add(peer)
        else:
            peer.abort()
        return refused

    def leave(self, peer: Connection | TlsDoor) -> None:
        """Let another have a peer's place."""
        self._connections.discard(peer)
        self._turned_away.discard(peer)

    def welcome(self, connection: Connection, hello: wire.Hello) -> bool:
        """Make a connection that of its client; False if the client has a newer one.

        An older one is cut at once, with all requests in it that were not read yet: the client sends them again on this
        one, and must not find them done once more later.
        """
        client = f"{hello.scope}|{hello.client}" if hello.scope else hello.client
        if hello.connection <= self._numbers.get(client, -1):
            return False
        if self.failure is not None:
            connection.refuse(wire.REFUSED_STORAGE, str(self.failure))
            return False
        self._numbers[client] = hello.connection
        old = self._clients.pop(client, None)
        if old is not None:
            old.abort()
        self._gone.pop(client, None)
        self._clients[client] = connection
        connection.client, connection.scope = client, hello.scope
        if self.journal is None:
            self.table.raise_revision(min(hello.revision, SCOPED_CLAIM if hello.scope else CLAIM))
        return True

    def part(self, connection: Connection) -> None:
        """Let go of a connection that is closed; its sessions are suspect."""
        self.leave(connection)
        for watcher in connection.watchers.values():
            self.fanout.remove(watcher.names, watcher)
        connection.watchers.clear()
        now = clock.now()
        for session in connection.sessions:
            if self._owners.get(session) is connection:
                del self._owners[session]
                self.table.hasten(session, now + self.disconnect_grace)
        connection.sessions.clear()
        client = connection.client
        if client is not None and self._clients.get(client) is connection:
            del self._clients[client]
            self._gone[client] = now
        if not self._stopped:
            self._forget_old(now)
            self._set_alarm()

    def forget(self, connection: Connection) -> None:
        """Forget what was kept for a client that will not come back."""
        client = connection.client
        if client is not None and self._clients.get(client) is connection:
            del self._clients[client]
            del self._numbers[client]
            self._forget(client)

    def _forget_old(self, now: float) -> None:
        while self._gone:
            client, gone_at = next(iter(self._gone.items()))
            if len(self._gone) <= REMEMBERED_CLIENTS and now - gone_at < REMEMBER_CLIENT:
                break
            del self._gone[client]
            self._numbers.pop(client, None)
            self._forget(client)

    def _forget(self, client: str) -> None:
        """Drop the answers of a client; also in the log, or a replay would remember more than was remembered here."""
        self.table.forget(client)
        if self.journal is not None and client in self._logged:
            self._logged.discard(client)
            self.journal.record(Forgotten(client))

    # What connections ask for; whatever changes the table goes through here, and into the log.

    def commit(self, writes: Sequence[Write], when: Sequence[Condition], id: CommitId | None = None) -> Commit:
        """Commit to the table."""
        before = self.table.revision
        commit = self.table.commit(writes, when, id)
        if self.journal is not None and commit.won:
            if id is not None:
                self._logged.add(id.client)
            if self.table.revision > before:
                self.journal.record(Committed(tuple(writes), (), id))
        return commit

    def open_session(
        self, connection: Connection, ttl: float, writes: Sequence[Write] = (), when: Sequence[Condition] = ()
    ) -> tuple[str, Commit | None]:
        """Open a session that belongs to this connection, and make its first commit, if there is one.

        That has no number: a client that sends it again, on another connection, means another session.
        """
        session = self.table.open_session(ttl, clock.now(), connection.scope)
        self._own(connection, session)
        if self.journal is not None:
            self.journal.record(Opened(session, ttl))
        self._set_alarm()
        return session, self.commit(owned(writes, session), when) if writes else None

    def keep_alive(self, connection: Connection, session: str) -> bool:
        """Refresh a session, which belongs to this connection from now on; False if it has ended."""
        if not self.table.keep_alive(session, asyncio.get_running_loop().time()):
            return False
        if self._owners.get(session) is not connection:
            self._own(connection, session)
        return True

    def resume(self, connection: Connection, session: str) -> bool:
        """Let a session belong to this connection; False if it has ended."""
        if not self.table.resume(session):
            return False
        self._own(connection, session)
        return True

    def end_session(self, session: str) -> None:
        """End a session, if it is open."""
        if not self.table.end_session(session):
            return
        owner = self._owners.pop(session, None)
        if owner is not None:
            owner.sessions.discard(session)
        if self.journal is not None:
            self.journal.record(Ended(session))
        if not self.table.sessions:
            self._sessions_ended.set()

    def _own(self, connection: Connection, session: str) -> None:
        owner = self._owners.get(session)
        if owner is not None:
            owner.sessions.discard(session)
        self._owners[session] = connection
        connection.sessions.add(session)

    # Changes and time

    def settle(self) -> None:
        """Mark the watchers of what has changed; they are told at the end of this turn of the loop, all at once."""
        if not self.table.has_changed:
            return
        changed = self.table.take_changed()
        for listener in self.listeners:
            listener(changed)
        for watcher in self.fanout.concerned(changed):
            watcher.connection.mark(watcher, self._settled)
            self._touched[watcher.connection] = None
        self._settled = self.table.token
        if self._touched and self._pushing is None:
            self._pushing = asyncio.get_running_loop().call_soon(self._push)

    def _push(self) -> None:
        self._pushing = None
        touched, self._touched = self._touched, {}
        memo: dict[tuple[tuple[str, ...], int], Raw | None] = {}
        for connection in touched:
            connection.push(memo)

    def _set_alarm(self) -> None:
        due = self.table.next_due()
        if due is None:
            self._alarm.cancel()
        else:
            self._alarm.set_by(max(due, self._no_expiry_before))

    def _expire(self, now: float, late: float) -> None:
        if late > _STALL:
            logger.warning(
                "the server's event loop stood still for %.1f s; sessions that are due get a moment more", late
            )
            self._no_expiry_before = now + _STALL
            self._set_alarm()
            return
        for session in self.table.due(now):
            self.end_session(session)
        self.settle()
        self._set_alarm()

    def _fail(self, error: Exception) -> None:
        """The disk has failed: what the table holds is not what a restart would find. Nothing more is served.

        The addresses are free at once, for whoever starts again from what the disk holds; the log is let go of by
        ``aclose``.
        """
        self.failure = error
        self._stop()
        logger.error("the server at %s stops: %s", self.endpoint, error)
        for peer in tuple(self._connections):
            peer.refuse(wire.REFUSED_STORAGE, f"the server's log failed: {error}")
        self._sessions_ended.set()
        self.failed.set()
