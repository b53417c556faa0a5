"""Many clients, a network that breaks, a server that is killed: every history is linearizable."""

from __future__ import annotations

import math
import random
from pathlib import Path

import anyio
import msgspec
import pytest

from rendezvous_async.backends.base import Condition, Put
from rendezvous_async.backends.tcp import TcpBackend
from rendezvous_async.testing.linearizability import Operation, check_linearizable
from tests.backends.tcp.support import ServerProcess, connect, through_proxy

KEYS = ("x", "y", "z")


class Client:
    """Reads, writes and swaps at random, and takes down what it did and saw."""

    def __init__(self, number: int, backend: TcpBackend, rng: random.Random, history: list[Operation]) -> None:
        self._name = f"client {number}"
        self._backend = backend
        self._rng = rng
        self._history = history
        self._count = 0

    async def work(self, operations: int) -> None:
        for _ in range(operations):
            key = self._rng.choice(KEYS)
            self._count += 1
            value = f"{self._name}.{self._count}".encode()
            await self._rng.choice((self._read, self._write, self._swap))(key, value)

    async def _read(self, key: str, _: bytes) -> None:
        begin = anyio.current_time()
        entry = await self._backend.get(key)
        self._record(key, "read", begin, None if entry is None else entry.value)

    async def _write(self, key: str, value: bytes) -> None:
        begin = anyio.current_time()
        with anyio.move_on_after(self._patience()) as scope:
            await self._backend.commit(Put(key, value))
        self._record(key, "write", begin, value, open=scope.cancelled_caught)

    async def _swap(self, key: str, value: bytes) -> None:
        begin = anyio.current_time()
        entry = await self._backend.get(key)
        expected = None if entry is None else entry.value
        self._record(key, "read", begin, expected)
        begin = anyio.current_time()
        won = True
        with anyio.move_on_after(self._patience()) as scope:
            when = [Condition(key, None if entry is None else entry.token)]
            won = (await self._backend.commit(Put(key, value), when=when)).won
        self._record(key, "swap", begin, value, expected=expected, done=won, open=scope.cancelled_caught)

    def _patience(self) -> float:
        """Now and then a caller gives up, and never learns what became of its call."""
        return 0.02 if self._rng.random() < 0.05 else math.inf

    def _record(
        self,
        key: str,
        kind: str,
        begin: float,
        value: bytes | None,
        *,
        expected: bytes | None = None,
        done: bool = True,
        open: bool = False,
    ) -> None:
        end = math.inf if open else anyio.current_time()
        assert kind in ("read", "write", "swap")
        self._history.append(Operation(key, kind, begin, end, value, expected, done, self._name))  # type: ignore[arg-type]


async def record(data_dir: Path, seed: int, clients: int, operations: int, kills: int) -> list[Operation]:
    rng = random.Random(seed)
    history: list[Operation] = []
    async with ServerProcess(data_dir) as server, through_proxy(server) as proxy:
        backends = [await connect(f"tcp://127.0.0.1:{proxy.port}", stall_timeout=1.0) for _ in range(clients)]
        with anyio.fail_after(120):
            async with anyio.create_task_group() as faults:
                faults.start_soon(proxy.disturb, random.Random(seed), 0.2, 0.1)
                faults.start_soon(kill_now_and_then, server, rng, kills)
                async with anyio.create_task_group() as group:
                    for number, backend in enumerate(backends):
                        client = Client(number, backend, random.Random(rng.random()), history)
                        group.start_soon(client.work, operations)
                faults.cancel_scope.cancel()
        for backend in backends:
            await backend.aclose()
    return history


async def kill_now_and_then(server: ServerProcess, rng: random.Random, kills: int) -> None:
    for _ in range(kills):
        await anyio.sleep(rng.random() * 0.5)
        with anyio.CancelScope(shield=True):
            await server.kill()
            await server.start()


def plant_a_stale_read(history: list[Operation]) -> list[Operation]:
    """One read is made to see what a later write had replaced before it was called."""
    for index, late in enumerate(history):
        if late.kind != "read" or late.value is None:
            continue
        for early in history:
            if early.kind == "read" and early.key == late.key and early.value != late.value:
                between = any(
                    write.key == late.key
                    and write.value == late.value
                    and early.returned_at < write.called_at
                    and write.returned_at < late.called_at
                    for write in history
                    if write.kind == "write"
                )
                if between:
                    return [*history[:index], msgspec.structs.replace(late, value=early.value), *history[index + 1 :]]
    raise AssertionError("the history is too short to plant a stale read in it")


async def test_histories_are_linearizable(tmp_path: Path) -> None:
    history = await record(tmp_path, seed=1, clients=6, operations=40, kills=2)
    check_linearizable(history)
    with pytest.raises(AssertionError, match="not linearizable"):
        check_linearizable(plant_a_stale_read(history))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
async def test_long_histories_are_linearizable(tmp_path: Path, seed: int) -> None:
    check_linearizable(await record(tmp_path, seed, clients=10, operations=150, kills=8))
