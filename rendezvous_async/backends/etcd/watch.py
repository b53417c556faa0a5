"""One watch: gathers the changes of some feeds and pushes the newest entry of each key.

**No gaps.** A watch reads its names only when it knows from which revision its feeds will deliver, so the feeds deliver
whatever the read does not see. Changes up to the revision of the read are dropped. If a feed has to restart, because
etcd has compacted the next revision or lost its data, everything is read again.

**No partial commits.** A watch of several names keeps the changes until a barrier has passed (see feeds.py); then the
sink gets the state as of the revision of the barrier. If the barrier proves nothing yet, the watch reads its names
again.
"""

from __future__ import annotations

import anyio

from rendezvous_async.aio import clock
from rendezvous_async.backends.driver import Sink
from rendezvous_async.backends.etcd.faults import EtcdFault, EtcdRefusedError
from rendezvous_async.backends.etcd.feeds import Feed, Feeds
from rendezvous_async.backends.names import widest
from rendezvous_async.backends.values import Entry, Listing, Token
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["EtcdSubscription"]

MAX_ARRIVED = 10_000
"""Changes that may wait for a barrier; beyond that everything is read again."""


class EtcdSubscription:
    """One watch on some feeds.

    Args:
        feeds: The stream of all watches.
        names: The watched names.
        after: Where to start.
        sink: Receives the listings.
    """

    def __init__(self, feeds: Feeds, names: tuple[str, ...], after: Token | None, sink: Sink) -> None:
        # Without names that another one covers, each key arrives on one feed, in order.
        self._names = widest(tuple(dict.fromkeys(names)))
        self._stream = feeds
        self._sink = sink
        self._is_resumed = after is not None and after.epoch == feeds.history.epoch
        self._position = after if self._is_resumed else None
        self._must_list = not self._is_resumed
        self._must_look = False
        self._missed = False
        self._floor = self._revision = 0 if self._position is None else self._position.revision
        self._ready: dict[str, Entry] = {}
        self._arrived: list[Entry] = []
        self._woken = anyio.Event()
        self._ended = False
        self._scope = anyio.CancelScope()
        self._current_at = clock.now()
        self._feeds: list[Feed] = []
        self._feeds += [feeds.subscribe(self, name, self._floor if self._is_resumed else None) for name in self._names]

    def __repr__(self) -> str:
        return f"<EtcdSubscription {' '.join(self._names)}>"

    @property
    def current_at(self) -> float:
        return self._current_at

    # Called by the stream

    def wake(self) -> None:
        self._woken.set()

    def feed_started(self) -> None:
        """Wake the watch once all of its feeds have started."""
        if all(feed.start for feed in self._feeds):
            self.wake()

    def offer(self, entries: list[Entry], revision: int) -> None:
        """Take the changes that a feed delivers."""
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
            self._stream.want_barrier(self)

    def confirm(self, revision: int) -> None:
        """Release the changes that arrived before the barrier at ``revision``."""
        # A feed that may still be catching up is complete only up to its start: it delivers in order.
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
            self._stream.want_barrier(self)
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
        """Read everything again: changes were missed."""
        self._must_list = self._missed = True
        self._floor = 0  # The history may be a new one.
        self.wake()

    def fail(self, error: Exception) -> None:
        """End the watch with an error."""
        if not self._ended:
            self.close()
            self._sink.fail(error)

    # Called by the driver

    async def run(self) -> None:
        """Push until closed."""
        with self._scope:
            try:
                while True:
                    if self._must_list or self._must_look:
                        await self._look()
                    elif self._ready:
                        entries = tuple([self._ready[key] for key in sorted(self._ready)])
                        self._ready.clear()
                        self._push(Listing(entries, self._stream.history.token(self._revision), complete=False))
                    else:
                        await self._wait()
            except Exception as error:
                self.fail(error)

    def close(self) -> None:
        self._ended = True
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            self._stream.unsubscribe(self, feed)
        self._scope.cancel()

    def _push(self, listing: Listing) -> None:
        self._position = listing.token
        self._sink.take(listing)

    async def _look(self) -> None:
        """Read and push everything, once every feed has started."""
        if not all(feed.start for feed in self._feeds):
            await self._wait()
            return
        asked_at = clock.now()
        self._must_look = self._missed = False  # Set again if something happens during the read.
        looked = False
        past: Listing | None = None
        try:
            if not self._must_list and self._is_resumed:
                past = await self._read_past()
            listing = await self._stream.history.read(self._names)
            looked = True
        except EtcdRefusedError:
            raise
        except RendezvousConnectionError:
            return  # Retried until the cluster is back.
        finally:
            self._must_look |= not looked
        if self._missed:
            return
        self._must_list = False
        self._current_at = max(self._current_at, asked_at)
        self._floor = self._revision = listing.revision
        late = [*self._ready.values(), *self._arrived]
        self._ready.clear()
        self._arrived.clear()
        late = [entry for entry in late if entry.token.epoch == listing.token.epoch]
        self.offer(late, max((entry.token.revision for entry in late), default=0))
        self._is_resumed = past is not None
        self._push(listing if past is None else _difference(past, listing))

    async def _read_past(self) -> Listing | None:
        """Return the entries as of the last push; None if etcd no longer has that revision.

        They show which keys have been deleted since: a resumed watch has not listed them.
        """
        assert self._position is not None
        try:
            return await self._stream.history.read(self._names, self._position.revision)
        except EtcdRefusedError as error:
            if error.fault is EtcdFault.REVISION:
                return None
            raise

    async def _wait(self) -> None:
        self._woken = anyio.Event()
        await self._woken.wait()


def _difference(before: Listing, after: Listing) -> Listing:
    """Return what has changed between two complete listings of one history."""
    present = {entry.key for entry in after.entries}
    entries = [Entry(entry.key, None, after.token) for entry in before.entries if entry.key not in present]
    entries += [entry for entry in after.entries if entry.token.revision > before.revision]
    entries.sort(key=lambda entry: entry.key)
    return Listing(tuple(entries), after.token, complete=False)
