"""Watches: one stream for all of a backend, one subscription on it for each name, however many watch that name.

**No gap.** A feed (a subscription) is started "from now" and etcd says which revision that was; only then does a watch
read the names, so whatever the read does not see, the feed will bring. Changes up to the revision of the read are
dropped, and a broken stream resumes every feed where it stood.

**No half commits.** Within one feed etcd delivers in order and whole commits; between feeds it promises nothing. So
what comes for a watch of several names is held until all feeds have caught up: the stream is asked for its progress (a
barrier). It is asked twice, because servers before 3.5.8 may answer before they have sent what was already queued.

**How current.** Now and then the cluster is asked, through consensus, for its revision; when a barrier has passed that
revision, every watch is known to be as current as the moment of asking.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import anyio
from aetcd import rpc
from anyio.lowlevel import checkpoint

from rendezvous_async.backends.base import Entry, Listing, Token, Watch, closed_error, covers
from rendezvous_async.backends.etcd.channel import Cluster
from rendezvous_async.backends.etcd.faults import EtcdRefusedError, Fault
from rendezvous_async.backends.etcd.history import History, get_op, key_range
from rendezvous_async.backends.etcd.stream import Stream
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["EtcdWatch", "Feeds"]

CHECK_EVERY = 1.0
ASK_AGAIN_AFTER = 0.25
CATCHING_UP = 0.25
"""Seconds in which a server before 3.5.8, whose progress does not count feeds that catch up, lets them catch up."""
MAX_OPERATIONS = 120


class Feed:
    """One name on the stream.

    Attributes:
        start: The next revision that it will deliver; 0 until etcd has said what "now" is.
        id: Names it on the stream that is open.
    """

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.id = 0
        self.created = False
        self.refused = False
        self.watches: dict[EtcdWatch, None] = {}
        self.parts: list[Any] = []

    def __repr__(self) -> str:
        return f"<Feed {self.name} from {self.start or 'now'}>"

    def reset(self) -> None:
        """Start again from now: what it was to deliver next does not exist any more."""
        self.start = 0
        self.created = False
        self.parts = []


class Feeds(Stream):
    """The stream of all watches of a backend."""

    method = "Watch"

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster)
        self.history = history
        self.closed = False
        self.watches: dict[EtcdWatch, None] = {}
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
        self._heard_at = 0.0
        history.on_change(self._restart)

    def expect_ttl(self, ttl: float) -> None:
        """Check often enough for somebody who gives up a watch that shows no progress for this long."""
        self._check_every = min(self._check_every, ttl / 4)

    def subscribe(self, watch: EtcdWatch, name: str, after: int | None) -> Feed:
        """Have what changes under a name offered to ``watch``, from now on or since ``after``."""
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

    def unsubscribe(self, watch: EtcdWatch, feed: Feed) -> None:
        """Undo ``subscribe``; the last one out ends the feed."""
        self.watches.pop(watch, None)
        feed.watches.pop(watch, None)
        if not feed.watches and feed in self._feeds:
            self._forget(feed)
            if self.is_open:
                self.send(rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=feed.id)))

    def close(self) -> None:
        """Wake every watch, so that it finds out that the backend is closed."""
        self.closed = True
        for watch in tuple(self.watches):
            watch.wake()

    def want_barrier(self, watch: EtcdWatch) -> None:
        """Have ``watch.confirm()`` called when all feeds have delivered what they have now."""
        wait = watch.hold_until - anyio.current_time()
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self.want_barrier, watch)
        else:
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
        self._heard_at = anyio.current_time()
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
        self._heard_at = anyio.current_time()
        feed = self._by_id.get(response.watch_id)
        if response.created and self._creating:
            # Answered in the order of the requests; one that is refused may come back without its id.
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
        if not feed.start:
            feed.start = revision + 1
            for watch in feed.watches:
                watch.wake()
        elif feed.start <= revision and not self._cluster.orderly_progress:
            for watch in feed.watches:
                watch.hold_until = anyio.current_time() + CATCHING_UP

    def _deliver(self, feed: Feed, events: list[Any]) -> None:
        entries = [self._entry(event) for event in events]
        revision = max(entry.token.revision for entry in entries)
        feed.start = max(feed.start, revision + 1)
        for watch in feed.watches:
            watch.offer(entries, revision)

    def _entry(self, event: Any) -> Entry:
        if event.type == rpc.Event.DELETE:
            return Entry(event.kv.key.decode(), None, self.history.token(event.kv.mod_revision))
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
                # It may be no more than a token that has expired, which etcd calls the same.
                feed.refused = self._stale_token = True
                self.reopen("a watch was refused")
                return
            self._forget(feed)
            error = EtcdRefusedError(
                f"etcd at {self._cluster.member.address} refused a watch of {feed.name}: {response.cancel_reason}",
                Fault.REFUSED,
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
        """Start everything over, in another history."""
        for feed in self._feeds:
            feed.reset()
        for watch in self.watches:
            watch.start_over()
        self._proof = None
        self.reopen("another history")

    # Barriers and how current we are

    def _begin_barrier(self) -> None:
        barrier = self._barrier
        if barrier.phase or not (barrier.now or barrier.next or self._proof) or not self.is_open:
            return
        barrier.now.update(barrier.next)
        barrier.next.clear()
        for watch in barrier.now:
            watch.hold()
        barrier.phase = 1
        self._ask_progress()

    def _ask_progress(self) -> None:
        self._barrier.asked_at = anyio.current_time()
        self._barrier_begun.set()
        self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def _pass_barrier(self, revision: int) -> None:
        barrier = self._barrier
        if barrier.phase == 1:
            barrier.phase = 2
            self._ask_progress()
        elif barrier.phase == 2:
            barrier.phase = 0
            now, barrier.now = barrier.now, {}
            for watch in now:
                watch.confirm(revision)
            if self._proof is not None and self._proof[1] <= revision:
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
                asked_at = anyio.current_time()
                try:
                    revision = await self.history.verify()
                except RendezvousConnectionError:
                    continue
                self._proof = (asked_at, revision)
                self._begin_barrier()

    async def _ask_progress_again(self) -> None:
        # Servers drop the question while a feed catches up; a stream on which nothing comes at all is dead.
        while True:
            await self._barrier_begun.wait()
            await anyio.sleep(ASK_AGAIN_AFTER)
            now = anyio.current_time()
            if not self._barrier.phase:
                self._barrier_begun = anyio.Event()
            elif now - self._heard_at > self._cluster.call_timeout:
                self._cluster.leave(self._cluster.member, "a watch stream has gone silent")
                self.reopen("silence")
            elif now - self._barrier.asked_at >= ASK_AGAIN_AFTER:
                self._ask_progress()


class _Barrier:
    """The question for progress that is out: ``phase`` 0 for none, and who waits for it and for the next one."""

    def __init__(self) -> None:
        self.phase = 0
        self.asked_at = 0.0
        self.now: dict[EtcdWatch, None] = {}
        self.next: dict[EtcdWatch, None] = {}


class EtcdWatch(Watch):
    """One reader's view of some feeds: per key the newest entry that it has not read yet."""

    def __init__(self, feeds: Feeds, names: tuple[str, ...], after: Token | None) -> None:
        super().__init__(after)
        # Names that another one covers are left out, so that each key comes over one feed, in order.
        distinct = tuple(dict.fromkeys(names))
        self._names = tuple(
            name for name in distinct if not any(covers(other, name) and other != name for other in distinct)
        )
        self._hub = feeds
        self._feeds: list[Feed] = []
        self._after = after
        self.hold_until = 0.0
        self._must_list = True
        self._missed = False
        self._floor = 0
        self._revision = 0
        self._ready: dict[str, Entry] = {}
        self._held: dict[str, Entry] = {}
        self._arrived: dict[str, Entry] = {}
        self._woken = anyio.Event()
        self._error: RendezvousConnectionError | None = None
        self._ended = False
        self._current_at = anyio.current_time()

    def __repr__(self) -> str:
        return f"<EtcdWatch {' '.join(self._names)}>"

    @property
    def current_at(self) -> float:
        return self._current_at

    # What the stream calls

    def wake(self) -> None:
        self._woken.set()

    def offer(self, entries: list[Entry], revision: int) -> None:
        """Take in what a feed delivers."""
        single = len(self._names) == 1
        target = self._ready if single else self._arrived
        news = [entry for entry in entries if entry.token.revision > self._floor]
        target.update((entry.key, entry) for entry in news)
        if news and single:
            self._revision = max(self._revision, revision)
            self.wake()
        elif news:
            self._hub.want_barrier(self)

    def hold(self) -> None:
        """Remember what has arrived up to now: a barrier begins."""
        self._held.update(self._arrived)
        self._arrived.clear()

    def confirm(self, revision: int) -> None:
        """Let the reader have what has arrived: all feeds have delivered everything up to ``revision``."""
        self._ready.update(self._held)
        self._held.clear()
        for key, entry in list(self._arrived.items()):
            if entry.token.revision <= revision:
                self._ready[key] = self._arrived.pop(key)
        if self._arrived:
            self._hub.want_barrier(self)
        if self._ready:
            newest = max(entry.token.revision for entry in self._ready.values())
            self._revision = max(self._revision, revision, newest)
            self.wake()

    def proved(self, moment: float) -> None:
        """Note that everything committed before ``moment`` has been offered."""
        if not self._must_list and all(feed.created for feed in self._feeds):
            self._current_at = max(self._current_at, moment)

    def start_over(self) -> None:
        """Have everything listed again: changes were missed."""
        self._must_list = self._missed = True
        self._floor = 0  # of a history that may be over
        self.wake()

    def fail(self, error: RendezvousConnectionError) -> None:
        self._error = error
        self.wake()

    # What the reader calls

    async def _next(self) -> Listing:
        await checkpoint()
        while True:
            if self._ended:
                raise StopAsyncIteration
            if self._hub.closed:
                raise closed_error("etcd")
            if self._error is not None:
                error, self._error = self._error, None
                self._unsubscribe()
                raise error
            if not self._feeds:
                self._subscribe()
            if self._must_list:
                if (listing := await self._list()) is not None:
                    return listing
            elif self._ready:
                entries = tuple(self._ready[key] for key in sorted(self._ready))
                self._ready.clear()
                return Listing(entries, self._hub.history.token(self._revision), complete=False)
            else:
                await self._wait()

    async def aclose(self) -> None:
        self._ended = True
        self._unsubscribe()
        self.wake()

    def _subscribe(self) -> None:
        after, self._after = self._after, None
        resume = after is not None and after.epoch == self._hub.history.epoch
        self._must_list = not resume
        self._floor = self._revision = after.revision if after is not None and resume else 0
        self._feeds = [self._hub.subscribe(self, name, self._floor if resume else None) for name in self._names]

    def _unsubscribe(self) -> None:
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            self._hub.unsubscribe(self, feed)
        for entries in (self._ready, self._held, self._arrived):
            entries.clear()

    async def _list(self) -> Listing | None:
        """Read everything, once every feed is known to bring what comes after; None to look again."""
        if not all(feed.start for feed in self._feeds):
            await self._wait()
            return None
        asked_at, self._missed = anyio.current_time(), False
        try:
            listing = await read_names(self._hub.history, self._names)
        except EtcdRefusedError:
            raise
        except RendezvousConnectionError:
            return None  # a watch waits until the cluster is back
        if self._missed:
            return None
        self._must_list = False
        self._current_at = max(self._current_at, asked_at)
        self._floor = listing.revision
        self._revision = listing.revision
        newer = {
            key: entry
            for entries in (self._ready, self._held, self._arrived)
            for key, entry in entries.items()
            if entry.token.revision > self._floor and entry.token.epoch == listing.token.epoch
        }
        for entries in (self._ready, self._held, self._arrived):
            entries.clear()
        if newer:
            self.offer(list(newer.values()), max(entry.token.revision for entry in newer.values()))
        return listing

    async def _wait(self) -> None:
        self._woken = anyio.Event()
        await self._woken.wait()


async def read_names(history: History, names: tuple[str, ...]) -> Listing:
    """Read some names as of one revision."""
    entries: list[Entry] = []
    response = await history.read([get_op(name) for name in names[:MAX_OPERATIONS]])
    epoch, revision = history.epoch, response.header.revision
    for start in range(0, len(names), MAX_OPERATIONS):
        if start:
            response = await history.read([get_op(name, revision) for name in names[start : start + MAX_OPERATIONS]])
        entries.extend(history.entry(pair) for read in response.responses for pair in read.response_range.kvs)
    entries.sort(key=lambda entry: entry.key)
    return Listing(tuple(entries), Token(epoch, revision))
