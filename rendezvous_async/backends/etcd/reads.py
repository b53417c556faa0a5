"""Reads that are shared: a thousand tasks of one process that read one key at once cost etcd two calls, not a thousand.

A read may be answered by a call that was sent after the read was asked for, whoever sent it. So while a call for a name
is under way, whoever wants the same gathers for the next one. A read of a past revision may be answered by any call.

Nor do a thousand tasks that each read a key of their own at the same moment, all in one directory (their seats, say):
if there is not much more in it, the directory is read once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import anyio
from aetcd import rpc
from anyio.lowlevel import checkpoint

from rendezvous_async.backends.etcd.channel import Cluster
from rendezvous_async.backends.etcd.faults import EtcdRefusedError
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Reads", "key_range"]

MANY_SIBLINGS = 8
STRANGERS = 4
"""A directory is read at once if it has at most so many keys for each that is wanted."""


def key_range(name: str) -> tuple[bytes, bytes]:
    """Return ``key`` and ``range_end`` of a key, or of a subtree if the name ends in a slash."""
    key = name.encode()
    return (key, key[:-1] + b"0") if name.endswith("/") else (key, b"")


class _Flight:
    """A call that several readers wait for; ``answer`` and ``error`` stay None if whoever made it was cancelled."""

    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.answer: Any = None
        self.error: RendezvousConnectionError | None = None


class _Siblings(_Flight):
    """Keys of one directory that are wanted as of the same revision; ``answer`` is by key."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()


class _Answer(NamedTuple):
    """What a Range of one key would have answered."""

    header: Any
    kvs: list[Any]


class Reads:
    """Makes Range calls, as few as will do."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._under_way: dict[tuple[str, int], _Flight] = {}
        self._gathering: dict[tuple[str, int], _Flight] = {}
        self._siblings: dict[tuple[str, int], _Siblings] = {}

    async def range(self, name: str, revision: int = 0) -> Any:
        """Return etcd's answer for a key or a subtree: as of now, linearizable, or as of a revision that was seen."""
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

    async def _among_siblings(self, name: str, revision: int) -> _Answer | None:
        """Return what stands at a key together with others that want it, or its siblings; None to read it alone."""
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
                await checkpoint()  # Whoever was woken by the same event as this task has asked when it is back.
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
        return _Answer(header, [] if pair is None else [pair])

    async def _read_many(self, name: str, revision: int, limit: int) -> tuple[Any, dict[bytes, Any]] | None:
        """Return what is under a name, by key; None if that is more than ``limit``, or not to be had."""
        key, end = key_range(name)
        request = rpc.RangeRequest(key=key, range_end=end, revision=revision, serializable=True, limit=limit)
        try:
            answer = await self._cluster.call("Range", request)
        except EtcdRefusedError:
            return None  # Alone, each gets an answer of its own.
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
            # Once a member has shown a revision, what it had then can be read without asking the others.
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
