"""The watches of a client, and the ids of the requests that carry them on the current connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rendezvous_async.aio import clock
from rendezvous_async.backends.driver import Sink
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.client.calls import error_of
from rendezvous_async.backends.values import Listing, Token

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.client.channel import Channel

__all__ = ["Followers", "TcpSubscription"]


class TcpSubscription:
    """A watch that survives reconnects and pushes the server's listings straight to its sink.

    Args:
        channel: The channel that carries it.
        names: The watched names.
        after: The position to start from.
        sink: Receives the listings.
    """

    def __init__(self, channel: Channel, names: tuple[str, ...], after: Token | None, sink: Sink) -> None:
        self._channel = channel
        self._names = names
        self._received = after
        self._sink = sink
        self._is_current = False
        self._current_at = clock.now()

    @property
    def current_at(self) -> float:
        if self._is_current:
            self._current_at = max(self._current_at, self._channel.current_at)
        return self._current_at

    def close(self) -> None:
        self._is_current = False
        self._channel.unfollow(self)

    # Called by the channel

    def request(self, id: int) -> wire.Follow:
        """Return the request that starts the watch, or continues it on a new connection."""
        return wire.Follow(id, self._names, self._received)

    def receive(self, listing: Listing | None, at: float | None) -> None:
        """Push news, if any; ``at`` is the send time of the request if this is its first answer."""
        if at is not None:
            self._is_current = True
            self._current_at = max(self._current_at, at)
        if listing is not None:
            self._received = listing.token
            self._channel.saw(listing.token)
            self._sink.take(listing)

    def interrupt(self) -> None:
        """Freeze ``current_at``: the connection was lost."""
        self._current_at = self.current_at
        self._is_current = False

    def fail(self, error: Exception) -> None:
        """End the watch with an error."""
        self.close()
        self._sink.fail(error)


class Followers:
    """All open watches, with or without a connection."""

    def __init__(self) -> None:
        self._ids: dict[TcpSubscription, int] = {}
        self._by_id: dict[int, tuple[TcpSubscription, float | None]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[TcpSubscription, int]]:
        """Iterate over a copy, each watch with the id of its request."""
        return iter(tuple(self._ids.items()))

    def begin(self, id: int, follower: TcpSubscription, sent_at: float) -> None:
        """Assign a watch to the request with this id, and to no other."""
        self._by_id.pop(self._ids.get(follower, 0), None)
        self._ids[follower] = id
        self._by_id[id] = follower, sent_at

    def end(self, follower: TcpSubscription) -> int | None:
        """Forget a watch and return the id of its request; None if it has ended already."""
        id = self._ids.pop(follower, None)
        return id if id is not None and self._by_id.pop(id, None) is not None else None

    def at(self, id: int) -> TcpSubscription | None:
        """Return the watch of the request with this id, if it is still open."""
        found = self._by_id.get(id)
        return None if found is None else found[0]

    def receive(self, id: int, listing: Listing | None) -> None:
        """Pass news to its watch, if it is still open."""
        found = self._by_id.get(id)
        if found is not None:
            follower, sent_at = found
            if sent_at is not None:
                self._by_id[id] = follower, None
            follower.receive(listing, sent_at)

    def refuse(self, failed: wire.Failed) -> bool:
        """Fail the watch that the server has refused; False if there is none with that id."""
        found = self._by_id.pop(failed.id, None)
        if found is None:
            return False
        follower, _ = found
        self._ids.pop(follower, None)
        follower.fail(error_of(failed))
        return True
