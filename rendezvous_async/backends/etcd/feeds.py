"""The stream of all watches of a driver, with one feed for each watched name.

A feed starts "from now", and etcd says which revision that was; after a lost connection it resumes where it stopped.
Within a feed, etcd delivers whole commits in order; between feeds it guarantees nothing. What several feeds have
delivered is known to be complete once the stream has reported its progress (a barrier). Progress is requested twice:
servers before 3.5.8 may answer before they have sent what was already queued.

**Freshness.** From time to time the driver asks the cluster, through consensus, for its revision. When a barrier has
passed that revision, every watch is as current as the time of that question.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
from aetcd import rpc

from rendezvous_async.aio import clock
from rendezvous_async.backends.driver import closed_error
from rendezvous_async.backends.etcd.channel import ClusterClient
from rendezvous_async.backends.etcd.faults import EtcdFault, EtcdRefusedError
from rendezvous_async.backends.etcd.history import ClusterHistory, key_of
from rendezvous_async.backends.etcd.reads import key_range
from rendezvous_async.backends.etcd.stream import Stream
from rendezvous_async.backends.values import Entry
from rendezvous_async.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from rendezvous_async.backends.etcd.watch import EtcdSubscription

__all__ = ["Feed", "Feeds"]

CHECK_EVERY = 1.0
ASK_AGAIN_AFTER = 0.25
CATCHING_UP = 0.5
"""Seconds until a new feed has caught up on a server before 3.5.8, whose progress ignores feeds that have not."""


class Feed:
    """One name on the stream.

    Attributes:
        start: The next revision to deliver; 0 until etcd has said what "now" is.
        id: Its watch id on the open stream.
        sure_at: The time from which it has caught up, if it is ``created``.
    """

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.id = 0
        self.created = False
        self.sure_at = 0.0
        self.refused = False
        self.watches: dict[EtcdSubscription, None] = {}
        self.parts: list[Any] = []

    def __repr__(self) -> str:
        return f"<Feed {self.name} from {self.start or 'now'}>"

    def sure(self) -> bool:
        """Return whether a barrier proves that this feed has delivered everything."""
        return self.created and self.sure_at <= clock.now()

    def reset(self) -> None:
        """Start again from now: the next revision to deliver no longer exists."""
        self.start = 0
        self.created = False
        self.parts = []


class Feeds(Stream):
    """The stream of all watches of a driver."""

    method = "Watch"

    def __init__(self, cluster: ClusterClient, history: ClusterHistory) -> None:
        super().__init__(cluster)
        self.history = history
        self.watches: dict[EtcdSubscription, None] = {}
        self._check_every = CHECK_EVERY
        self._shared: dict[str, Feed] = {}
        self._feeds: dict[Feed, None] = {}
        self._by_id: dict[int, Feed] = {}
        self._creating: deque[Feed] = deque()
        self._last_id = 0
        self._token: str | None = None
        self._stale_token = False
        self._barrier = _Barrier()
        self._barrier_begun = anyio.Event()
        self._proof: tuple[float, int] | None = None
        self._received_at = 0.0
        history.on_change(self._restart)

    def expect_ttl(self, ttl: float) -> None:
        """Check often enough for a client that gives up a watch without progress for this long."""
        self._check_every = min(self._check_every, ttl / 4)

    def subscribe(self, watch: EtcdSubscription, name: str, after: int | None) -> Feed:
        """Offer the changes under a name to ``watch``, from now on or since ``after``."""
        feed = self._shared.get(name)
        if feed is None or (after is not None and not 0 < feed.start <= after + 1):
            feed = Feed(name, 0 if after is None else after + 1)
            self._shared.setdefault(name, feed)
            self._feeds[feed] = None
            if self.is_open:
                self._create(feed)
            self.want()
        feed.watches[watch] = None
        self.watches[watch] = None
        return feed

    def unsubscribe(self, watch: EtcdSubscription, feed: Feed) -> None:
        """Undo ``subscribe``; end the feed with its last watch."""
        for watches in (self.watches, feed.watches, self._barrier.now, self._barrier.next):
            watches.pop(watch, None)
        if not feed.watches and feed in self._feeds:
            self._forget(feed)
            if self.is_open:
                self.send(rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=feed.id)))

    def close(self) -> None:
        """End every watch: the driver is closed."""
        for watch in tuple(self.watches):
            watch.fail(closed_error("etcd"))

    def want_barrier(self, watch: EtcdSubscription) -> None:
        """Call ``watch.confirm()`` once all feeds have delivered everything up to now."""
        self._barrier.next[watch] = None
        self._begin_barrier()

    # The stream

    async def _prepare(self) -> bool:
        try:
            if self._stale_token:
                await self._cluster.renew(self._token)
                self._stale_token = False
            await self.history.verify()
        except EtcdRefusedError as error:
            for watch in tuple(self.watches):
                watch.fail(error)
            return False
        except RendezvousConnectionError:
            return False
        self._token = self._cluster.token
        return True

    def _opened(self) -> None:
        self._by_id.clear()
        self._creating.clear()
        self._received_at = clock.now()
        for feed in self._feeds:
            self._create(feed)
        self._barrier.phase = 0
        self._begin_barrier()

    def _create(self, feed: Feed) -> None:
        self._last_id += 1
        feed.id = self._last_id
        feed.created = False
        feed.parts = []
        self._by_id[feed.id] = feed
        self._creating.append(feed)
        key, end = key_range(feed.name)
        create = rpc.WatchCreateRequest(
            key=key,
            range_end=end,
            start_revision=feed.start,
            watch_id=feed.id,
            progress_notify=True,
            fragment=True,
        )
        self.send(rpc.WatchRequest(create_request=create))

    def _received(self, response: Any) -> None:
        self._received_at = clock.now()
        feed = self._by_id.get(response.watch_id)
        if response.created and self._creating:
            # Answers come in the order of the requests; a refusal may lack the id.
            feed = self._creating.popleft()
            if feed not in self._feeds:
                return
        if feed is None:
            if response.watch_id == -1 and not response.canceled:
                self._pass_barrier(response.header.revision)
        elif response.canceled:
            self._cancelled(feed, response)
        elif response.created:
            self._created(feed, response.header.revision)
        elif response.events or feed.parts:
            feed.parts.extend(response.events)
            if not response.fragment:
                events, feed.parts = feed.parts, []
                self._deliver(feed, events)
        else:
            feed.start = max(feed.start, response.header.revision + 1)

    def _created(self, feed: Feed, revision: int) -> None:
        feed.created, feed.refused = True, False
        if not self._cluster.orderly_progress:
            feed.sure_at = clock.now() + CATCHING_UP
        if not feed.start:
            feed.start = revision + 1
            for watch in feed.watches:
                watch.feed_started()

    def _deliver(self, feed: Feed, events: list[Any]) -> None:
        entries = [self._entry(event) for event in events]
        revision = max(entry.token.revision for entry in entries)
        feed.start = max(feed.start, revision + 1)
        for watch in feed.watches:
            watch.offer(entries, revision)

    def _entry(self, event: Any) -> Entry:
        if event.type == rpc.Event.DELETE:
            return Entry(key_of(event.kv), None, self.history.token(event.kv.mod_revision))
        return self.history.entry(event.kv)

    def _cancelled(self, feed: Feed, response: Any) -> None:
        self._by_id.pop(feed.id, None)
        if response.compact_revision:
            feed.reset()
            for watch in feed.watches:
                watch.start_over()
            self._create(feed)
        elif "permission denied" in response.cancel_reason or "auth token" in response.cancel_reason:
            if self._cluster.has_user and not feed.refused:
                # Perhaps just an expired token: etcd reports it in the same way.
                feed.refused = self._stale_token = True
                self.reopen("a watch was refused")
                return
            self._forget(feed)
            error = EtcdRefusedError(
                f"etcd at {self.member.address} refused a watch of {feed.name}: {response.cancel_reason}",
                EtcdFault.REFUSED,
                final=True,
            )
            for watch in tuple(feed.watches):
                watch.fail(error)
        else:
            self.reopen(response.cancel_reason or "a watch was cancelled by the server")

    def _forget(self, feed: Feed) -> None:
        self._by_id.pop(feed.id, None)
        self._feeds.pop(feed, None)
        if self._shared.get(feed.name) is feed:
            del self._shared[feed.name]

    def _restart(self) -> None:
        """Start all feeds and watches over in the new history."""
        for feed in self._feeds:
            feed.reset()
        for watch in self.watches:
            watch.start_over()
        self._proof = None
        self.reopen("another history")

    # Barriers and freshness

    def _begin_barrier(self) -> None:
        barrier = self._barrier
        if barrier.phase or not (barrier.now or barrier.next or self._proof) or not self.is_open:
            return
        barrier.now.update(barrier.next)
        barrier.next.clear()
        barrier.phase = 1
        self._ask_progress()

    def _ask_progress(self) -> None:
        self._barrier.asked_at = clock.now()
        self._barrier_begun.set()
        self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def _pass_barrier(self, revision: int) -> None:
        barrier = self._barrier
        if barrier.phase == 1:
            barrier.phase, barrier.revision = 2, revision
            self._ask_progress()
        elif barrier.phase == 2:
            # The second answer proves the revision of the first, not its own.
            barrier.phase = 0
            now, barrier.now = barrier.now, {}
            for watch in now:
                watch.confirm(barrier.revision)
            if self._proof is not None and self._proof[1] <= barrier.revision:
                for watch in self.watches:
                    watch.proved(self._proof[0])
                self._proof = None
            self._begin_barrier()

    async def _watch_over(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._ask_progress_again)
            while True:
                await anyio.sleep(self._check_every)
                if not self.watches:
                    continue
                asked_at = clock.now()
                try:
                    revision = await self.history.verify()
                except RendezvousConnectionError:
                    continue
                self._proof = (asked_at, revision)
                self._begin_barrier()

    async def _ask_progress_again(self) -> None:
        # Servers drop progress requests while a feed catches up. A stream on which nothing arrives is dead.
        while True:
            await self._barrier_begun.wait()
            looked_at = clock.now()
            await anyio.sleep(ASK_AGAIN_AFTER)
            now = clock.now()
            if now - looked_at > 2 * ASK_AGAIN_AFTER:
                self._received_at = max(self._received_at, looked_at)  # The loop was stalled; answers may be unread.
            if not self._barrier.phase:
                self._barrier_begun = anyio.Event()
            elif now - self._received_at > self._cluster.call_timeout:
                self.move_on("a watch stream has gone silent")
            elif now - self._barrier.asked_at >= ASK_AGAIN_AFTER:
                self._ask_progress()


class _Barrier:
    """The pending progress request.

    Attributes:
        phase: 1 or 2 for the first or second request; 0 for none.
        revision: The answer to the first.
        now: The watches that wait for it.
        next: The watches that wait for the next one.
    """

    def __init__(self) -> None:
        self.phase = 0
        self.revision = 0
        self.asked_at = 0.0
        self.now: dict[EtcdSubscription, None] = {}
        self.next: dict[EtcdSubscription, None] = {}
