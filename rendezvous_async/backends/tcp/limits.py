"""How much a server gives to one peer and to all of them: everything is bounded."""

from __future__ import annotations

import resource

import msgspec

__all__ = ["Limits"]

OTHER_FILES = 256
"""So many files are left to the rest of the process, and to connections that are being refused or greeted."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a server allows.

    A peer that breaks one of the first four is told why and cut off. What is over one of the next six is answered with
    an error, and the peer may go on. ``in_flight`` and ``unsent`` hold back a peer's next requests until earlier ones
    are answered.

    Attributes:
        connections: How many at a time, also those that have not said who they are.
        handshake: Seconds from a connection to the end of its handshake, that of TLS included.
        frame: Bytes of one request.
        client_id: Characters of the name that a client gives itself.
        keys: Entries in the whole table.
        bytes: Of keys and values in the whole table.
        watches: On one connection.
        watched: Characters of the names in all watches of one connection; each name counts for 64 more.
        sessions: In the whole table.
        writes: In one commit.
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
    watches: int = 4096
    watched: int = 1024 * 1024
    sessions: int = 100_000
    writes: int = 16_384
    in_flight: int = 1024
    unsent: int = 256 * 1024
    shortest_ttl: float = 0.05
    longest_ttl: float = 86_400.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"the limit {name} must be a positive number, not {value!r}")

    @property
    def connections_now(self) -> int:
        """How many connections this process may have: a peer that is told so comes again, one that is not waits."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.connections
        return min(self.connections, max(files - OTHER_FILES, files // 2))
