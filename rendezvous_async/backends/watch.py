"""A watch as its reader holds it: it turns what a backend sends, stale, repeated or complete, into what is news."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

from rendezvous_async import clock
from rendezvous_async.backends.values import Entry, Listing, Token

__all__ = ["Watch"]


class Watch(ABC, AsyncIterator[Listing]):
    """Delivers what stands under some names, then what changes, for as long as somebody reads.

    Without ``after``, the first listing is complete (and possibly empty). With it, only what changed after that token;
    if the backend no longer knows (another epoch, or too long ago), a complete listing. A slow reader gets the newest
    values, not a queue. When the backend must start over, keys that vanished meanwhile are delivered as deletions.

    Attributes:
        prefix: What is taken off the keys that are delivered.
        current_at: By this process's clock, a moment for which it is known that everything committed before it has
            been offered to this watch. A reader that sees it stand still for long no longer knows what goes on.
    """

    prefix = ""

    def __init__(self, after: Token | None = None) -> None:
        self._position = after
        self._known: dict[str, Token] = {}

    @property
    def current_at(self) -> float:
        return clock.now()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Listing:
        while True:
            listing = self._settle(await self._next())
            if listing is not None:
                return listing

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def deliver(self, take: Callable[[Listing], None], fail: Callable[[Exception], None]) -> bool:
        """Have each listing given to ``take`` as it comes, and an error to ``fail``, instead of being read.

        Either may be called before this returns, and in the middle of the backend's work: neither may raise. Nothing
        comes after ``fail``.

        Returns:
            False if this backend cannot: then the watch must be read.
        """
        return False

    def learn(self, entry: Entry) -> None:
        """Take it that the reader knows this entry from elsewhere: it is not delivered again, but its deletion is."""
        key = self.prefix + entry.key
        if entry.token.is_news_to(self._known.get(key)):
            self._known[key] = entry.token

    @abstractmethod
    async def _next(self) -> Listing:
        """Return the next listing as it comes, possibly stale, repeated or complete; ``_settle`` makes it fit.

        Raises StopAsyncIteration after ``aclose()``. Must be safe to cancel without losing anything.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop watching; a pending read ends with StopAsyncIteration."""

    def _settle(self, listing: Listing) -> Listing | None:
        """Drop what was delivered already, add deletions that a fresh start hides, and remember what is known.

        Returns:
            What to deliver, with ``prefix`` taken off the keys; None if there is nothing new.
        """
        position, epoch, known = self._position, listing.token.epoch, self._known
        if position is not None and position.epoch == epoch and listing.token.revision < position.revision:
            return None  # stale: whatever it says has been delivered, or overtaken
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
        self._position = listing.token
        if not entries and position is not None and not (listing.complete and position.epoch != epoch):
            return None
        prefix = self.prefix
        return Listing(tuple([entry.relative_to(prefix) for entry in entries]), listing.token, complete)
