"""The TCP backend as a client sees it: calls, sessions and watches over a ``Channel``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio.lowlevel import checkpoint_if_cancelled

from rendezvous_async import clock
from rendezvous_async.backends.base import (
    DEFAULT_NAMESPACE,
    Backend,
    Commit,
    Condition,
    Entry,
    Listing,
    Session,
    Token,
    Watch,
    Write,
    closed_error,
)
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.calls import error_of
from rendezvous_async.backends.tcp.channel import Channel
from rendezvous_async.backends.tcp.hosting import Host
from rendezvous_async.clock import Patience
from rendezvous_async.errors import RendezvousSessionError

__all__ = ["TcpBackend"]

MAX_UNREAD = 16_384
"""How many changes a watch gathers for a reader that does not come; then it starts over when the reader does."""

A = TypeVar("A", bound=wire.Answer)


class TcpBackend(Backend):
    """One run's view of a TCP server.

    A call waits until it is answered, also while there is no connection: give it a deadline, by ``patience`` or by a
    cancel scope. It fails by itself only when the server refuses this client for good.

    Args:
        channel: The connection, started.
        host: The server, if this process hosts it or would do so; closed with the backend.
    """

    name = "tcp"
    max_writes = 16_384
    max_bytes = 8 * 1024 * 1024

    def __init__(
        self, channel: Channel, run_id: str, namespace: str = DEFAULT_NAMESPACE, *, host: Host | None = None
    ) -> None:
        super().__init__(run_id, namespace)
        self._channel = channel
        self.host = host

    def __repr__(self) -> str:
        hosting = " hosting" if self.is_hosting else ""
        return f"<TcpBackend tcp://{self._channel.dialer} run={self.run_id!r}{hosting}>"

    @property
    def attempts(self) -> tuple[str, ...]:
        """How the latest attempts to connect ended, one line each; empty while there is a connection."""
        return self._channel.dialer.attempts.lines()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
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

    async def open_session(self, ttl: float) -> Session:
        session, _ = await self._begin(ttl)
        return session

    async def _begin(
        self,
        ttl: float,
        patience: Patience | None = None,
        writes: tuple[Write, ...] = (),
        when: tuple[Condition, ...] = (),
        watch: Watch | None = None,
    ) -> tuple[Session, Commit | None]:
        sent_at = clock.lease_now()
        id = self._channel.next_id()
        names = watch.start_with(id, clock.now()) if isinstance(watch, _TcpWatch) else ()
        try:
            opened = await self._call(id, wire.OpenSession(id, ttl, writes, when, names), wire.Opened, patience)
        except BaseException:
            if names and isinstance(watch, _TcpWatch):
                watch.prepare_again()
            raise
        session = _TcpSession(opened.session, opened.ttl, sent_at, self)
        self._channel.keep_session(session)
        if opened.commit is not None:
            self._channel.saw(opened.commit.token)
        return session, opened.commit

    async def end_session(self, session: str) -> None:
        id = self._channel.next_id()
        await self._call(id, wire.EndSession(id, session), wire.Done)

    async def aclose(self) -> None:
        try:
            await self._channel.aclose()
        finally:
            if self.host is not None:
                await self.host.aclose()

    async def _get(self, key: str) -> Entry | None:
        id = self._channel.next_id()
        found = await self._call(id, wire.Get(id, key), wire.Found)
        if found.entry is not None:
            self._channel.saw(found.entry.token)
        return found.entry

    async def _list(self, name: str) -> Listing:
        id = self._channel.next_id()
        listed = await self._call(id, wire.List(id, name), wire.Listed)
        self._channel.saw(listed.listing.token)
        return listed.listing

    async def _commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], patience: Patience | None = None
    ) -> Commit:
        channel = self._channel
        id = channel.next_id()
        number, settled = channel.commits.begin()
        try:
            request = wire.Transact(id, number, settled, writes, when)
            committed = await self._call(id, request, wire.Committed, patience)
        finally:
            channel.commits.end(number)
        channel.saw(committed.commit.token)
        return committed.commit

    async def _commit_within(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], patience: Patience
    ) -> Commit:
        return await self._commit(writes, when, patience)

    def _watch(self, names: tuple[str, ...], after: Token | None) -> Watch:
        watch = _TcpWatch(self._channel, names, after)
        watch.start()
        return watch

    def _prepare_watch(self, names: tuple[str, ...]) -> Watch:
        return _TcpWatch(self._channel, names, None)

    async def _call(self, id: int, request: wire.Request, kind: type[A], patience: Patience | None = None) -> A:
        answer = await self._channel.call(id, request, patience)
        if isinstance(answer, kind):
            return answer
        assert isinstance(answer, wire.Failed), f"{request} was answered with {answer}"
        raise error_of(answer)


class _TcpSession(Session):
    def __init__(self, id: str, ttl: float, sent_at: float, backend: TcpBackend) -> None:
        super().__init__(id, ttl, sent_at)
        self._backend = backend

    async def _refresh(self, patience: Patience | None = None) -> None:
        channel = self._backend._channel
        id = channel.next_id()
        try:
            await self._backend._call(id, wire.KeepAlive(id, self.id), wire.Done, patience)
        except RendezvousSessionError:
            channel.drop_session(self)
            self.lost.set()
            raise

    async def _refresh_within(self, patience: Patience) -> None:
        await self._refresh(patience)

    async def aclose(self) -> None:
        self._backend._channel.drop_session(self)
        await self._backend.end_session(self.id)


class _TcpWatch(Watch):
    """Gathers what is pushed until the reader comes: of each key the newest entry.

    It is prepared before it is started, and parked if its reader does not come for long; a read ends both.
    """

    def __init__(self, channel: Channel, names: tuple[str, ...], after: Token | None) -> None:
        super().__init__(after)
        self._channel = channel
        self._names = names
        self._received = after
        self._news: dict[str, Entry] | None = None
        self._news_token: Token | None = None
        self._news_complete = False
        self._unread = 0
        self._prepared = True
        self._parked = False
        self._is_current = False
        self._current_at = clock.now()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._take: Callable[[Listing], None] | None = None
        self._fail: Callable[[Exception], None] | None = None

    @property
    def current_at(self) -> float:
        if self._is_current:
            self._current_at = max(self._current_at, self._channel.current_at)
        return self._current_at

    def deliver(self, take: Callable[[Listing], None], fail: Callable[[Exception], None]) -> bool:
        self._take, self._fail = take, fail
        if self._news is not None:
            self._hand_over(self._take_news(), take)
        if self._error is not None:
            error, self._error = self._error, None
            fail(error)
        if self._parked:
            self.start()
        return True

    async def _next(self) -> Listing:
        await checkpoint_if_cancelled()
        while True:
            if self._ended:
                raise StopAsyncIteration
            if self._channel.closed:
                raise closed_error("tcp")
            if self._news is not None:
                return self._take_news()
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._parked or self._prepared:
                self.start()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def aclose(self) -> None:
        self._ended = True
        self._take = self._fail = None
        self._channel.unfollow(self)
        self.wake()

    def _take_news(self) -> Listing:
        news, token = self._news, self._news_token
        assert news is not None
        assert token is not None
        entries = tuple(news[key] for key in sorted(news))
        self._news = None
        self._unread = 0
        return Listing(entries, token, self._news_complete)

    def _hand_over(self, listing: Listing, take: Callable[[Listing], None]) -> None:
        settled = self._settle(listing)
        if settled is not None:
            take(settled)

    def start(self) -> None:
        """Ask for news, from where the reader stands."""
        self._prepared = self._parked = False
        self._channel.follow(self)

    def start_with(self, id: int, sent_at: float) -> tuple[str, ...]:
        """Let it be started by the request with this id, which is sent now; returns the names, none if it has been."""
        if not self._prepared or self._ended:
            return ()
        self._prepared = False
        self._channel.follow_with(id, self, sent_at)
        return self._names

    def prepare_again(self) -> None:
        """Undo ``start_with``: nobody waits for the answer that its first listing would come with."""
        self._prepared = True
        self._channel.unfollow(self)

    # What the channel calls.

    def follow_request(self, id: int) -> wire.Follow:
        return wire.Follow(id, self._names, self._received)

    def receive(self, listing: Listing | None, at: float | None) -> None:
        if at is not None:
            self._is_current = True
            self._current_at = max(self._current_at, at)
        if listing is None:
            return
        self._received = listing.token
        self._channel.saw(listing.token)
        if self._take is not None:
            self._hand_over(listing, self._take)
            return
        self._gather(listing)
        if self._unread > MAX_UNREAD:
            self._park()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception, *, ended: bool) -> None:
        if self._fail is not None:
            self._fail(error)
            return
        self._error = error
        self._parked = self._parked or ended
        self.wake()

    def wake(self) -> None:
        self._is_current = self._is_current and self._channel.link is not None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _gather(self, listing: Listing) -> None:
        if listing.complete or self._news is None:
            self._news = {entry.key: entry for entry in listing.entries}
            self._news_complete = listing.complete
        else:
            self._unread += len(listing.entries)
            for entry in listing.entries:
                if entry.value is None and self._news_complete:
                    self._news.pop(entry.key, None)  # a complete listing tells of deletions by what it leaves out
                else:
                    self._news[entry.key] = entry
        self._news_token = listing.token

    def _park(self) -> None:
        """Forget what was gathered; when the reader comes, ask again from where it stands."""
        self._news = None
        self._unread = 0
        self._parked = True
        self._is_current = False
        self._received = self._position
        self._channel.unfollow(self)
