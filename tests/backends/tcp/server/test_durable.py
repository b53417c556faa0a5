"""A connection to a server with a log: what has changed is told when the disk has it, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from rendezvous_async.backends.base import OWN, Put
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.tcp import Limits, TcpServer, serve, wire
from tests.backends.tcp.server.disk import Disk
from tests.backends.tcp.server.peer import Peer, welcome
from tests.backends.tcp.support import RawClient, eventually

Start = Callable[..., Any]


class Durable:
    """A server on a disk that waits, and what its peers were told."""

    def __init__(self, disk: Disk, limits: Limits) -> None:
        self.disk = disk
        self.server = TcpServer(log=disk.log, limits=limits)
        self.server.turns.now = lambda: 0.0  # However slow this machine is, no slice is over.

    def peer(self, client: str, revision: int = 0) -> Peer:
        peer = Peer(self.server)
        assert peer.greets(client, revision=revision) == [welcome(self.server)]
        return peer

    async def until_told(self, peer: Peer, count: int) -> list[Any]:
        """Return what a peer is told, once it was told ``count`` things."""
        found: list[Any] = []

        def has_heard() -> bool:
            found.extend(peer.hears())
            return len(found) >= count

        await eventually(has_heard)
        return found


@pytest.fixture
def durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    @asynccontextmanager
    async def start(**limits: Any) -> AsyncIterator[Durable]:
        disk = Disk(tmp_path / "log", monkeypatch)
        scene = Durable(disk, Limits(**limits))
        try:
            yield scene
        finally:
            disk.free.set()
            await scene.server.aclose()

    return start


def commit(id: int, key: str = "run/a", size: int = 0) -> wire.Transact:
    return wire.Transact(id, id, id - 1, (Put(key, b"x" * size),), ())


def kinds(messages: list[Any]) -> list[tuple[str, int]]:
    return [(type(each).__name__, each.id) for each in messages]


async def test_a_commit_is_answered_when_the_disk_has_it_and_all_that_comes_after_it_then_too(durable: Start) -> None:
    async with durable() as scene:
        peer, other = scene.peer("peer"), scene.peer("other")
        scene.disk.hold_up()
        assert peer.says(commit(1), wire.Ping(2), wire.Get(3, "run/a")) == []
        await scene.disk.is_syncing()
        assert peer.says(wire.Ping(4)) == [], "not before the answers to what was asked before it"
        assert other.says(wire.Ping(5)) == [wire.Done(5)], "it tells nothing of the table"
        assert other.says(wire.Get(6, "run/b")) == []
        scene.disk.free.set()
        assert kinds(await scene.until_told(peer, 4)) == [("Transacted", 1), ("Done", 2), ("Found", 3), ("Done", 4)]
        assert kinds(await scene.until_told(other, 1)) == [("Found", 6)]
        assert peer.says(wire.Get(7, "none")) == [wire.Found(7, None)], "with nothing under way, at once"


async def test_requests_that_wait_for_the_disk_are_bounded(durable: Start) -> None:
    async with durable(in_flight=2) as scene:
        peer = scene.peer("peer")
        scene.disk.hold_up()
        revision = scene.server.table.revision
        assert peer.says(*(commit(id) for id in range(1, 6))) == []
        assert peer.says(commit(6)) == []
        assert not scene.server.turns._jobs, "what waits for the disk is not tried again and again"
        assert scene.server.table.revision == revision + 2
        assert peer.wire.calls[-1] == "pause"
        await scene.disk.is_syncing()
        assert peer.says(commit(7)) == []
        assert not scene.server.turns._jobs
        await anyio.sleep(0.02)
        assert scene.server.table.revision == revision + 2
        scene.disk.free.set()
        answers = await scene.until_told(peer, 7)
        assert kinds(answers) == [("Transacted", id) for id in range(1, 8)]
        assert scene.server.table.revision == revision + 7
        assert peer.wire.calls[-1] == "resume"
        peer.connection.data_received(b"".join(wire.frame(wire.Ping(id)) for id in (6, 7, 8)))
        assert kinds(await scene.until_told(peer, 3)) == [("Done", id) for id in (6, 7, 8)]


async def test_what_is_released_gives_back_as_much_as_was_held(durable: Start) -> None:
    async with durable(in_flight=3) as scene:
        peer = scene.peer("peer")
        revision = scene.server.table.revision
        scene.disk.hold_up()
        peer.says(commit(1))
        await scene.disk.is_syncing()
        peer.says(*(commit(id) for id in range(2, 8)))
        assert scene.server.table.revision == revision + 3, "three are in flight, one of them on its way to the disk"
        await scene.disk.let_one_through()
        assert kinds(await scene.until_told(peer, 1)) == [("Transacted", 1)]
        assert scene.server.table.revision == revision + 4, "one may follow it"
        await scene.disk.let_one_through()
        assert kinds(await scene.until_told(peer, 3)) == [("Transacted", id) for id in (2, 3, 4)]
        assert scene.server.table.revision == revision + 7
        scene.disk.free.set()
        assert kinds(await scene.until_told(peer, 3)) == [("Transacted", id) for id in (5, 6, 7)]


@pytest.mark.parametrize("end", ["lost", "refused"])
async def test_who_has_gone_is_told_nothing_when_the_disk_is_ready(durable: Start, end: str) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with durable() as scene:
        peer, other = scene.peer("peer"), scene.peer("other")
        scene.disk.hold_up()
        peer.says(commit(1))
        await scene.disk.is_syncing()
        if end == "lost":
            peer.loses()
            await anyio.sleep(0.01)
        else:
            peer.connection.refuse("code", "why")
            assert peer.hears() == [wire.Refused("code", "why")]
        scene.disk.free.set()
        other.says(commit(1, "run/b"))
        await scene.until_told(other, 1)
        assert peer.hears() == []
    assert errors == []


async def test_answers_that_wait_for_the_disk_count_as_unsent(durable: Start) -> None:
    async with durable(unsent=5000) as scene:
        peer, writer = scene.peer("peer"), scene.peer("writer")
        writer.says(commit(1, "run/large", 2000))
        await scene.until_told(writer, 1)
        scene.disk.hold_up()
        writer.says(commit(2))
        await scene.disk.is_syncing()
        assert peer.says(*(wire.Get(id, "run/large") for id in range(1, 10))) == []
        assert peer.wire.calls[-1] == "pause"
        assert len(peer.connection._out) < 5000 + 2100
        writer.says(commit(3))
        await scene.disk.let_one_through()
        await anyio.sleep(0.02)
        held = peer.connection._held
        assert held > 5000
        peer.says(wire.Get(10, "run/large"))
        assert (len(peer.connection._out), peer.connection._held) == (0, held)
        scene.disk.free.set()
        assert kinds(await scene.until_told(peer, 10)) == [("Found", id) for id in range(1, 11)]


async def test_news_wait_for_the_disk_too(durable: Start) -> None:
    async with durable() as scene:
        watcher, writer = scene.peer("watcher"), scene.peer("writer")
        watcher.says(wire.Follow(1, ("run/",), None))
        scene.disk.hold_up()
        writer.says(commit(2))
        await scene.disk.is_syncing()
        await anyio.sleep(0.02)
        assert watcher.hears() == []
        writer.says(commit(3, "run/b"))
        scene.disk.free.set()
        told = await scene.until_told(watcher, 2)
        assert [[entry.key for entry in each.listing.entries] for each in told] == [["run/a"], ["run/b"]]


async def test_who_has_much_to_wait_for_is_told_the_newest_afterwards(durable: Start) -> None:
    """What is held counts as what a peer has not read."""
    async with durable() as scene:
        watcher, writer = scene.peer("watcher"), scene.peer("writer")
        watcher.says(wire.Follow(1, ("run/",), None))
        scene.disk.hold_up()
        writer.says(commit(1, size=70_000))
        await scene.disk.is_syncing()
        writer.says(commit(2, size=70_001))
        await anyio.sleep(0.02)
        await scene.disk.let_one_through()
        for id in (3, 4):
            writer.says(commit(id, size=70_000 + id))
            await anyio.sleep(0.02)
        scene.disk.free.set()
        told: list[int] = []

        def is_newest() -> bool:
            told.extend(len(each.listing.entries[0].value) for each in watcher.hears())
            return bool(told) and told[-1] == 70_004

        await eventually(is_newest)
        assert 70_003 not in told


async def test_sessions_and_their_ends_are_in_the_log(durable: Start, tmp_path: Path) -> None:
    async with durable() as scene:
        peer = scene.peer("peer")
        peer.says(wire.OpenSession(1, 20.0, (Put("run/a", b"", OWN),)), wire.OpenSession(2, 20.0))
        first, second = await scene.until_told(peer, 2)
        peer.says(wire.EndSession(3, second.session))
        await scene.until_told(peer, 1)
        peer.says(commit(4, "run/b"))
        await scene.until_told(peer, 1)
        assert list(scene.server.table.snapshot().answers) == ["peer"]
        peer.says(wire.Goodbye())
        await eventually(lambda: scene.server.journal is not None and scene.server.journal.idle)
        snapshot = scene.server.table.snapshot()
    log = Log.open(str(tmp_path / "log"))
    log.close()
    assert log.table.snapshot() == snapshot
    assert ([entry.key for entry in snapshot.entries], snapshot.sessions, snapshot.answers) == (["run/b"], (), {})
    assert first.session != second.session


async def test_what_is_not_in_the_log_is_not_written_again(durable: Start) -> None:
    async with durable() as scene:
        peer = scene.peer("peer", revision=5000)
        assert scene.server.table.revision < 5000, "a log knows better than a client"
        journal = scene.server.journal
        assert journal is not None
        peer.says(wire.Transact(1, 1, 0, (), ()), wire.EndSession(2, "none"), wire.Renew(3, "none"))
        assert journal.idle
        peer.says(wire.Goodbye())
        assert journal.idle, "there is nothing to forget"


async def test_when_the_disk_fails_everybody_is_told_why_and_nobody_is_answered(durable: Start) -> None:
    async with durable() as scene:
        peer, other = scene.peer("peer"), scene.peer("other")
        scene.disk.fails = True
        peer.says(wire.OpenSession(1, 20.0, (Put("run/a", b"", OWN),)))
        with anyio.fail_after(10):
            await scene.server.failed.wait()
            await scene.server.without_sessions()
        for each in (peer, other):
            [told] = each.hears()
            assert isinstance(told, wire.Refused)
            assert told.code == wire.REFUSED_STORAGE
            assert told.message.startswith("the server's log failed: cannot sync the log")
        assert "Input/output error" in str(scene.server.failure)
        [told] = Peer(scene.server).greets("late")
        assert isinstance(told, wire.Refused)
        assert (told.code, told.message) == (wire.REFUSED_STORAGE, str(scene.server.failure))


async def test_who_does_not_come_back_after_a_restart_is_forgotten_in_the_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(port=0, data_dir=tmp_path) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet("old")
        peer.send(commit(1))
        assert isinstance(await peer.read(), wire.Transacted)
    async with serve(port=0, data_dir=tmp_path) as server:
        assert list(server.table.snapshot().answers) == ["old"]
        monkeypatch.setattr("rendezvous_async.backends.tcp.server.server.REMEMBER_CLIENT", 0.0)
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet("passer-by")
        await eventually(lambda: server.table.snapshot().answers == {})
    async with serve(port=0, data_dir=tmp_path) as server:
        assert server.table.snapshot().answers == {}
