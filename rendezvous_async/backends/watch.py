"""Watches as users see them, made from the stale, repeated or complete listings that a driver pushes.

``News`` keeps only what is new. A ``Following`` pushes it to the user's sink at once. A ``Watch`` gathers it for its
reader: the newest entry of each key, at most ``MAX_UNREAD`` changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeAlias

from anyio.lowlevel import checkpoint_if_cancelled

from rendezvous_async.aio import clock
from rendezvous_async.backends.driver import Sink, Subscription
from rendezvous_async.backends.names import covers
from rendezvous_async.backends.values import Entry, Listing, Token

__all__ = ["Following", "News", "Watch"]

MAX_UNREAD = 16_384
"""Changes that a watch gathers for a slow reader; beyond that it starts over at the next read."""

Subscribe: TypeAlias = Callable[[Token | None, Sink], Subscription]
"""Starts a driver's watch, from a token on."""


class News:
    """Drops what was already delivered, and adds the deletions that a complete listing implies.

    Args:
        prefix: Taken off all keys.
        after: Everything up to this token is known; None if nothing is.

    Attributes:
        position: Everything up to this token is known.
    """

    __slots__ = ("_known", "_prefix", "position")

    def __init__(self, prefix: str = "", after: Token | None = None) -> None:
        self.position = after
        self._prefix = prefix
        self._known: dict[str, Token] = {}

    def settle(self, listing: Listing) -> Listing | None:
        """Return the part of a listing to deliver, or None if it has nothing new."""
        position, epoch, known = self.position, listing.token.epoch, self._known
        if position is not None and position.epoch == epoch and listing.token.revision < position.revision:
            return None  # Stale: already delivered, or superseded.
        if self._prefix:
            listing = listing.relative_to(self._prefix)
        entries = [entry for entry in listing.entries if entry.token.is_news_to(known.get(entry.key))]
        complete = listing.complete and len(entries) == len(listing.entries)
        if listing.complete and known:
            present = {entry.key for entry in listing.entries}
            entries.extend(
                Entry(key, None, listing.token)
                for key, token in known.items()
                if key not in present and listing.token.is_news_to(token)
            )
            entries.sort(key=lambda entry: entry.key)
        for entry in entries:
            if entry.value is None:
                known.pop(entry.key, None)
            else:
                known[entry.key] = entry.token
        self.position = listing.token
        if not entries and position is not None and not (listing.complete and position.epoch != epoch):
            return None
        return Listing(tuple(entries), listing.token, complete)

    def learn(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Note entries that were seen elsewhere, and return those that are new.

        They are not delivered again, but their deletion is. An unknown entry older than the position has since been
        deleted.
        """
        known = self._known
        news = [entry for entry in entries if entry.token.is_news_to(known.get(entry.key, self.position))]
        known.update((entry.key, entry.token) for entry in news)
        return tuple(news)


class Following:
    """A watch that pushes what is new to a sink.

    Args:
        names: The watched names, without the prefix.
        prefix: Taken off all keys.
        sink: Receives the listings.
    """

    def __init__(self, names: tuple[str, ...], prefix: str, sink: Sink) -> None:
        self._names = names
        self._sink: Sink | None = sink
        self._news = News(prefix)
        self._subscription: Subscription | None = None
        self._current_at = clock.now()

    def __repr__(self) -> str:
        return f"<Following {' '.join(self._names)}{'' if self._sink is not None else ' closed'}>"

    @property
    def current_at(self) -> float:
        """A time on this process's clock: every commit before it has been pushed. It never decreases."""
        if self._subscription is not None:
            self._current_at = max(self._current_at, self._subscription.current_at)
        return self._current_at

    def learn(self, entries: Iterable[Entry]) -> None:
        """Push the watched and new entries known from a commit's answer, ahead of the driver's push."""
        names = self._names
        watched = [entry for entry in entries if any(not name or covers(name, entry.key) for name in names)]
        news = self._news.learn(watched)
        if news and self._sink is not None:
            newest = max([entry.token for entry in news], key=lambda token: token.revision)
            self._sink.take(Listing(news, newest, complete=False))

    def close(self) -> None:
        """Push nothing more. May be called twice."""
        self._current_at = self.current_at
        self._sink = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    # Called by the backend and the driver.

    def keep(self, subscription: Subscription) -> None:
        """Take over the driver's subscription, and close it in the end."""
        if self._sink is None:
            subscription.close()
        else:
            self._subscription = subscription

    def take(self, listing: Listing) -> None:
        """Push what is new in a listing."""
        if self._sink is not None and (news := self._news.settle(listing)) is not None:
            self._sink.take(news)

    def fail(self, error: Exception) -> None:
        """End the watch with an error."""
        sink = self._sink
        self.close()
        if sink is not None:
            sink.fail(error)


class Watch(AsyncIterator[Listing]):
    """An async iterator over the entries under some names: first what is there, then what changes.

    Without ``after``, the first listing is complete (and possibly empty). With it, the first listing has what changed
    after that token, or is complete if the token is of another epoch or too old. A slow reader gets the newest values,
    not a queue. If the backend has to start over, keys that vanished in between are delivered as deletions.

    The driver pushes from the first read on. After an error, or too many unread changes, it stops; the next read
    resumes from the reader's position.
    """

    def __init__(self, subscribe: Subscribe, prefix: str, after: Token | None = None) -> None:
        self._subscribe = subscribe
        self._news = News(prefix, after)
        self._subscription: Subscription | None = None
        self._gathered: dict[str, Entry] | None = None
        self._as_of: Token
        self._is_complete = False
        self._unread = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._current_at = clock.now()

    @property
    def current_at(self) -> float:
        """A time on this process's clock: every commit before it has been offered to this watch.

        It never decreases. If it stops advancing, the reader's view is out of date.
        """
        if self._subscription is not None:
            self._current_at = max(self._current_at, self._subscription.current_at)
        return self._current_at

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Listing:
        await checkpoint_if_cancelled()
        while not self._ended:
            if self._gathered is not None:
                listing = self._news.settle(self._take_gathered())
                if listing is not None:
                    return listing
            elif self._error is not None:
                error, self._error = self._error, None
                raise error
            elif self._subscription is None:
                self._follow()
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        raise StopAsyncIteration

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop watching; a pending read ends with StopAsyncIteration."""
        self._ended = True
        self._stop()
        self._wake()

    # Called by the driver.

    def take(self, listing: Listing) -> None:
        """Gather a listing for the reader; stop following if too much is unread."""
        if self._ended or (self._gathered is not None and self._is_stale(listing.token)):
            return
        if listing.complete or self._gathered is None:
            self._gathered = {entry.key: entry for entry in listing.entries}
            self._is_complete = listing.complete
        else:
            self._unread += len(listing.entries)
            for entry in listing.entries:
                if entry.value is None and self._is_complete:
                    self._gathered.pop(entry.key, None)  # A complete listing shows deletions by omission.
                else:
                    self._gathered[entry.key] = entry
        self._as_of = listing.token
        if self._unread > MAX_UNREAD:
            self._stop()
        self._wake()

    def fail(self, error: Exception) -> None:
        """Raise an error from the next read; the read after that follows again."""
        if not self._ended:
            self._stop()
            self._error = error
            self._wake()

    def _is_stale(self, token: Token) -> bool:
        return token.epoch == self._as_of.epoch and token.revision < self._as_of.revision

    def _follow(self) -> None:
        """Start the driver's watch at the reader's position."""
        subscription = self._subscribe(self._news.position, self)
        if self._error is None:
            self._subscription = subscription
        else:
            subscription.close()

    def _stop(self) -> None:
        """Stop the driver's watch and drop what was gathered; the next read gets it again."""
        self._current_at = self.current_at
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        self._gathered = None
        self._unread = 0

    def _take_gathered(self) -> Listing:
        gathered = self._gathered
        assert gathered is not None
        self._gathered = None
        self._unread = 0
        return Listing(tuple([gathered[key] for key in sorted(gathered)]), self._as_of, self._is_complete)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
