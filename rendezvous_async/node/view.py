"""What a node sees of its run: the head, the coordinator's post, and its own record and seat, as they are pushed.

A ``View`` only goes forward: it is the sink of a ``Following``, which pushes only news, from the backend and from the
answers to commits (``Following.learn``). To wait for a change, use the view's ``Notice``, and look for an error first.
"""

from __future__ import annotations

from rendezvous_async.aio import clock
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends.base import Entry, Following, Listing, Token
from rendezvous_async.core.codec import decode
from rendezvous_async.core.features import check_features
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Post, Seat, node_key, seat_key

__all__ = ["View"]


class View:
    """The newest known entries of a run's head, of the coordinator's post, and of one node's record and seat.

    They come over one watch, in the order of their revisions: a node that was thrown out sees that its record is gone
    no later than the head that counts it as lost.

    Attributes:
        names: Of these entries.
        following: What pushes them; set once the session is open.
        record: The entry at the node's key, not decoded. Another node with the same id may have put it.
        error: Why there will be no more news: the watch has failed, an entry is damaged, or the head requires a feature
            that this version does not know. No node joins, campaigns or writes the head on such a view.
        since: When the head got the last record of the history that it counts, by this node's clock; None if it had it
            when this node came. Before the first record: when this node came, ``born``.
    """

    following: Following

    def __init__(self, node: str, run_id: str, born: float | None = None) -> None:
        self.names: tuple[str, ...] = (STATE, COORDINATOR, node_key(node), seat_key(node))
        self.changed: Notice = Notice()
        self.error: Exception | None = None
        self.loaded: bool = False
        self.since: float | None = born
        self.head: Head | None = None
        self.seat: Seat | None = None
        self.record: Entry | None = None
        self.coordinator: str | None = None
        self._run_id = run_id
        self._entries: dict[str, Entry] = {}

    def entry(self, key: str) -> Entry | None:
        """Return the newest entry at one of the view's keys; None if it is known that there is none."""
        return self._entries.get(key)

    def token(self, key: str) -> Token | None:
        """Return the token of ``entry(key)``."""
        entry = self._entries.get(key)
        return None if entry is None else entry.token

    def take(self, listing: Listing) -> None:
        """Apply a listing, then wake the waiters."""
        try:
            for entry in listing.entries:
                self._set(entry)
        except Exception as error:
            self.fail(error)
            return
        self.loaded = True
        self.changed.fire()

    def fail(self, error: Exception) -> None:
        """Note that nothing can be relied on any more; the first error counts."""
        self.error = self.error or error
        self.changed.fire()

    def _set(self, entry: Entry) -> None:
        key, value = entry.key, entry.value
        if key == STATE:
            stamp = (entry.token.epoch, entry.token.revision)
            head = None if value is None else decode(Head, value, key).stamped(stamp)
            if head is not None:
                check_features(head, self._run_id)
                if head.recorded != (0 if self.head is None else self.head.recorded):
                    self.since = clock.now() if self.loaded else None
            self.head = head
        elif key == COORDINATOR:
            self.coordinator = None if value is None else decode(Post, value, key).node
        elif key == self.names[2]:
            self.record = entry if value is not None else None
        else:
            self.seat = None if value is None else decode(Seat, value, key)
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
