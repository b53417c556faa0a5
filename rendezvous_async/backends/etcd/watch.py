"""One reader's watch: what it has not read yet of some feeds, per key the newest.

**No gap.** A watch reads its names only once it knows from which revision its feeds will deliver, so whatever the read
does not see, the feeds will bring. Changes up to the revision of the read are dropped. When a feed has to start anew,
since etcd has compacted what it was to deliver next, or has lost its data, everything is read again.

**No half commits.** What comes for a watch of several names is held until a barrier (see feeds.py) has passed.
"""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from rendezvous_async.backends.base import Entry, Listing, Token, Watch, closed_error, covers
from rendezvous_async.backends.etcd.faults import EtcdRefusedError
from rendezvous_async.backends.etcd.feeds import Feed, Feeds
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["EtcdWatch"]


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
            listing = await self._hub.history.read(self._names)
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
