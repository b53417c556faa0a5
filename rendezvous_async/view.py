"""What a node sees of its run: the head, its own seat and the coordinator's post, as they are pushed.

A ``View`` only goes forward: an entry that is older than what is already known is passed over. What the answer to a
commit says is known ahead of the push (``hear``); the watch is told, so that it also tells when that is gone. Whoever
waits for something to change uses the view's ``Notice``.
"""

from __future__ import annotations

from collections.abc import Iterable

from rendezvous_async.backends.base import Backend, Entry, Token
from rendezvous_async.core.codec import decode
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Post, Seat, seat_key
from rendezvous_async.notice import Notice

__all__ = ["View"]


class View:
    """The newest known entries of a run's head, of one node's seat and of the coordinator's post, decoded.

    Attributes:
        names: Of these entries.
        watch: On them; whoever reads it passes on to ``apply`` what comes.
    """

    def __init__(self, node: str, backend: Backend) -> None:
        self.names = (STATE, COORDINATOR, seat_key(node))
        self.watch = backend.watch(*self.names)
        self.changed = Notice()
        self.loaded = False
        self.head: Head | None = None
        self.seat: Seat | None = None
        self.coordinator: str | None = None
        self._entries: dict[str, Entry] = {}

    def entry(self, key: str) -> Entry | None:
        """Return the newest entry at one of the view's keys; None if it is known that there is none."""
        entry = self._entries.get(key)
        return None if entry is None or entry.value is None else entry

    def token(self, key: str) -> Token | None:
        """Return the token of ``entry(key)``."""
        entry = self.entry(key)
        return None if entry is None else entry.token

    def hear(self, entries: Iterable[Entry]) -> None:
        """Take those of the view's entries that a commit was answered with, or has written.

        Raises:
            RendezvousStateError: As ``apply`` does.
        """
        news = [entry for entry in entries if entry.key in self.names]
        if news:
            for entry in news:
                self.watch.learn(entry)
            self.apply(news)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Take what is newer than what is known, and tell everybody.

        Raises:
            RendezvousStateError: An entry is not what it should be; it is not taken.
        """
        for entry in entries:
            known = self._entries.get(entry.key)
            newer = known is None or known.token.epoch != entry.token.epoch
            if newer or (known is not None and known.token.revision < entry.token.revision):
                self._take(entry)
        self.loaded = True
        self.changed.fire()

    def _take(self, entry: Entry) -> None:
        key, value = entry.key, entry.value
        if key == STATE:
            stamp = (entry.token.epoch, entry.token.revision)
            self.head = None if value is None else decode(Head, value, key).stamped(stamp)
        elif key == COORDINATOR:
            self.coordinator = None if value is None else decode(Post, value, key).node
        else:
            self.seat = None if value is None else decode(Seat, value, key)
        self._entries[key] = entry
