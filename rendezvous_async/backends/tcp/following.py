"""The watches of a client: which of its requests each goes by, on the connection that there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rendezvous_async.backends.base import Listing
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.calls import error_of

__all__ = ["Follower", "Followers"]


class Follower(Protocol):
    """A watch, as the channel sees it."""

    def follow_request(self, id: int) -> wire.Follow:
        """Return the request that starts the watch, or goes on with it on a new connection."""

    def receive(self, listing: Listing | None, at: float | None) -> None:
        """Take news, if there are any; ``at`` is the send time of the request that this is the first answer to."""

    def fail(self, error: Exception, *, ended: bool) -> None:
        """Raise ``error`` to the reader, once; if the watch has ended, it may be started again."""

    def wake(self) -> None:
        """Look again: the channel was closed, or the connection lost."""


class Followers:
    """All watches that were begun and not ended, whether there is a connection or not."""

    def __init__(self) -> None:
        self._ids: dict[Follower, int] = {}
        self._by_id: dict[int, tuple[Follower, float | None]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[Follower, int]]:
        """Go through them as they are now, each with the id of its request."""
        return iter(tuple(self._ids.items()))

    def begin(self, id: int, follower: Follower, sent_at: float) -> None:
        """Let a watch go by the request with this id from now on, and by no other."""
        self._by_id.pop(self._ids.get(follower, 0), None)
        self._ids[follower] = id
        self._by_id[id] = follower, sent_at

    def end(self, follower: Follower) -> int | None:
        """Forget a watch; returns the id that it went by, None if it has ended already."""
        id = self._ids.pop(follower, None)
        return id if id is not None and self._by_id.pop(id, None) is not None else None

    def at(self, id: int) -> Follower | None:
        """Return the watch that goes by this id, if it is still there."""
        found = self._by_id.get(id)
        return None if found is None else found[0]

    def receive(self, id: int, listing: Listing | None) -> None:
        """Hand news to the watch that they are for, if it is still there."""
        found = self._by_id.get(id)
        if found is not None:
            follower, sent_at = found
            if sent_at is not None:
                self._by_id[id] = follower, None
            follower.receive(listing, sent_at)

    def refuse(self, failed: wire.Failed) -> bool:
        """End the watch that the server has refused; False if there is none with that id."""
        found = self._by_id.pop(failed.id, None)
        if found is None:
            return False
        follower, _ = found
        self._ids.pop(follower, None)
        follower.fail(error_of(failed), ended=True)
        return True
