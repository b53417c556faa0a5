"""Many clients, a network that breaks, a server that is killed: every history is linearizable."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import msgspec
import pytest

from rendezvous_async.testing.linearizability import Operation, check_linearizable
from tests.backends.registers import Client
from tests.backends.tcp.support import ServerProcess, connect, through_proxy


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
