"""A transaction as the core asks for it, what a node sees of its run, and what it has read there.

``duty`` and ``arrival`` decide what to write and on which conditions, in these values; ``node.translation`` turns them
into a backend's. So the core knows keys, bytes and stamps, and no backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from rendezvous_async.core.codec import decode
from rendezvous_async.core.state import Head, Node, Seat, Stamp, node_of
from rendezvous_async.errors import RendezvousStateError

__all__ = ["MOST_WRITES", "Capacity", "Drop", "Row", "Save", "Seen", "Transaction", "readable"]

Row: TypeAlias = tuple[str, bytes | None, int]
"""What a read found at a key: the key, the value (None: it is gone), and the revision of its put."""

R = TypeVar("R", Node, Seat)

MOST_WRITES: Final = 4096
"""Upper bound on the writes of one transaction, whatever the backend takes: a server makes all of them in one go, and
does nothing else meanwhile. This many seats take it about 15 ms."""


class Save(msgspec.Struct, frozen=True):
    """Write a value; a leased key goes when this node's session ends."""

    key: str
    value: bytes
    leased: bool = False


class Drop(msgspec.Struct, frozen=True):
    """Delete one key, or with a name that ends in ``/`` a whole subtree."""

    name: str


class Transaction(msgspec.Struct, frozen=True):
    """Do all ``writes`` if each key of ``when`` has that stamp (None: if there is no such key), else nothing.

    Attributes:
        what: What it is for, in words.
        writes: What to do, each key at most once.
        when: The conditions.
    """

    what: str
    writes: tuple[Save | Drop, ...]
    when: Mapping[str, Stamp | None]


class Seen(msgspec.Struct, frozen=True):
    """What a node sees of its run.

    Attributes:
        head: Stamped; None if there is none.
        state: The stamp of the head's entry.
        post: The stamp of the coordinator's entry; None if the post is vacant.
        since: When the last change in the history was seen, by this node's clock; None: it came later.
    """

    head: Head | None
    state: Stamp | None
    post: Stamp | None
    since: float | None = None


class Capacity(msgspec.Struct, frozen=True):
    """How much goes into one transaction.

    Attributes:
        writes: How many fit.
        bytes: Of keys and values.
        prefix: How many bytes the backend puts before each key.
    """

    writes: int
    bytes: int
    prefix: int = 0

    @property
    def room(self) -> int:
        """How many writes one transaction makes at most."""
        return min(self.writes, MOST_WRITES)

    def with_one_more(self, writes: tuple[Save | Drop, ...], save: Save) -> tuple[Save | Drop, ...]:
        """Return these writes and ``save``, or without it if there is no room for it."""
        size = self.prefix + len(save.key) + len(save.value)
        for write in writes:
            size += self.prefix + (len(write.key) + len(write.value) if isinstance(write, Save) else len(write.name))
        return (*writes, save) if len(writes) < self.room and size <= self.bytes * 3 // 4 else writes

    def batches(self, saves: Sequence[Save], spare: int) -> Iterator[tuple[Save, ...]]:
        """Cut ``saves`` into batches that fit a transaction together with ``spare`` more writes; at least one batch."""
        start, size = 0, 0
        for index, save in enumerate(saves):
            more = self.prefix + len(save.key) + len(save.value)
            if index > start and (index - start + spare >= self.room or size + more > self.bytes // 2):
                yield tuple(saves[start:index])
                start, size = index, 0
            size += more
        yield tuple(saves[start:])


def readable(kind: type[R], rows: Iterable[Row]) -> Iterator[tuple[str, R, int]]:
    """Yield the node, the record and the revision of each row that can be decoded; the others are skipped."""
    for key, value, revision in rows:
        try:
            yield node_of(key), decode(kind, value, key), revision
        except RendezvousStateError:
            continue
