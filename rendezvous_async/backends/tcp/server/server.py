"""The TCP server: a table, its watchers, and the connections that use it.

One event loop, no tasks except for TLS handshakes (``door``): connections are called by their transports, a timer
expires sessions, and watchers are told of changes (``pushes``). Long work is done in slices (``turns``), so that no
client waits for another's requests. The server runs inside any process of the run, or alone (``serve``).

A session belongs to the connection that last opened or refreshed it. When that connection is lost, the session ends
``disconnect_grace`` later unless its client is back by then, and at once if its client has said goodbye. A silent peer
has its full TTL.
"""

from __future__ import annotations

import logging
import socket
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio

from rendezvous_async.aio import clock
from rendezvous_async.aio.clock import Alarm
from rendezvous_async.backends.system import system
from rendezvous_async.backends.table.frames import Committed, Ended, Forgotten, Started
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import CommitId, Table
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.server.counts import Counts, ending_of
from rendezvous_async.backends.tcp.server.door import Caller, Gate
from rendezvous_async.backends.tcp.server.floods import LimitedLog
from rendezvous_async.backends.tcp.server.journal import Journal
from rendezvous_async.backends.tcp.server.limits import DISCONNECT_GRACE, OTHER_FILES, Limits
from rendezvous_async.backends.tcp.server.pushes import Pushes
from rendezvous_async.backends.tcp.server.quota import Quota
from rendezvous_async.backends.tcp.server.requests import ANSWERS
from rendezvous_async.backends.tcp.server.turns import Turns
from rendezvous_async.backends.tcp.server.unfinished import Unfinished
from rendezvous_async.backends.values import Commit, Condition, Write, owned
from rendezvous_async.causes import Cause

if TYPE_CHECKING:
    import ssl

__all__ = ["TcpServer"]

logger = logging.getLogger("rendezvous_async.server")

REMEMBER_CLIENT = 600.0
"""Seconds for which the answers of a disconnected client are kept."""
REMEMBERED_CLIENTS = 65_536
FORGET_AT_ONCE = 64
CLAIM = 2**62
SCOPED_CLAIM = 2**48
"""The highest revision in a Hello that a server without a log believes. No history gets there by commits.

A false revision raises the counter to this bound at most. Honest clients then soon see higher ones. They can reconnect,
since ``MAX_REVISION`` is out of reach, too, but the next server believes them only up to this bound. So a client with a
restricted secret is believed less: clients with the full secret can outbid its false revision.
"""
TURNED_AWAY_AT_ONCE = OTHER_FILES // 2
_STALL = 0.25
"""A timer that is this late means that the loop stalled. Clients then get as long again to reconnect."""


class TcpServer:
    """Serves a table on sockets.

    Args:
        log: The log of the table; None for a table in memory, whose history ends with the server.
        secret: The secret that every client must know.
        limits: The bounds for clients.
        disconnect_grace: Seconds that a session outlives its connection.
        endpoint: The endpoint for clients.
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
        self.table = Table(system().random_bytes(8).hex()) if log is None else log.table
        self.counts = Counts(ANSWERS)
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
        """Called with the changed keys after each change; must not raise."""
        self.refusals = LimitedLog(logger)
        self.failed = anyio.Event()
        self.failure: Exception | None = None
        self._connections: dict[Connection | Caller, None] = {}
        self._turned_away: dict[Connection | Caller, None] = {}
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
        """The number of open connections, with those in a handshake and without those being refused."""
        return len(self._connections)

    async def start(self, sockets: Iterable[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Serve on listening sockets."""
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
        """Stop serving; with a log, all changes are on disk afterwards. May be called more than once."""
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
        # The transports close in the next turn of the loop.
        await anyio.lowlevel.checkpoint()

    def _stop(self) -> None:
        """Release the addresses and stop all timers."""
        self._stopped = True
        if self._gate is not None:
            self._gate.close()
        self._alarm.cancel()
        self.refusals.close()
        self.turns.stop()

    async def without_sessions(self) -> None:
        """Wait until no session is open."""
        while self.table.sessions and self.failure is None and not self._closed:
            self._sessions_ended = anyio.Event()
            await self._sessions_ended.wait()

    # Connections

    def admit(self, peer: Connection | Caller) -> wire.Refused | None:
        """Admit a peer, or return the reason for refusal; when many are being refused, drop it silently."""
        most = self.limits.connections_now
        if self._closed:
            refused = wire.Refused(wire.REFUSED_CLOSING, "the server is closing")
        elif len(self._connections) >= most:
            hint = " (its limit of open files allows no more)" if most < self.limits.connections else ""
            refused = wire.Refused(wire.REFUSED_LIMIT, f"the server has its {most} connections{hint}; try again later")
        else:
            self._connections[peer] = None
            return None
        if len(self._turned_away) < TURNED_AWAY_AT_ONCE:
            self._turned_away[peer] = None
        else:
            self.counts.refused["silently"] += 1
            peer.abort()
        return refused

    def leave(self, peer: Connection | Caller) -> None:
        """Free a peer's place."""
        self._connections.pop(peer, None)
        self._turned_away.pop(peer, None)

    def welcome(self, connection: Connection, hello: wire.Hello) -> bool:
        """Make this the connection of its client; False if the client has a newer one.

        An older connection is cut at once, with its unread requests: the client sends them again on this one, and they
        must not be applied twice.
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
        """Forget a closed connection and start the grace period of its sessions."""
        self.leave(connection)
        for watcher in connection.watchers.values():
            self.fanout.remove(watcher.names, watcher)
        connection.watchers.clear()
        now = clock.now()
        sessions, connection.sessions = sorted(connection.sessions), set()
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
        """Forget a client that will not come back."""
        client = connection.client
        if client is not None and self._clients.get(client) is connection:
            del self._clients[client]
            del self._numbers[client]
            self._forget(client)

    def _forget_old(self, now: float) -> None:
        for _ in range(FORGET_AT_ONCE):  # more than one call can add
            if not self._gone:
                break
            client, gone_at = next(iter(self._gone.items()))
            if len(self._gone) <= REMEMBERED_CLIENTS and now - gone_at < REMEMBER_CLIENT:
                break
            del self._gone[client]
            self._numbers.pop(client, None)
            self._forget(client)

    def _forget(self, client: str) -> None:
        """Drop the answers of a client, and log that, so that a replay drops them too."""
        self.table.forget(client)
        if self.journal is not None and client in self._logged:
            self._logged.discard(client)
            self.journal.record(Forgotten(client))

    # Changes of the table, each of which is logged

    def commit(self, writes: Sequence[Write], when: Sequence[Condition], id: CommitId | None = None) -> Commit:
        """Commit to the table."""
        before = self.table.revision
        commit = self.table.commit(writes, when, id)
        changed = self.table.revision > before
        self.counts.commits += changed
        self.counts.lost += not commit.won
        if self.journal is not None and changed:
            if id is not None:
                self._logged.add(id.client)
            self.journal.record(Committed(tuple(writes), (), id))
        return commit

    def open_session(
        self, connection: Connection, ttl: float, writes: Sequence[Write] = (), when: Sequence[Condition] = ()
    ) -> tuple[str, Commit | None]:
        """Open a session for this connection, and make its first commit, if there is one.

        That commit has no number: a repeat on another connection opens another session.
        """
        session = self.table.open_session(ttl, connection.heard_at(), connection.scope)
        self.counts.opened += 1
        self._own(connection, session)
        if self.journal is not None:
            self.journal.record(Started(session, ttl))
        self._set_alarm()
        return session, self.commit(owned(writes, session), when) if writes else None

    def keep_alive(self, connection: Connection, session: str) -> bool:
        """Renew a session and assign it to this connection; False if it has ended.

        A keep-alive counts from its arrival. It may be read two blocks of the host's own code later, and a node that
        is frozen meanwhile would be missed that much later.
        """
        if not self.table.keep_alive(session, connection.heard_at()):
            return False
        self.counts.keep_alives += 1
        if self._owners.get(session) is not connection:
            self._own(connection, session)
        return True

    def resume(self, connection: Connection, session: str) -> bool:
        """Assign a session to this connection; False if it has ended."""
        if not self.table.resume(session):
            return False
        self._own(connection, session)
        return True

    def end_session(self, session: str, cause: str = "") -> None:
        """End a session, if it is open."""
        if not self.table.end_session(session, cause):
            return
        owner = self._owners.pop(session, None)
        self.counts.ended[ending_of(cause)] += 1
        if owner is not None:
            owner.sessions.discard(session)
        if self.journal is not None:
            self.journal.record(Ended(session, cause))
        if not self.table.sessions:
            self._sessions_ended.set()

    def end_sessions_of(self, connection: Connection) -> None:
        """End all sessions of a connection whose client has said goodbye."""
        sessions, connection.sessions = sorted(connection.sessions), set()
        self.turns.for_each(sessions, self._end_and_settle)

    def _end_and_settle(self, session: str) -> None:
        self.end_session(session, Cause.LEFT)
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
            # Never in the past, where sessions left for a later slice are: that would look like a stall.
            self._alarm.set_by(max(due, self.turns.now()))

    def _expire(self, now: float, late: float) -> None:
        """End the sessions that are due, no later than at the end of their TTL.

        A client whose TTL is over has considered itself out since ``OUT_AFTER`` of it. But a client that has lost its
        connection may have been unable to reconnect during a stall of this loop. It gets a little more time if its TTL
        leaves room for that and for another stall.
        """
        stalled = late > _STALL
        if stalled:
            logger.warning("the server's event loop stalled for %.1f s: something in this process blocks it", late)
        end = self.turns.end_of_slice()
        while (due := self.table.next_due()) is not None and due <= now:
            for session in self.table.due(now, 1):
                if not (stalled and self.table.put_off(session, now + _STALL, 2 * late)):
                    self.end_session(session, self.table.why_due(session))
            if self.turns.now() >= end:
                break
        self.pushes.settle()
        self._set_alarm()

    def _fail(self, error: Exception) -> None:
        """Stop serving after a disk failure: the table differs from what a restart would find.

        The addresses are free at once, so that a new server can start from the disk; ``aclose`` releases the log.
        """
        self.failure = error
        self._stop()
        logger.error("the server at %s stops: %s", self.endpoint, error)
        for peer in tuple(self._connections):
            peer.refuse(wire.REFUSED_STORAGE, f"the server's log failed: {error}")
        self._sessions_ended.set()
        self.failed.set()
