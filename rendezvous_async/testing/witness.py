"""Turns the commits of a backend into records of a history: arrivals, losses, heads, rounds, writes to stores.

It is fed the changes of one run, commit by commit, and keeps the current entries. It knows the run's keys and records,
not their writers. The simulator feeds it from its server, the fault campaign from the log on disk or from etcd's
history.
"""

from __future__ import annotations

from collections.abc import Iterable

from rendezvous_async.admin import read_head, read_records
from rendezvous_async.backends.base import Entry, Token
from rendezvous_async.core.codec import decode
from rendezvous_async.core.history import HISTORY, HistoryRecord
from rendezvous_async.core.shape import Shape
from rendezvous_async.core.spec import spec_of
from rendezvous_async.core.state import NODES, SEATS, STATE, Head, Node, Seat, node_of
from rendezvous_async.testing.history import Arrived, Formed, HeadWritten, History, StoreWritten, Vanished

__all__ = ["Witness"]


class Witness:
    """Records what each commit did.

    Attributes:
        entries: The current entries, by key.
    """

    def __init__(self, history: History) -> None:
        self.entries: dict[str, Entry] = {}
        self._history = history
        self._shape: Shape | None = None

    def __repr__(self) -> str:
        return f"<Witness of {len(self.entries)} keys>"

    @property
    def head(self) -> Head | None:
        """The run's head, stamped with its round's token."""
        return read_head(self.entries.get(STATE))

    @property
    def roster(self) -> list[str]:
        """The nodes that have a record, sorted."""
        return sorted(node_of(key) for key in self.entries if key.startswith(NODES))

    @property
    def records(self) -> list[HistoryRecord]:
        """What the run's own history says, the oldest change first."""
        return list(read_records(entry for key, entry in self.entries.items() if key.startswith(HISTORY)))

    def forget(self) -> None:
        """Drop all entries: the backend has lost its data."""
        self.entries.clear()
        self._shape = None

    def seats(self, head: Head) -> list[tuple[str, str, int]]:
        """Return the seats that count under ``head``: node, arrival and rank."""
        return sorted((node, seat.arrival, seat.rank) for node, seat in self._seats(head))

    def _seats(self, head: Head) -> list[tuple[str, Seat]]:
        found = [
            (node_of(key), decode(Seat, entry.value, key))
            for key, entry in self.entries.items()
            if key.startswith(SEATS)
        ]
        return [(node, seat) for node, seat in found if seat.attempt == head.attempt]

    def take(self, now: float, changes: Iterable[Entry]) -> None:
        """Take the changes of one commit; value None is a deletion."""
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
        spec, origin = spec_of(head), head.fingerprint
        self._history.add(
            HeadWritten(
                now, head.round, head.phase, head.waiting, head.lost, closed, origin, str(spec), spec.generation
            )
        )
        shape, self._shape = self._shape, head.shape
        if decode(Head, entry.value).token is None and head.round and head.closed is None:
            assert head.token is not None
            token = str(Token(*head.token))
            ranks, domain = head.settings.ranks, head.settings.domain
            by_rank = sorted((seat for _, seat in self._seats(head)), key=lambda seat: seat.rank)
            domains = tuple(seat.labels.get(domain) for seat in by_rank) if domain else ()
            seats = tuple(self.seats(head))
            self._history.add(Formed(now, head.round, head.size, token, seats, shape, ranks, domains))
