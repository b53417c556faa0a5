"""The roster, counted against the seats of the current round.

A ``Tally`` is what the coordinator knows: the head, the seats that count, and every live record, each put in one of
four groups as it comes. It is kept up to date one record at a time, so that a thousand arrivals cost a thousand small
steps and not a thousand scans of the roster.

::

    holding      members whose record names the arrival that their seat was given to: they are in the round
    returned     members whose record names a newer arrival: they are back at the barrier
    newcomers    all other nodes with the run's settings
    foreign      nodes with other settings: no candidates, but counted by their settings (``rivals``)

Where the settings name a domain, it also keeps how many members and how many newcomers each domain has, and how many
whole units they make: all that is needed to say how large the next world would be, whatever the number of domains.
Nodes without the label count in no domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from rendezvous_async.core.ranks import Candidate
from rendezvous_async.core.shape import Shape, count_newcomers
from rendezvous_async.core.state import Head, Node, Seat

__all__ = ["Tally"]

K = TypeVar("K", int, str)


class Tally:
    """The head, the seats that count, and the live records in their groups.

    Args:
        head: The state, stamped with its round's token.
        seats: Seats by node; those of another attempt than the head's are passed over.
    """

    def __init__(self, head: Head, seats: Mapping[str, Seat]) -> None:
        self.head = head
        self.shape: Shape = head.shape
        self._fingerprint, self._label, self._domain = head.fingerprint, head.settings.label, head.settings.domain
        self.seats = {node: seat for node, seat in seats.items() if head.round and seat.attempt == head.attempt}
        self.records: dict[str, tuple[Node, int]] = {}
        self.holding: set[str] = set()
        self.returned: set[str] = set()
        self.newcomers: set[str] = set()
        self.foreign: set[str] = set()
        self.rivals: Counter[str] = Counter()
        self._last_rounds: Counter[int] = Counter()
        self._last_rounds_of_foreign: Counter[int] = Counter()
        unit = head.settings.per_domain
        self._members_in, self._newcomers_in, self._all_in = _Domains(unit), _Domains(unit), _Domains(unit)

    def __repr__(self) -> str:
        return (
            f"<Tally round={self.head.round} {self.head.phase} holding={len(self.holding)} "
            f"returned={len(self.returned)} newcomers={len(self.newcomers)} foreign={len(self.foreign)}>"
        )

    def put(self, node: str, record: Node, order: int) -> None:
        """Take a record that was written, with the revision of that put."""
        self.remove(node)
        self.records[node] = (record, order)
        group = self._group(node, record)
        group.add(node)
        if self._domain and self._domain in record.labels and group is not self.foreign:
            for domains in (self._domains_of(group), self._all_in):
                domains.add(record.labels[self._domain])
        if record.fingerprint != self._fingerprint:
            self.rivals[record.fingerprint] += 1
        if record.last is not None:
            self._rounds_of(group)[record.last.round] += 1

    def remove(self, node: str) -> None:
        """Remove a record, if there is one."""
        record, _ = self.records.pop(node, (None, 0))
        if record is None:
            return
        group = self._group(node, record)
        group.discard(node)
        if self._domain and self._domain in record.labels and group is not self.foreign:
            for domains in (self._domains_of(group), self._all_in):
                domains.remove(record.labels[self._domain])
        if record.fingerprint != self._fingerprint:
            _count_down(self.rivals, record.fingerprint)
        if record.last is not None:
            _count_down(self._rounds_of(group), record.last.round)

    def follow(self, head: Head) -> None:
        """Take a head of the same round that was rewritten: counts, phase, closed, or what holds for the run now."""
        assert head.attempt == self.head.attempt
        assert (head.settings.domain, head.settings.per_domain) == (self._domain, self.head.settings.per_domain)
        if (head.settings, head.target) != (self.head.settings, self.head.target):
            self.shape = head.shape
        self.head = head

    def succeeded_by(self, head: Head, seats: Mapping[str, Seat]) -> Tally:
        """Return the tally of the same roster under the head and the seats of another round."""
        return tally_of(head, seats, ((node, record, order) for node, (record, order) in self.records.items()))

    @property
    def live_members(self) -> int:
        """How many members of the round have a record."""
        return len(self.holding) + len(self.returned)

    @property
    def lost(self) -> int:
        """How many members of the round have none."""
        return len(self.seats) - self.live_members

    @property
    def wanted(self) -> int:
        """How many newcomers would be in a larger world than the members' own: spares do not count."""
        members = self._members_in.units if self._domain else self.live_members
        if self.size <= self.shape.size_of(members):
            return 0
        return count_newcomers(self.member_domains, self.newcomer_domains, self.shape)

    @property
    def at_barrier(self) -> int:
        """How many stand at the barrier, spares included."""
        return len(self.returned) + len(self.newcomers)

    @property
    def size(self) -> int:
        """The size of the largest valid world of all members and newcomers; 0 if there is none."""
        return self.shape.size_of(self._all_in.units if self._domain else self.live_members + len(self.newcomers))

    @property
    def member_domains(self) -> Mapping[str, int]:
        """How many members each domain has."""
        return self._members_in.nodes if self._domain else {"": self.live_members}

    @property
    def newcomer_domains(self) -> Mapping[str, int]:
        """How many newcomers each domain has."""
        return self._newcomers_in.nodes if self._domain else {"": len(self.newcomers)}

    @property
    def domains(self) -> Mapping[str, int]:
        """How many members and newcomers each domain has."""
        return self._all_in.nodes if self._domain else {"": self.live_members + len(self.newcomers)}

    @property
    def last_round(self) -> int:
        """The highest round that the head or any record remembers."""
        return max(self._survived, *self._last_rounds_of_foreign, 0)

    @property
    def has_survivor(self) -> bool:
        """Whether a candidate held the last round."""
        return self._survived in self._last_rounds

    def candidates(self) -> list[Candidate]:
        """Return the nodes at the barrier, in the order in which they came."""
        survived = self._survived
        found = []
        for node in (*self.returned, *self.newcomers):
            record, order = self.records[node]
            rank = record.last.rank if record.last is not None and record.last.round == survived else None
            found.append(Candidate(node, order, rank, record.address, record.labels))
        return sorted(found, key=lambda candidate: (candidate.order, candidate.node))

    @property
    def _survived(self) -> int:
        """The round whose members are survivors: nodes with other settings have no say in it."""
        return max(self.head.round, *self._last_rounds, 0)

    def _rounds_of(self, group: set[str]) -> Counter[int]:
        return self._last_rounds_of_foreign if group is self.foreign else self._last_rounds

    def _domains_of(self, group: set[str]) -> _Domains:
        return self._newcomers_in if group is self.newcomers else self._members_in

    def _group(self, node: str, record: Node) -> set[str]:
        if record.fingerprint != self._fingerprint or (self._label and self._label not in record.labels):
            return self.foreign
        seat = self.seats.get(node)
        if seat is None:
            return self.newcomers
        return self.holding if seat.arrival == record.arrival else self.returned


class _Domains:
    """How many nodes each domain has, and how many whole units of nodes that makes."""

    def __init__(self, unit: int) -> None:
        self.nodes: Counter[str] = Counter()
        self.units = 0
        self._unit = unit

    def __repr__(self) -> str:
        return f"<_Domains of {self.units} units {dict(self.nodes)}>"

    def add(self, domain: str) -> None:
        self.nodes[domain] += 1
        self.units += self.nodes[domain] % self._unit == 0

    def remove(self, domain: str) -> None:
        self.units -= self.nodes[domain] % self._unit == 0
        _count_down(self.nodes, domain)


def _count_down(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def tally_of(head: Head, seats: Mapping[str, Seat], records: Iterable[tuple[str, Node, int]]) -> Tally:
    """Return the tally of a whole roster."""
    tally = Tally(head, seats)
    for node, record, order in records:
        tally.put(node, record, order)
    return tally
