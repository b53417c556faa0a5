"""One reader's watch: what it has not read yet of some feeds, per key the newest.

**No gap.** A watch reads its names only once it knows from which revision its feeds will deliver, so whatever the read
does not see, the feeds will bring. Changes up to the revision of the read are dropped. When a feed has to start anew,
since etcd has compacted what it was to deliver next, or has lost its data, everything is read again.

**No half commits.** What comes for a watch of several names is kept, change by change, until a barrier has passed (see
feeds.py); then the reader gets what stood at the revision of the barrier. Where a barrier proves nothing yet, the watch
reads its names again.
"""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from rendezvous_async import clock
from rendezvous_async.backends.base import Entry, Listing, Token, Watch, closed_error
from rendezvous_async.backends.etcd.faults import EtcdRefusedError, Fault
from rendezvous_async.backends.etcd.feeds import Feed, Feeds
from rendezvous_async.backends.names import covers
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["EtcdWatch"]

MAX_ARRIVED = 10_000
"""How many changes may wait for a barrier; beyond that everything is listed again."""


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
        self._must_list = True
        self._must_look = False
        self._missed = False
        self._floor = 0
        self._revision = 0
        self._baseline = 0
        self._ready: dict[str, Entry] = {}
        self._arrived: list[Entry] = []
        self._woken = anyio.Event()
        self._error: RendezvousConnectionError | None = None
        self._ended = False
        self._current_at = clock.now()

    def __repr__(self) -> str:
        return f"<EtcdWatch {' '.join(self._names)}>"

    @property
    def current_at(self) -> float:
        return self._current_at

    # What the stream calls

    def wake(self) -> None:
        self._woken.set()

    def feed_started(self) -> None:
        """Wake the reader if all feeds have started: it waits for nothing less."""
        if all(feed.start for feed in self._feeds):
            self.wake()

    def offer(self, entries: list[Entry], revision: int) -> None:
        """Take in what a feed delivers."""
        news = [entry for entry in entries if entry.token.revision > self._floor]
        if not news:
            return
        if len(self._names) == 1:
            self._ready.update((entry.key, entry) for entry in news)
            self._revision = max(self._revision, revision)
            self.wake()
        elif len(self._arrived) + len(news) > MAX_ARRIVED:
            self._look_again()
        else:
            self._arrived.extend(news)
            self._hub.want_barrier(self)

    def confirm(self, revision: int) -> None:
        """Let the reader have what has arrived: a barrier has passed at ``revision``."""
        # Of a feed that may still be catching up only this is known: it delivers in order.
        whole = min((revision, *(feed.start - 1 for feed in self._feeds if not feed.sure())))
        arrived, self._arrived = self._arrived, []
        for entry in arrived:
            if entry.token.revision <= whole:
                self._ready[entry.key] = entry
            else:
                self._arrived.append(entry)
        if any(entry.token.revision <= revision for entry in self._arrived):
            self._look_again()
        elif self._arrived:
            self._hub.want_barrier(self)
        if self._ready:
            self._revision = max(self._revision, whole)
            self.wake()

    def _look_again(self) -> None:
        self._arrived.clear()
        self._must_look = True
        self.wake()

    def proved(self, moment: float) -> None:
        """Note that everything committed before ``moment`` has been offered."""
        if not self._must_list and all(feed.sure() for feed in self._feeds):
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
            if self._must_list or self._must_look:
                if (listing := await self._look()) is not None and not self._ended:
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
        self._floor = self._revision = self._baseline = after.revision if after is not None and resume else 0
        self._feeds = [self._hub.subscribe(self, name, self._floor if resume else None) for name in self._names]

    def _unsubscribe(self) -> None:
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            self._hub.unsubscribe(self, feed)
        self._ready.clear()
        self._arrived.clear()

    async def _look(self) -> Listing | None:
        """Read everything, once every feed is known to bring what comes after; None to look again."""
        if not all(feed.start for feed in self._feeds):
            await self._wait()
            return None
        asked_at = clock.now()
        self._must_look = self._missed = False  # set again by whatever comes during the read
        looked = False
        try:
            if not self._must_list and not await self._learn_baseline():
                self._must_list = True
            listing = await self._hub.history.read(self._names)
            looked = True
        except EtcdRefusedError:
            raise
        except RendezvousConnectionError:
            return None  # a watch waits until the cluster is back
        finally:
            self._must_look |= not looked
        if self._missed:
            return None
        everything, self._must_list, self._baseline = self._must_list, False, 0
        self._current_at = max(self._current_at, asked_at)
        self._floor = self._revision = listing.revision
        late = [*self._ready.values(), *self._arrived]
        self._ready.clear()
        self._arrived.clear()
        late = [entry for entry in late if entry.token.epoch == listing.token.epoch]
        self.offer(late, max((entry.token.revision for entry in late), default=0))
        return listing if everything else self._changes(listing)

    async def _learn_baseline(self) -> bool:
        """Find out what stood at the token that the reader resumed at; False if etcd does not know it any more."""
        if self._baseline:
            try:
                listing = await self._hub.history.read(self._names, self._baseline)
            except EtcdRefusedError as error:
                if error.fault is Fault.REVISION:
                    return False
                raise
            for entry in listing.entries:
                self._known.setdefault(entry.key, entry.token)
            self._baseline = 0
        return True

    def _changes(self, listing: Listing) -> Listing:
        """Return what of a complete listing the reader does not know yet, deletions included."""
        present = {entry.key for entry in listing.entries}
        gone = [Entry(key, None, listing.token) for key in self._known if key not in present]
        new = [entry for entry in listing.entries if self._known.get(entry.key) != entry.token]
        entries = sorted(new + gone, key=lambda entry: entry.key)
        return Listing(tuple(entries), listing.token, complete=False)

    async def _wait(self) -> None:
        self._woken = anyio.Event()
        await self._woken.wait()
