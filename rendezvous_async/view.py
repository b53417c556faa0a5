"""What a node sees of its run: the head, the coordinator's post, and its own record and seat, as they are pushed.

A ``View`` only goes forward: a watch tells only news, and of what the answer to a commit says (``hear``), ahead of the
push, the view takes what is newer than what it knows. The watch is told, so that it also tells when that is gone.
Whoever waits for something to change uses the view's ``Notice``, and looks for an error first.
"""

from __future__ import annotations

from collections.abc import Iterable

from rendezvous_async.backends.base import Backend, Entry, Listing, Token
from rendezvous_async.core.codec import decode
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Post, Seat, node_key, seat_key
from rendezvous_async.notice import Notice

__all__ = ["View"]


class View:
    """The newest known entries of a run's head, of the coordinator's post, and of one node's record and seat.

    They come over one watch, in the order of their revisions: a node that was thrown out sees that its record is gone
    no later than the head that counts it as lost.

    Attributes:
        names: Of these entries.
        watch: On them.
        record: The entry of the node's record, whoever put it; it is not decoded.
        is_fed: Whether the watch hands over what comes by itself; if not, somebody must read it, and call ``push``.
        error: Why there will be no more news: the watch has failed, or an entry is not what it should be.
    """

    def __init__(self, node: str, backend: Backend) -> None:
        self.names = (STATE, COORDINATOR, node_key(node), seat_key(node))
        self.changed = Notice()
        self.error: Exception | None = None
        self.loaded = False
        self.head: Head | None = None
        self.seat: Seat | None = None
        self.record: Entry | None = None
        self.coordinator: str | None = None
        self._entries: dict[str, Entry] = {}
        self.watch = backend.prepare_watch(*self.names)
        self.is_fed = self.watch.deliver(self.push, self.fail)

    def entry(self, key: str) -> Entry | None:
        """Return the newest entry at one of the view's keys; None if it is known that there is none."""
        entry = self._entries.get(key)
        return None if entry is None or entry.value is None else entry

    def token(self, key: str) -> Token | None:
        """Return the token of ``entry(key)``."""
        entry = self.entry(key)
        return None if entry is None else entry.token

    def hear(self, entries: Iterable[Entry]) -> None:
        """Take those of the view's entries that a commit was answered with, or has written, if they are news."""
        news = [
            entry for entry in entries if entry.key in self.names and entry.token.is_news_to(self._known(entry.key))
        ]
        for entry in news:
            self.watch.learn(entry)
        if news:
            self._take_all(news)

    def push(self, listing: Listing) -> None:
        """Take what the watch tells, which is always news."""
        self._take_all(listing.entries)

    def fail(self, error: Exception) -> None:
        """Take it that there is no more to be relied on; the first error counts."""
        self.error = self.error or error
        self.changed.fire()

    def _take_all(self, entries: Iterable[Entry]) -> None:
        """Take news, and tell everybody."""
        try:
            for entry in entries:
                self._take(entry)
        except Exception as error:
            self.fail(error)
            return
        self.loaded = True
        self.changed.fire()

    def _known(self, key: str) -> Token | None:
        """Return as of when an entry is known, also one that is gone."""
        entry = self._entries.get(key)
        return None if entry is None else entry.token

    def _take(self, entry: Entry) -> None:
        key, value = entry.key, entry.value
        if key == STATE:
            stamp = (entry.token.epoch, entry.token.revision)
            self.head = None if value is None else decode(Head, value, key).stamped(stamp)
        elif key == COORDINATOR:
            self.coordinator = None if value is None else decode(Post, value, key).node
        elif key == self.names[2]:
            self.record = entry if value is not None else None
        else:
            self.seat = None if value is None else decode(Seat, value, key)
        self._entries[key] = entry
