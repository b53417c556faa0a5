"""Shares reads: a thousand tasks of one process that read the same key at once cost etcd two calls, not a thousand.

A read may use the answer of any call that was sent after the read began. So while a call for a name is in flight,
further readers of that name share the next one. A read of a past revision may use any call.

Concurrent reads of different keys in one directory, such as the seats, are shared too: if the directory has not many
other keys, it is read once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import anyio
from aetcd import rpc
from anyio.lowlevel import checkpoint

from rendezvous_async.backends.etcd.channel import ClusterClient
from rendezvous_async.backends.etcd.faults import EtcdRefusedError
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Reads", "key_range"]

MANY_SIBLINGS = 8
STRANGERS = 4
"""A directory is read as a whole if it has at most this many keys for each wanted key."""


def key_range(name: str) -> tuple[bytes, bytes]:
    """Return ``key`` and ``range_end`` of a key, or of a subtree if the name ends in a slash."""
    key = name.encode()
    return (key, key[:-1] + b"0") if name.endswith("/") else (key, b"")


class _Flight:
    """A call that several readers share; ``answer`` and ``error`` stay None if its sender was cancelled."""

    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.answer: Any = None
        self.error: RendezvousConnectionError | None = None


class _Siblings(_Flight):
    """Keys of one directory to be read at the same revision; ``answer`` is by key."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()


class _RangeAnswer(NamedTuple):
    """The answer that a Range of one key would have given."""

    header: Any
    kvs: list[Any]


class Reads:
    """Makes Range calls, and shares them between readers."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._under_way: dict[tuple[str, int], _Flight] = {}
        self._gathering: dict[tuple[str, int], _Flight] = {}
        self._siblings: dict[tuple[str, int], _Siblings] = {}

    async def range(self, name: str, revision: int = 0) -> Any:
        """Return etcd's answer for a key or subtree: linearizable, or as of a revision already seen."""
        if revision and not name.endswith("/"):
            answer = await self._among_siblings(name, revision)
            if answer is not None:
                return answer
        what = (name, revision)
        while True:
            before = self._under_way.get(what)
            flight = before if revision else self._gathering.get(what)
            if flight is None:
                return await self._fly(what, before)
            await flight.landed.wait()
            if flight.error is not None:
                raise flight.error
            if flight.answer is not None:
                return flight.answer

    async def _among_siblings(self, name: str, revision: int) -> _RangeAnswer | None:
        """Read a key together with its siblings; None if it must be read alone."""
        directory = name[: name.rindex("/") + 1]
        what = (directory, revision)
        siblings = self._siblings.get(what)
        if siblings is not None:
            siblings.names.add(name)
            await siblings.landed.wait()
        else:
            self._siblings[what] = siblings = _Siblings()
            siblings.names.add(name)
            try:
                await checkpoint()  # Tasks woken by the same event get to ask, too.
                del self._siblings[what]
                if len(siblings.names) >= MANY_SIBLINGS:
                    siblings.answer = await self._read_many(directory, revision, STRANGERS * len(siblings.names))
                elif len(siblings.names) == 1:
                    siblings.answer = await self._read_many(name, revision, 1)
            finally:
                if self._siblings.get(what) is siblings:
                    del self._siblings[what]
                siblings.landed.set()
        if siblings.answer is None:
            return None
        header, found = siblings.answer
        pair = found.get(name.encode())
        return _RangeAnswer(header, [] if pair is None else [pair])

    async def _read_many(self, name: str, revision: int, limit: int) -> tuple[Any, dict[bytes, Any]] | None:
        """Return the entries under a name by key; None if there are more than ``limit``, or etcd refuses."""
        key, end = key_range(name)
        request = rpc.RangeRequest(key=key, range_end=end, revision=revision, serializable=True, limit=limit)
        try:
            answer = await self._cluster.call("Range", request)
        except EtcdRefusedError:
            return None  # Each is read alone, and gets its own answer.
        return None if answer.more else (answer.header, {pair.key: pair for pair in answer.kvs})

    async def _fly(self, what: tuple[str, int], before: _Flight | None) -> Any:
        flight = _Flight()
        try:
            while before is not None:
                self._gathering[what] = flight
                await before.landed.wait()
                before = self._under_way.get(what)
            self._gathering.pop(what, None)
            self._under_way[what] = flight
            name, revision = what
            key, end = key_range(name)
            # A revision that has been seen can be read from one member, without consensus.
            request = rpc.RangeRequest(key=key, range_end=end, revision=revision, serializable=revision > 0)
            flight.answer = await self._cluster.call("Range", request)
            return flight.answer
        except RendezvousConnectionError as error:
            flight.error = error
            raise
        finally:
            for flights in (self._gathering, self._under_way):
                if flights.get(what) is flight:
                    del flights[what]
            flight.landed.set()
