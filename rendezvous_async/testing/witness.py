"""Turns what a backend committed into records of a history: arrivals, losses, heads, rounds, writes to a round's store.

It is fed the changes of one run, commit by commit, and keeps what stands; it knows the run's keys and records and
nothing of who wrote them. The simulator feeds it from its server, the fault campaign from the log on the disk, or from
etcd's own history.
"""

from __future__ import annotations

from collections.abc import Iterable

from rendezvous_async.backends.base import Entry, Token
from rendezvous_async.control import read_head
from rendezvous_async.core.codec import decode
from rendezvous_async.core.state import NODES, SEATS, STATE, Head, Node, Seat, node_of
from rendezvous_async.testing.history import Arrived, Formed, HeadWritten, History, StoreWritten, Vanished

__all__ = ["Witness"]


class Witness:
    """Writes down what each commit did.

    Attributes:
        entries: What stands, by key.
    """

    def __init__(self, history: History) -> None:
        self.entries: dict[str, Entry] = {}
        self._history = history

    def __repr__(self) -> str:
        return f"<Witness of {len(self.entries)} keys>"

    @property
    def head(self) -> Head | None:
        """The run's head, stamped with its round's token."""
        return read_head(self.entries.get(STATE))

    @property
    def roster(self) -> list[str]:
        """Who has a record, in the order of their names."""
        return sorted(node_of(key) for key in self.entries if key.startswith(NODES))

    def forget(self) -> None:
        """The backend has lost everything: what stands from now on is what it says next."""
        self.entries.clear()

    def seats(self, head: Head) -> list[tuple[str, str, int]]:
        """Return the seats that count under ``head``: node, arrival and rank."""
        found = [
            (node_of(key), decode(Seat, entry.value, key))
            for key, entry in self.entries.items()
            if key.startswith(SEATS)
        ]
        return sorted((node, seat.arrival, seat.rank) for node, seat in found if seat.attempt == head.attempt)

    def take(self, now: float, changes: Iterable[Entry]) -> None:
        """Take what one commit changed: keys of the run, with value None for those that are gone."""
        changes = list(changes)
        for entry in changes:
            if entry.value is None:
                self.entries.pop(entry.key, None)
            else:
                self.entries[entry.key] = entry
        for entry in changes:
            if entry.key == STATE:
                self._saw_head(now, entry)
            elif entry.key.startswith(NODES):
                if entry.value is None:
                    self._history.add(Vanished(now, node_of(entry.key)))
                else:
                    record = decode(Node, entry.value, entry.key)
                    self._history.add(Arrived(now, node_of(entry.key), record.arrival))
            elif entry.key.startswith("rounds/") and entry.key.count("/") > 1 and entry.value is not None:
                current = 0 if self.head is None else self.head.round
                self._history.add(StoreWritten(now, int(entry.key.split("/")[1]), current))

    def _saw_head(self, now: float, entry: Entry) -> None:
        head = read_head(entry) if entry.value is not None else None
        if head is None:
            return
        closed = "" if head.closed is None else head.closed.by
        self._history.add(HeadWritten(now, head.round, head.phase, head.waiting, head.lost, closed))
        if decode(Head, entry.value).token is None and head.round and head.closed is None:
            assert head.token is not None
            token = str(Token(*head.token))
            self._history.add(Formed(now, head.round, head.size, token, tuple(self.seats(head))))
