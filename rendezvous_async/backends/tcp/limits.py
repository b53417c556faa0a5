"""How much a server gives to one peer and to all of them: everything is bounded."""

from __future__ import annotations

import math
import resource

import msgspec

from rendezvous_async.backends.frames import MAX_FRAME

__all__ = ["Limits"]

MAX_REQUEST = MAX_FRAME - 1024 * 1024

OTHER_FILES = 256
"""So many files are left to the rest of the process, and to connections that are being refused or greeted."""


_NUMBERS = frozenset({"handshake", "run_share", "reserve", "shortest_ttl", "longest_ttl"})
"""The limits that need not be whole numbers: seconds and parts of a whole."""


def _is_number(value: object) -> bool:
    """Tell whether it is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a server allows.

    A peer that breaks one of the first four is told why and cut off. What is over one of the next eight is answered
    with an error, and the peer may go on. ``in_flight`` and ``unsent`` hold back a peer's next requests until earlier
    ones are answered.

    ``writes`` and ``listed`` also bound how long one request can keep everybody else waiting: it is refused before it
    is begun. Many requests are no problem, since they share the event loop with others' (see ``turns``).

    Attributes:
        connections: How many at a time, also those that have not said who they are.
        handshake: Seconds from a connection to the end of its handshake, that of TLS included.
        frame: Bytes of one request.
        client_id: Characters of the name that a client gives itself.
        keys: Entries in the whole table.
        bytes: Of everything in the whole table: keys, values, sessions, remembered answers, and a fixed cost for each
            of them (``backends/usage.py``). A server needs up to two and a half times as much memory.
        run_share: Which part of ``keys`` and ``bytes`` one run may have; also, with a restricted secret, all runs
            together that it opens, and then of ``sessions`` too.
        reserve: Which part of ``keys`` and ``bytes`` the stores of rounds leave to the records of runs, so that nodes
            can join and rounds can form although users' data has filled the rest.
        watches: On one connection.
        watched: Characters of the names in all watches of one connection; each name counts for 64 more.
        names: In one watch.
        sessions: In the whole table.
        writes: In one commit; also the keys that one session may have.
        listed: Keys in one answer or watch, and deleted by one commit. So that the store of a
            round can always be listed and deleted, it has no more.
        in_flight: Requests of one connection that wait for their answers to be on disk and sent.
        unsent: Bytes of answers that wait for a peer that does not read.
        shortest_ttl: Seconds that a session is given at least.
        longest_ttl: Seconds that a session may ask for.
    """

    connections: int = 16_384
    handshake: float = 5.0
    frame: int = 16 * 1024 * 1024
    client_id: int = 128
    keys: int = 1_000_000
    bytes: int = 256 * 1024 * 1024
    run_share: float = 0.5
    reserve: float = 0.125
    watches: int = 4096
    watched: int = 1024 * 1024
    names: int = 4096
    sessions: int = 100_000
    writes: int = 16_384
    listed: int = 65_536
    in_flight: int = 1024
    unsent: int = 256 * 1024
    shortest_ttl: float = 0.05
    longest_ttl: float = 86_400.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in _NUMBERS:
                if not _is_number(value) or value <= 0:
                    raise ValueError(f"the limit {name} must be a positive, finite number, not {value!r}")
            elif isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"the limit {name} must be a whole number above 0, not {value!r}")
        if self.shortest_ttl > self.longest_ttl:
            raise ValueError(
                f"the limit shortest_ttl ({self.shortest_ttl:g} s) must not be above longest_ttl "
                f"({self.longest_ttl:g} s)"
            )
        if self.run_share > 1 or self.reserve >= 1:
            raise ValueError(
                f"the limits run_share ({self.run_share:g}) and reserve ({self.reserve:g}) are parts of the whole: "
                "at most 1, and less than 1"
            )
        if self.frame > MAX_REQUEST:
            raise ValueError(
                f"the limit frame is at most {MAX_REQUEST} bytes, not {self.frame}: what is accepted must fit into a "
                "frame of the log"
            )

    @property
    def connections_now(self) -> int:
        """How many connections this process may have: a peer that is told so comes again, one that is not waits."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.connections
        return min(self.connections, max(files - OTHER_FILES, files // 2))
