"""How a server starts, also when that takes long or is broken off in the middle."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from rendezvous_async import clock
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.table import Snapshot
from rendezvous_async.backends.tcp import serve
from rendezvous_async.backends.tcp.addresses import listen_on, resolve
from rendezvous_async.backends.tcp.serving import start_on
from tests.backends.tcp.support import connected, eventually


class Gate:
    """Holds up whoever opens a log, on its thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        compact = Log.compact

        def held_up(log: Log, snapshot: Snapshot) -> None:
            self.reached.set()
            assert self.opened.wait(60)
            compact(log, snapshot)

        patch.setattr(Log, "compact", held_up)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


async def test_sessions_have_their_full_time_however_long_the_log_takes_to_open(gate: Gate, tmp_path: Path) -> None:
    gate.opened.set()
    async with AsyncExitStack() as clients, serve(port=0, data_dir=tmp_path) as server:
        backend = await clients.enter_async_context(connected(server.endpoint))
        session = await backend.open_session(60)  # It outlives the server, since its client has not said goodbye.
    gate.opened.clear()
    gate.reached.clear()
    opened_at = 0.0

    async def open_gate() -> None:
        nonlocal opened_at
        await eventually(gate.reached.is_set)
        opened_at = clock.now()
        gate.opened.set()

    async with anyio.create_task_group() as group:
        group.start_soon(open_gate)
        async with serve(port=0, data_dir=tmp_path) as server:
            refreshed_at = server.table.refreshed_at(session.id)
    assert refreshed_at is not None
    assert refreshed_at >= opened_at


async def test_who_is_cancelled_while_the_log_opens_does_not_keep_it(gate: Gate, tmp_path: Path) -> None:
    async def start() -> None:
        async with serve(port=0, data_dir=tmp_path):
            pytest.fail("it was cancelled before")

    starting = asyncio.ensure_future(start())  # noqa: TID251
    await eventually(gate.reached.is_set)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    gate.opened.set()

    async def is_free() -> bool:
        try:
            async with serve(port=0, data_dir=tmp_path):
                return True
        except Exception as error:
            assert "is in use" in str(error)
            return False

    with anyio.fail_after(10):
        while not await is_free():  # noqa: ASYNC110 - the thread that has it sends no event
            await anyio.sleep(0.01)


@pytest.mark.parametrize("turns", range(1, 5))
async def test_a_start_that_is_cancelled_leaves_no_socket_in_the_loop(turns: int) -> None:
    sockets = listen_on(await resolve("127.0.0.1", 0))
    number = sockets[0].fileno()
    start = start_on(sockets, "127.0.0.1", data_dir=None, secret=None, tls=None, disconnect_grace=1.0, limits=None)
    starting = asyncio.ensure_future(start)  # noqa: TID251
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    try:
        await (await starting).aclose()
    except asyncio.CancelledError:
        assert all(sock.fileno() == -1 for sock in sockets)
    # The loop must not take whoever has the number next for the one that is gone.
    here, there = socket.socketpair()
    with here, there:
        assert turns > 2 or number in (here.fileno(), there.fileno())
        here.setblocking(False)
        there.setblocking(False)
        reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(here, 1))  # noqa: TID251
        await asyncio.sleep(0)
        there.send(b"x")
        with anyio.fail_after(10):
            assert await reading == b"x"
