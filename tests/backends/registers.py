"""A client that reads, writes and swaps a few keys at random, and takes down what it did and saw."""

from __future__ import annotations

import math
import random

import anyio

from rendezvous_async.backends.base import Backend, Commit, Condition, Put
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.testing.linearizability import Operation

__all__ = ["Client"]

KEYS = ("x", "y", "z")


class Client:
    """Reads, writes and swaps at random, and takes down what it did and saw.

    Args:
        number: Names it.
        backend: Where.
        rng: What it does.
        history: Where it is taken down.
        prefix: Of the keys.

    Attributes:
        acknowledged: What was written and answered: key, value and revision. No value is written twice.
    """

    def __init__(
        self, number: int, backend: Backend, rng: random.Random, history: list[Operation], prefix: str = ""
    ) -> None:
        self.acknowledged: list[tuple[str, bytes, int]] = []
        self._name = f"client {number}"
        self._backend = backend
        self._rng = rng
        self._history = history
        self._prefix = prefix
        self._count = 0

    async def work(self, operations: int) -> None:
        for _ in range(operations):
            await self.step()

    async def step(self) -> None:
        """Do one thing to one key."""
        key = self._prefix + self._rng.choice(KEYS)
        self._count += 1
        value = f"{self._name}.{self._count}".encode()
        await self._rng.choice((self._read, self._write, self._swap))(key, value)

    async def _read(self, key: str, _: bytes) -> None:
        begin = anyio.current_time()
        entry = await self._backend.get(key)
        self._record(key, "read", begin, None if entry is None else entry.value)

    async def _write(self, key: str, value: bytes) -> None:
        begin = anyio.current_time()
        commit = await self._commit(Put(key, value))
        self._record(key, "write", begin, value, commit=commit)

    async def _swap(self, key: str, value: bytes) -> None:
        begin = anyio.current_time()
        entry = await self._backend.get(key)
        expected = None if entry is None else entry.value
        self._record(key, "read", begin, expected)
        begin = anyio.current_time()
        commit = await self._commit(Put(key, value), Condition(key, None if entry is None else entry.token))
        self._record(key, "swap", begin, value, expected=expected, commit=commit)

    async def _commit(self, put: Put, *when: Condition) -> Commit | None:
        """Commit; None if nobody knows what came of it. Now and then a caller gives up by itself."""
        deadline = 0.02 if self._rng.random() < 0.05 else math.inf
        try:
            with anyio.move_on_after(deadline):
                return await self._backend.commit(put, when=when)
        except RendezvousConnectionError:
            pass
        return None

    def _record(
        self,
        key: str,
        kind: str,
        begin: float,
        value: bytes | None,
        *,
        expected: bytes | None = None,
        commit: Commit | None = None,
    ) -> None:
        is_open = kind != "read" and commit is None
        end = math.inf if is_open else anyio.current_time()
        done = commit is None or commit.won
        assert kind in ("read", "write", "swap")
        self._history.append(Operation(key, kind, begin, end, value, expected, done, self._name))  # type: ignore[arg-type]
        if commit is not None and commit.won and value is not None:
            self.acknowledged.append((key, value, commit.revision))
