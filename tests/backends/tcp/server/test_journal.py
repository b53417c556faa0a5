"""Nothing is sent before the disk has it; one sync serves many; and when the disk fails nothing is sent any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from rendezvous_async.backends.base import Put
from rendezvous_async.backends.table.frames import Committed
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.tcp.server import journal as module
from rendezvous_async.backends.tcp.server.journal import Journal
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.server.disk import Disk
from tests.backends.tcp.support import eventually


class Peer:
    """An outlet: what it has to say, and what was sent."""

    def __init__(self, name: str, sent: list[str]) -> None:
        self.name = name
        self.unsent = bytearray()
        self.sent = sent
        self.on_release: Callable[[], None] = lambda: None

    def take_unsent(self) -> bytearray:
        data, self.unsent = self.unsent, bytearray()
        return data

    def release(self, data: bytearray) -> None:
        self.sent.append(f"{self.name}:{data.decode()}")
        self.on_release()


class Server:
    """What of a server uses a journal: it changes the table, answers, and has the answers held."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.failures: list[Exception] = []
        self.sent: list[str] = []
        self.journal = Journal(disk.log, self.failures.append)

    def peer(self, name: str) -> Peer:
        return Peer(name, self.sent)

    def commit(self, key: str, *peers: Peer) -> None:
        """Change the table, and answer so."""
        writes = (Put(key, b"x" * 10),)
        self.disk.log.table.commit(writes)
        self.journal.record(Committed(writes))
        for peer in peers:
            self.answer(peer, key)

    def answer(self, peer: Peer, text: str) -> None:
        peer.unsent += text.encode()
        self.journal.hold(peer)

    def on_disk(self) -> list[str]:
        log = Log.open(str(self.disk.path), writer=False)
        log.close()
        return [entry.key for entry in log.table.snapshot().entries]


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    disk = Disk(tmp_path / "log", monkeypatch)
    server = Server(disk)
    yield server
    disk.free.set()
    with anyio.fail_after(10):
        await server.journal.aclose()
    disk.log.close()


async def test_an_answer_waits_for_the_disk(server: Server) -> None:
    assert server.journal.idle
    server.disk.hold_up()
    peer = server.peer("a")
    server.commit("1", peer)
    assert not server.journal.idle
    await server.disk.is_syncing()
    await anyio.sleep(0.02)
    assert server.sent == []
    server.disk.free.set()
    await eventually(lambda: bool(server.sent))
    assert server.sent == ["a:1"]
    assert server.on_disk() == ["1"]
    assert server.journal.idle
    assert (sum(server.journal.sync_times.counts), server.disk.syncs) == (1, 1)


async def test_one_sync_serves_what_happens_in_one_turn_and_what_happens_meanwhile_waits_for_the_next(
    server: Server,
) -> None:
    server.disk.hold_up()
    a, b = server.peer("a"), server.peer("b")
    server.commit("1", a)
    server.commit("2", b)
    await server.disk.is_syncing()
    server.commit("3", a)
    server.answer(b, "a read")
    server.commit("4", b)
    server.disk.free.set()
    await eventually(lambda: len(server.sent) == 4)
    assert server.sent == ["a:1", "b:2", "a:3", "b:a read4"]
    assert (sum(server.journal.sync_times.counts), server.disk.syncs) == (2, 2)
    assert server.on_disk() == ["1", "2", "3", "4"]


async def test_a_read_waits_for_the_change_that_it_saw_and_needs_no_sync_of_its_own(server: Server) -> None:
    server.disk.hold_up()
    writer, reader = server.peer("writer"), server.peer("reader")
    server.commit("1", writer)
    await server.disk.is_syncing()
    server.answer(reader, "1")
    server.disk.free.set()
    await eventually(lambda: len(server.sent) == 2)
    assert server.sent == ["writer:1", "reader:1"]
    assert (sum(server.journal.sync_times.counts), server.journal.idle) == (1, True)


async def test_who_asks_for_more_when_it_is_released_waits_again(server: Server) -> None:
    """The others that waited with it, and have nothing to wait for, wait for that too: they may have seen it."""
    server.disk.hold_up()
    first, second = server.peer("first"), server.peer("second")
    server.commit("1")
    await server.disk.is_syncing()
    server.answer(first, "read")
    server.answer(second, "read")

    def ask() -> None:
        first.on_release = lambda: None
        server.commit("2", first)
        server.disk.hold_up()

    first.on_release = ask
    server.disk.free.set()
    await eventually(lambda: bool(server.sent))
    await server.disk.is_syncing()
    assert server.sent == ["first:read"]
    server.disk.free.set()
    await eventually(lambda: len(server.sent) == 3)
    assert sorted(server.sent[1:]) == ["first:2", "second:read"]


async def test_many_are_released_over_several_turns_in_order(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """And meanwhile the next batch is not begun: its answers would go before those of this one."""
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 0.0)
    peers = [server.peer(str(number)) for number in range(20)]
    seen: list[tuple[int, bool]] = []

    def look() -> None:
        seen.append((len(server.sent), server.journal.idle))

    def commit() -> None:
        peers[2].on_release = lambda: None
        server.commit("2", peers[2])
        asyncio.get_running_loop().call_soon(look)

    peers[2].on_release = commit
    server.commit("1", *peers)
    await eventually(lambda: len(server.sent) == 21)
    assert seen == [(3, False)], "a slice each"
    assert server.sent == [*(f"{number}:1" for number in range(20)), "2:2"]
    assert sum(server.journal.sync_times.counts) == 2


async def test_all_are_released_in_one_turn_if_there_is_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 1000.0)
    a, b = server.peer("a"), server.peer("b")
    seen: list[list[str]] = []

    def look_soon() -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append([*server.sent]))

    a.on_release = look_soon
    server.commit("1", a, b)
    await eventually(lambda: bool(seen))
    assert seen == [["a:1", "b:1"]]


async def test_when_the_disk_fails_nobody_is_answered_any_more(server: Server) -> None:
    server.disk.hold_up()
    server.disk.fails = True
    a, b = server.peer("a"), server.peer("b")
    server.commit("1", a)
    await server.disk.is_syncing()
    server.commit("2", b)
    server.disk.free.set()
    await eventually(lambda: bool(server.failures))
    [failure] = server.failures
    assert isinstance(failure, RendezvousConnectionError)
    assert "Input/output error" in str(failure)
    server.commit("3", a)
    await anyio.sleep(0.02)
    assert (server.sent, server.journal.idle, len(server.failures)) == ([], False, 1)
    assert server.disk.syncs == 1
    assert " failed>" in repr(server.journal)
    with anyio.fail_after(10):
        await server.journal.aclose()


async def test_a_journal_that_has_failed_is_never_idle(server: Server) -> None:
    """Nothing may go out at once any more, though nothing is under way."""
    server.disk.fails = True
    server.commit("1")
    await eventually(lambda: bool(server.failures))
    assert not server.journal.idle


async def test_closing_the_log_holds_up_nobody_and_leaves_no_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_went_on, in_time = threading.Event(), list[bool]()
    close = server.disk.log.close

    def slow_close() -> None:
        in_time.append(others_went_on.wait(5))
        close()

    monkeypatch.setattr(server.disk.log, "close", slow_close)
    server.commit("1")
    asyncio.get_running_loop().call_later(0.02, others_went_on.set)
    await server.journal.aclose()
    assert in_time == [True]
    await eventually(lambda: not any(each.is_alive() for each in server.journal._thread._threads))


async def test_a_failure_that_is_no_exception_of_ours_is_told_too(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(BaseException):
        pass

    def fail(records: object) -> None:
        raise Odd("odd")

    monkeypatch.setattr(server.disk.log, "append", fail)
    server.commit("1", server.peer("a"))
    await eventually(lambda: bool(server.failures))
    assert str(server.failures[0]) == "Odd('odd')"
    assert server.sent == []


async def test_closing_waits_for_the_disk_and_closes_the_log_once(server: Server) -> None:
    server.disk.hold_up()
    server.commit("1", server.peer("a"))
    await server.disk.is_syncing()
    server.commit("2", server.peer("b"))
    closed: list[int] = []

    async def close(number: int) -> None:
        await server.journal.aclose()
        closed.append(number)

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(close, number)
        await anyio.sleep(0.02)
        assert closed == []
        server.disk.free.set()
    assert sorted(closed) == [0, 1, 2]
    assert server.on_disk() == ["1", "2"]
    assert server.disk.log._fd == -1
    Log.open(str(server.disk.path), exclusive=True).close()


async def test_who_is_cancelled_while_it_closes_takes_it_from_nobody(server: Server) -> None:
    server.disk.hold_up()
    server.commit("1", server.peer("a"))
    await server.disk.is_syncing()
    with anyio.move_on_after(0.01) as scope:
        await server.journal.aclose()
    assert scope.cancelled_caught
    server.disk.free.set()
    await server.journal.aclose()
    assert server.disk.log._fd == -1


# Snapshots


async def test_a_long_log_is_compacted_with_what_is_to_be_written(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit("1")
    await eventually(lambda: server.journal.idle)
    monkeypatch.setattr(Log, "is_long", True)
    syncs = server.disk.syncs
    server.commit("2", server.peer("a"))
    await eventually(lambda: server.sent == ["a:2"])
    assert server.disk.syncs == syncs, "the snapshot has it"
    assert "generation=2" in repr(server.disk.log)
    assert server.on_disk() == ["1", "2"]
    server.commit("3", server.peer("a"))
    await eventually(lambda: server.sent == ["a:2", "a:3"])
    assert "generation=3" in repr(server.disk.log)


async def test_without_a_snapshot_the_log_goes_on_and_tries_again_later(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def fail(snapshot: object) -> None:
        nonlocal tries
        tries += 1
        raise RendezvousConnectionError("no space left")

    monkeypatch.setattr(Log, "is_long", True)
    monkeypatch.setattr(server.disk.log, "compact", fail)
    now = 1000.0
    monkeypatch.setattr("rendezvous_async.aio.clock.now", lambda: now)
    for second, expected in ((0, 1), (1, 1), (module.RETRY_SNAPSHOT - 1, 1), (module.RETRY_SNAPSHOT, 2)):
        now = 1000.0 + second
        server.commit(str(second), server.peer("a"))
        await eventually(lambda: server.journal.idle)
        assert tries == expected
    assert len(server.sent) == 4
    assert len(server.on_disk()) == 4
    assert [each for each in caplog.messages if "continues" in each] == [
        "the log continues without a snapshot: no space left"
    ] * 2


async def test_a_snapshot_that_breaks_the_log_is_a_failure(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(snapshot: object) -> None:
        server.disk.log.broken = True
        raise RendezvousConnectionError("broken")

    monkeypatch.setattr(Log, "is_long", True)
    monkeypatch.setattr(server.disk.log, "compact", fail)
    server.commit("1", server.peer("a"))
    await eventually(lambda: bool(server.failures))
    assert [str(failure) for failure in server.failures] == ["broken"]
    assert server.sent == []


def test_a_loop_that_is_closed_under_a_write_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr("concurrent.futures._base.LOGGER.exception", lambda *_: errors.append(_))
    disk = Disk(tmp_path / "log", monkeypatch)
    disk.hold_up()

    async def main() -> Journal:
        server = Server(disk)
        server.commit("1")
        await disk.is_syncing()
        return server.journal

    journal = asyncio.run(main())
    disk.free.set()
    journal._thread.shutdown()
    assert errors == []
    disk.log.close()
