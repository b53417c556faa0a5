"""Clocks an hour apart, and one that runs a fifth too fast: in no backend do they make a difference.

Real processes, each with clocks of its own (``tests/skewed_clock.py``); with ``tcp://`` the server's runs fast, too. An
etcd cannot be given a wrong clock here, only its clients can.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from rendezvous_async.testing.etcd import etcd_program, start_etcd
from rendezvous_async.testing.history import Believed, Released
from tests.proof.campaign import node, server
from tests.proof.campaign.processes import Child
from tests.proof.campaign.records import Heard, Line, Up

SKEWED = str(Path(__file__).parents[1] / "skewed_clock.py")
CLOCKS = {"true": (0, 1.0), "ahead": (3600, 1.0), "fast": (0, 1.2)}
INTERVAL, ATTEMPTS = 0.4, 6
TTL = INTERVAL * ATTEMPTS
WAIT = 90.0


@asynccontextmanager
async def backend_of(kind: str, folder: Path) -> AsyncIterator[str]:
    """Give an endpoint; a TCP server has a clock that runs fast."""
    if kind == "file":
        yield f"file://{folder}/shared"
        return
    if kind == "etcd":
        if etcd_program() is None:
            pytest.skip("there is no etcd here")
        async with start_etcd() as etcd:
            yield etcd.endpoint
        return
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    child = Child("server", folder)
    options = msgspec.json.encode(server.Options(port, str(folder / "data"), str(child.notebook))).decode()
    await child.start(SKEWED, "0", "1.2", "tests.proof.campaign.server", options)
    try:
        await until(lambda: any(isinstance(line, Up) for line in child.read()))
        yield f"tcp://127.0.0.1:{port}?is_host=false"
    finally:
        with anyio.CancelScope(shield=True):
            await child.kill()


async def until(holds: Callable[[], object]) -> None:
    with anyio.fail_after(WAIT):
        while not holds():  # noqa: ASYNC110 - other processes write files
            await anyio.sleep(0.02)


class Node:
    """A node's process with its own clocks, and what it has written down."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.lines: list[Line] = []
        self.child = Child(name, folder)

    async def start(self, endpoint: str) -> None:
        options = node.Options(
            endpoint, "clocks", self.name, "2:3", INTERVAL, ATTEMPTS, self.name, str(self.child.notebook), calm=True
        )
        offset, rate = CLOCKS[self.name]
        module = "tests.proof.campaign.node"
        await self.child.start(SKEWED, str(offset), str(rate), module, msgspec.json.encode(options).decode())

    def look(self) -> tuple[int, int] | None:
        """Return the round that it holds, and its size."""
        self.lines += self.child.read()
        last = next((line for line in reversed(self.lines) if isinstance(line, Believed | Released)), None)
        return (last.round, last.size) if isinstance(last, Believed) else None

    def heard(self, kind: str) -> bool:
        return any(isinstance(line, Heard) and line.kind == kind for line in self.lines)


@pytest.mark.parametrize("kind", ["tcp", "etcd", "file"])
async def test_wrong_clocks_change_nothing(kind: str, tmp_path: Path) -> None:
    async with backend_of(kind, tmp_path) as endpoint, AsyncExitStack() as stack:
        nodes = {name: Node(name, tmp_path) for name in CLOCKS}
        for each in nodes.values():
            await each.start(endpoint)
            stack.push_async_callback(each.child.kill)

        def hold(size: int, *names: str) -> bool:
            held = {nodes[name].look() for name in names}
            return len(held) == 1 and {world[1] for world in held if world is not None} == {size}

        undisturbed = False
        while not undisturbed:
            await until(lambda: hold(3, *nodes))
            worlds = {each.look() for each in nodes.values()}
            marks = {name: len(each.lines) for name, each in nodes.items()}
            await anyio.sleep(1.5 * TTL)  # Nobody is taken for dead, and nobody takes itself for dead.
            undisturbed = {each.look() for each in nodes.values()} == worlds
            heard = [line for name, each in nodes.items() for line in each.lines[marks[name] :]]
            # A machine that lets a process stand still for longer than its TTL proves nothing: once more then.
            stalled = any(isinstance(line, Heard) and line.kind == "stalled" for line in heard)
            assert undisturbed or stalled, heard

        nodes["fast"].child.send(signal.SIGSTOP)  # The others learn of it, and go on without it.
        await until(lambda: hold(2, "true", "ahead"))
        nodes["fast"].child.send(signal.SIGCONT)  # It learns that it was out, and is back in the next round.
        await until(lambda: hold(3, *nodes))
        assert nodes["fast"].heard("evicted") or nodes["fast"].heard("session_lost")

        await nodes["ahead"].child.kill()
        await until(lambda: hold(2, "true", "fast"))
        for name in ("true", "fast"):
            nodes[name].child.send(signal.SIGTERM)
            assert await nodes[name].child.ended_within(WAIT)
            assert nodes[name].child.returncode == 0, nodes[name].child.errors
