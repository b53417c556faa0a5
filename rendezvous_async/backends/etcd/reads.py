"""Reads that are shared: a thousand tasks of one process that read one key at once cost etcd two calls, not a thousand.

A read may be answered by a call that was sent after the read was asked for, whoever sent it. So while a call for a name
is under way, whoever wants the same gathers for the next one. A read of a past revision may be answered by any call.
"""

from __future__ import annotations

from typing import Any

import anyio
from aetcd import rpc

from rendezvous_async.backends.etcd.channel import Cluster
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Reads", "key_range"]


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


class Reads:
    """Makes Range calls, as few as will do."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._under_way: dict[tuple[str, int], _Flight] = {}
        self._gathering: dict[tuple[str, int], _Flight] = {}

    async def range(self, name: str, revision: int = 0) -> Any:
        """Return etcd's answer for a key or a subtree: as of now, linearizable, or as of a revision that was seen."""
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
