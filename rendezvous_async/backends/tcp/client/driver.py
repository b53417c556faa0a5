"""The driver of ``tcp://``: calls, sessions and watches over a ``Channel``."""

from __future__ import annotations

from typing import TypeVar

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.driver import Driver, Granted, Opening, Sink, Subscription
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.client.calls import error_of
from rendezvous_async.backends.tcp.client.channel import Channel
from rendezvous_async.backends.tcp.hosting import Host
from rendezvous_async.backends.values import Commit, Condition, Entry, Listing, Token, Write
from rendezvous_async.errors import RendezvousSessionError

__all__ = ["TcpDriver"]

A = TypeVar("A", bound=wire.Answer)


class TcpDriver(Driver):
    """A client of a TCP server.

    A call waits until it is answered, even without a connection: bound it with a ``deadline`` or a cancel scope. It
    fails on its own only when the server refuses this client.

    Args:
        channel: The started channel.
        host: The host, if this process may host the server; closed with the driver.
        max_writes: Upper bound on the writes of one commit.
    """

    name = "tcp"
    max_bytes = 8 * 1024 * 1024

    keeps_deadlines = True  # one timer for all calls is cheaper than a cancel scope for each

    def __init__(self, channel: Channel, *, host: Host | None = None, max_writes: int = 16_384) -> None:
        self.max_writes = max_writes
        self._channel = channel
        self.host = host

    def __repr__(self) -> str:
        hosting = " hosting" if self.is_hosting else ""
        return f"<TcpDriver tcp://{self._channel.dialer}{hosting}>"

    @property
    def attempts(self) -> tuple[str, ...]:
        """How the latest attempts to connect ended, one line each; empty while there is a connection."""
        return self._channel.dialer.attempts.lines()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._channel.link is not None

    @property
    def trouble(self) -> str | None:
        if self.is_connected:
            return None
        cause = self._channel.outage.cause
        return f"no connection to tcp://{self._channel.dialer}" + (f" ({cause})" if cause else "")

    @property
    def is_hosting(self) -> bool:
        """Whether this process hosts the server."""
        return self.host is not None and self.host.server is not None

    @property
    def local_address(self) -> str:
        link = self._channel.link
        return "" if link is None else link.local_address

    @property
    def seen_address(self) -> str:
        link = self._channel.link
        return "" if link is None else link.seen_address

    async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
        channel, subscription = self._channel, None
        sent_at = clock.lease_now()
        id = channel.next_id()
        request = wire.OpenSession(id, opening.ttl, opening.writes, opening.when, opening.names)
        if opening.sink is not None:
            subscription = channel.follow_with(id, opening.names, opening.sink)
        try:
            opened = await self._call(id, request, wire.SessionOpened, deadline)
        except BaseException:
            if subscription is not None:
                subscription.close()
            raise
        session = Session(self, opened.session, opened.ttl, sent_at)
        channel.keep_session(session)
        if opened.commit is not None:
            channel.saw(opened.commit.token)
        return Granted(session, opened.commit, subscription)

    async def keep_alive(self, session: str, deadline: Deadline | None = None) -> None:
        id = self._channel.next_id()
        try:
            await self._call(id, wire.Renew(id, session), wire.Done, deadline)
        except RendezvousSessionError:
            self._channel.drop_session(session)
            raise

    async def end_session(self, session: str, cause: str = "") -> None:
        self._channel.drop_session(session)
        id = self._channel.next_id()
        await self._call(id, wire.EndSession(id, session, cause), wire.Done)

    async def aclose(self) -> None:
        try:
            await self._channel.aclose()
        finally:
            if self.host is not None:
                await self.host.aclose()

    async def get(self, key: str) -> Entry | None:
        id = self._channel.next_id()
        found = await self._call(id, wire.Get(id, key), wire.Found)
        if found.entry is not None:
            self._channel.saw(found.entry.token)
        return found.entry

    async def list(self, name: str) -> Listing:
        id = self._channel.next_id()
        listed = await self._call(id, wire.List(id, name), wire.Listed)
        self._channel.saw(listed.listing.token)
        return listed.listing

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        channel = self._channel
        id = channel.next_id()
        number, settled = channel.commits.begin()
        try:
            request = wire.Transact(id, number, settled, writes, when)
            committed = await self._call(id, request, wire.Transacted, deadline)
        finally:
            channel.commits.end(number)
        channel.saw(committed.commit.token)
        return committed.commit

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        return self._channel.follow(names, after, sink)

    async def _call(self, id: int, request: wire.Request, kind: type[A], deadline: Deadline | None = None) -> A:
        answer = await self._channel.call(id, request, deadline)
        if isinstance(answer, kind):
            return answer
        assert isinstance(answer, wire.Failed), f"{request} was answered with {answer}"
        raise error_of(answer)
