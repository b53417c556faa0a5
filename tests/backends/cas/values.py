"""A fenced value in memory, and one that fails in every way that the contract allows."""

from __future__ import annotations

from random import Random

import anyio
from anyio.lowlevel import checkpoint

from rendezvous_async.backends.cas.value import Answer

__all__ = ["Faults", "FaultyValue", "MemoryValue"]


class MemoryValue:
    """One value, and its token: a count that never comes again. All clients share the object.

    Attributes:
        data: The value; None if there is none.
        writes: How many writes have won.
        calls: How many calls there were.
    """

    name = "memory value"

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.writes = 0
        self.calls = 0

    async def read(self) -> tuple[bytes, int] | None:
        self.calls += 1
        await checkpoint()
        return None if self.data is None else (self.data, self.writes)

    async def write(self, data: bytes, token: int | None) -> Answer | None:
        self.calls += 1
        await checkpoint()
        return self.swap(data, token)

    def swap(self, data: bytes, token: int | None) -> Answer | None:
        """Do it, at once."""
        is_current = token is None if self.data is None else token == self.writes
        if is_current:
            self.data = data
            self.writes += 1
        return None if self.data is None else (self.data, self.writes, is_current)

    async def aclose(self) -> None:
        """Others use it."""


class Faults(Exception):
    """What a call raises that fails on purpose."""


class FaultyValue:
    """One client's way to a value: slow, and it fails before or after a call was done, or does it much later.

    Args:
        value: The value.
        rng: Decides what happens.
        rate: How many of the calls fail.
        latency: Seconds that a call takes at most.

    Attributes:
        failed: How many calls have failed, by kind.
    """

    name = "faulty value"

    def __init__(self, value: MemoryValue, rng: Random, rate: float, latency: float) -> None:
        self.failed = {"before": 0, "after": 0, "late": 0, "hung": 0}
        self._value = value
        self._rng = rng
        self._rate = rate
        self._latency = latency
        self._late: list[tuple[bytes, int | None]] = []

    async def read(self) -> tuple[bytes, int] | None:
        fault = await self._begin()
        if fault is not None:
            raise Faults(f"read failed {fault}")
        found = await self._value.read()
        await anyio.sleep(self._rng.random() * self._latency)
        return found

    async def write(self, data: bytes, token: int | None) -> Answer | None:
        fault = await self._begin()
        if fault == "before":
            raise Faults("nothing was done")
        if fault == "late":
            self._late.append((data, token))
            raise Faults("it is done later")
        answer = await self._value.write(data, token)
        if fault == "after":
            raise Faults("it was done")
        if fault == "hung":
            await anyio.sleep(3600)
        await anyio.sleep(self._rng.random() * self._latency)
        return answer

    async def aclose(self) -> None:
        """The value is not this client's."""

    async def _begin(self) -> str | None:
        """Wait for a moment, do what is late, and return how this call is to fail, if it is."""
        await anyio.sleep(self._rng.random() * self._latency)
        while self._late and self._rng.random() < 0.5:
            self._value.swap(*self._late.pop(self._rng.randrange(len(self._late))))
        if self._rng.random() >= self._rate:
            return None
        fault = self._rng.choice(tuple(self.failed))
        self.failed[fault] += 1
        return fault
