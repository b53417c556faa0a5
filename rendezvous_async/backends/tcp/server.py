"""The TCP server: a table, who watches it, and the connections that use it.

One event loop, no task (but for handshakes, in ``door``): connections call in from their transports, a timer ends
sessions, and watchers are told of what has changed (``pushes``). Whatever takes long is done in slices (``turns``), so
that nobody waits for what others have asked for. It can live inside any process of the run, or alone (``serve``).

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
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.base import Commit, Condition, Write, owned
from rendezvous_async.backends.frames import Committed, Ended, Forgotten, Opened
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import CommitId, Table
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.connection import Connection
from rendezvous_async.backends.tcp.door import Caller, Gate
from rendezvous_async.backends.tcp.journal import Journal
from rendezvous_async.backends.tcp.limits import OTHER_FILES, Limits
from rendezvous_async.backends.tcp.pushes import Pushes
from rendezvous_async.backends.tcp.quota import Quota
from rendezvous_async.backends.tcp.turns import Turns
from rendezvous_async.backends.tcp.unfinished import Unfinished
from rendezvous_async.clock import Alarm

if TYPE_CHECKING:
    import ssl

__all__ = ["DISCONNECT_GRACE", "TcpServer"]

logger = logging.getLogger("rendezvous_async.server")

DISCONNECT_GRACE = 1.0
REMEMBER_CLIENT = 600.0
"""Seconds for which the answers of a client that is gone are kept, should it ask again."""
REMEMBERED_CLIENTS = 65_536
FORGET_AT_ONCE = 64
CLAIM = 2**62
SCOPED_CLAIM = 2**48
"""Up to which revision a server without a log believes a hello. No history gets there by commits.

A lie lifts the counter to here and no further, and the honest soon have seen more. They are let in again, since
``MAX_REVISION`` is as far above as no history gets either. The next server believes them only as far as here; so a
client whose secret opens some runs only is believed less, and those who have the whole secret make up for its lies.
"""
TURNED_AWAY_AT_ONCE = OTHER_FILES // 2
_STALL = 0.25
"""A timer that is this late means that the loop stood still. Clients that come back after it get as long again."""


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
        self.turns = Turns()
        self.journal = None if log is None else Journal(log, self._fail)
        self.secret = secret
        self.limits = limits or Limits()
        self.quota = Quota(self.table, self.limits, endpoint)
        self.disconnect_grace = disconnect_grace
        self.endpoint = endpoint
        self.pushes = Pushes(self.table, self.limits, self.turns)
        self.fanout = self.pushes.fanout
        self.listeners = self.pushes.listeners
        """Called with the keys that have changed, as soon as some have; must not raise."""
        self.failed = anyio.Event()
        self.failure: Exception | None = None
        self._connections: set[Connection | Caller] = set()
        self._turned_away: set[Connection | Caller] = set()
        self._clients: dict[str, Connection] = {}
        self._numbers: dict[str, int] = {}
        now = clock.now()
        answers = self.table.snapshot().answers if log is not None else {}
        self._gone: OrderedDict[str, float] = OrderedDict.fromkeys(answers, now)
        self._logged = set(answers)
        self._owners: dict[str, Connection] = {}
        self.unfinished = Unfinished()
        self._alarm = Alarm(self._expire)
        self._gate: Gate | None = None
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
        self._gate = Gate(
            f"the server at {self.endpoint}",
            self.admit,
            self.leave,
            partial(Connection, self),
            tls=tls,
            handshake=self.limits.handshake,
        )
        self._gate.open(sockets)

    async def aclose(self) -> None:
        """Stop serving; with a log, everything that was done is on disk afterwards. Closing twice is no error."""
        self._closed = True
        self._stop()
        for peer in tuple(self._connections):
            peer.refuse(wire.REFUSED_CLOSING, "the server is closing")
        if self.journal is not None:
            await self.journal.aclose()
        for peer in (*self._connections, *self._turned_away):
            peer.abort()
        if self._gate is not None:
            await self._gate.aclose()
        # The transports close in the next turn; then nothing of ours is left in the loop.
        await anyio.lowlevel.checkpoint()

    def _stop(self) -> None:
        """Give the addresses back, and let nothing happen by itself any more."""
        self._stopped = True
        if self._gate is not None:
            self._gate.close()
        self._alarm.cancel()
        self.turns.stop()

    async def without_sessions(self) -> None:
        """Wait until no session is open."""
        while self.table.sessions and self.failure is None and not self._closed:
            self._sessions_ended = anyio.Event()
            await self._sessions_ended.wait()

    # Connections

    def admit(self, peer: Connection | Caller) -> wire.Refused | None:
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

    def leave(self, peer: Connection | Caller) -> None:
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
        sessions, connection.sessions = connection.sessions, set()
        self.turns.for_each(sessions, partial(self._disown, connection, now + self.disconnect_grace))
        client = connection.client
        if client is not None and self._clients.get(client) is connection:
            del self._clients[client]
            self._gone[client] = now
        if not self._stopped:
            self._forget_old(now)

    def _disown(self, connection: Connection, expires_at: float, session: str) -> None:
        if self._owners.get(session) is connection:
            del self._owners[session]
            self.table.hasten(session, expires_at)
            if not self._stopped:
                self._alarm.set_by(expires_at)

    def forget(self, connection: Connection) -> None:
        """Forget what was kept for a client that will not come back."""
        client = connection.client
        if client is not None and self._clients.get(client) is connection:
            del self._clients[client]
            del self._numbers[client]
            self._forget(client)

    def _forget_old(self, now: float) -> None:
        for _ in range(FORGET_AT_ONCE):  # more than come with each call
            if not self._gone:
                break
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
        if self.journal is not None and self.table.revision > before:
            if id is not None:
                self._logged.add(id.client)
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

    def end_sessions_of(self, connection: Connection) -> None:
        """End all sessions of a connection."""
        sessions, connection.sessions = connection.sessions, set()
        self.turns.for_each(sessions, self._end_and_settle)

    def _end_and_settle(self, session: str) -> None:
        self.end_session(session)
        self.pushes.settle()

    def _own(self, connection: Connection, session: str) -> None:
        owner = self._owners.get(session)
        if owner is not None:
            owner.sessions.discard(session)
        self._owners[session] = connection
        connection.sessions.add(session)

    # Time

    def _set_alarm(self) -> None:
        due = self.table.next_due()
        if due is None:
            self._alarm.cancel()
        else:
            # Not in the past, where those are whose turn has not come yet: that would look like a stall.
            self._alarm.set_by(max(due, self.turns.now()))

    def _expire(self, now: float, late: float) -> None:
        """End the sessions that are due, at the latest when their TTL is over, however often the loop stands still.

        A client whose session is due by its TTL has counted itself out since ``OUT_AFTER`` of it. But one that has lost
        its connection may be waiting at a door that nobody opened during a stall: it gets a moment more, if its TTL
        leaves time for that and for another stall.
        """
        stalled = late > _STALL
        if stalled:
            logger.warning("the server's event loop stood still for %.1f s: something in this process blocks it", late)
        end = self.turns.end_of_slice()
        while (due := self.table.next_due()) is not None and due <= now:
            for session in self.table.due(now, 1):
                if not (stalled and self.table.put_off(session, now + _STALL, 2 * late)):
                    self.end_session(session)
            if self.turns.now() >= end:
                break
        self.pushes.settle()
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
