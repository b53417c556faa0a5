"""What was acknowledged is on disk: servers killed at any moment, disks that fill up, logs that grow."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import World
from rendezvous_async.backends.base import Backend, Condition, Put, Token
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.tcp import Limits, serve, wire
from rendezvous_async.backends.tcp.server.serving import LOG_NAME
from rendezvous_async.errors import RendezvousConnectionError, RendezvousStateError
from tests.backends.tcp.support import RawClient, ServerProcess, connect, connected, driver_of, eventually

WAIT = 60.0


class Writers:
    """Write new keys and count up old ones, and remember what was acknowledged."""

    def __init__(self, backends: list[Backend]) -> None:
        self.backends = backends
        self.acknowledged: dict[str, tuple[bytes, Token]] = {}
        self.counts = [0] * len(backends)
        self.commits = 0

    async def write(self, number: int) -> None:
        backend = self.backends[number]
        token: Token | None = None
        while True:
            count = b"%d" % (self.counts[number] + 1)
            new = f"{number}/{self.counts[number]}"
            key = f"counter/{number}"
            commit = await backend.commit(Put(key, count), Put(new, count), when=[Condition(key, token)])
            # Nobody else writes this key: it loses only if an earlier commit was done twice, or undone.
            assert commit.won, (key, token, commit)
            token = commit.token
            self.counts[number] += 1
            self.acknowledged[key] = self.acknowledged[new] = count, token
            self.commits += 1

    async def check(self, backend: Backend) -> None:
        expected, counts = dict(self.acknowledged), list(self.counts)  # the writers go on while this reads
        found = {entry.key: (entry.value, entry.token) for entry in (await backend.list("")).entries}
        for key, (value, token) in expected.items():
            if not key.startswith("counter/"):
                assert found.get(key) == (value, token), key
        for number, count in enumerate(counts):
            current = int(found[f"counter/{number}"][0] or b"")
            assert count <= current <= self.counts[number] + 1  # one may be on its way


async def hold_a_world(stack: AsyncExitStack, endpoint: str) -> list[World]:
    """Let three nodes join a round that nobody has a reason to leave; its worlds must stay as they are."""
    nodes = [
        await stack.enter_async_context(
            rdzv.connect(
                f"{endpoint}?is_host=false",
                run_id="job",
                nodes=3,
                timeouts=rdzv.Timeouts(join=WAIT),
                keep_alive_interval=2,
                keep_alive_max_attempt=30,
            )
        )
        for _ in range(3)
    ]
    worlds: list[World] = []

    async def join(node: rdzv.Rendezvous) -> None:
        worlds.append(await node.join())

    async with anyio.create_task_group() as group:
        for node in nodes:
            group.start_soon(join, node)
    return worlds


async def survive(data_dir: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    async with (
        ServerProcess(data_dir) as server,
        connected(server.endpoint) as reader,
        AsyncExitStack() as stack,
    ):
        worlds = await hold_a_world(stack, server.endpoint)
        backends = [await connect(server.endpoint) for _ in range(4)]
        session = await reader.open_session(60)
        first = await reader.commit(Put("bound", b"", session.id))
        writers = Writers(backends)
        async with anyio.create_task_group() as group:
            for number in range(len(backends)):
                group.start_soon(writers.write, number)
            for _ in range(kills):
                before = writers.commits
                await eventually(lambda before=before: writers.commits > before, WAIT)  # type: ignore[misc]
                await anyio.sleep(rng.random() * 0.1)
                await server.kill()
                await server.start()
                with anyio.fail_after(WAIT):
                    await writers.check(reader)
                    await session.keep_alive()
                    # The server was back within their TTL: the members still hold their round, and may write in it.
                    for world in worlds:
                        await world.store.set(f"kept by {world.rank}", b"")
                    assert [world.change for world in worlds] == [None] * 3
            group.cancel_scope.cancel()
        with anyio.fail_after(WAIT):
            entry = await reader.get("bound")
            assert entry is not None
            assert entry.token == first.token  # the same epoch, the same session
            await session.keep_alive()
            for backend in backends:
                await backend.aclose()


async def test_acknowledged_commits_and_rounds_survive_kills(tmp_path: Path) -> None:
    await survive(tmp_path, kills=4, seed=1)


@pytest.mark.slow
async def test_acknowledged_commits_and_rounds_survive_200_kills(tmp_path: Path) -> None:
    await survive(tmp_path, kills=200, seed=2)


async def test_watches_and_sessions_go_on_after_a_restart(tmp_path: Path) -> None:
    async with (
        ServerProcess(tmp_path) as server,
        connected(server.endpoint) as backend,
        connected(server.endpoint) as other,
        other.watch("a/") as watch,
    ):
        session = await backend.open_session(5)
        await backend.commit(Put("a/bound", b"1", session.id))
        while not (await anext(watch)).entries:
            pass
        await server.kill()
        await server.start()
        with anyio.fail_after(WAIT):
            await session.keep_alive()
            await backend.commit(Put("a/bound", b"2", session.id))
            listing = await anext(watch)
            assert [(entry.key, entry.value) for entry in listing.entries] == [("a/bound", b"2")]
            assert not listing.complete  # it went on, it did not start over
            await session.aclose()
            assert [entry.value for entry in (await anext(watch)).entries] == [None]


async def test_a_session_whose_owner_is_gone_has_a_full_ttl_after_a_restart(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path) as server:
        async with connected(server.endpoint) as backend:
            session = await backend.open_session(2.5)
            await backend.commit(Put("bound", b"", session.id))
            await server.kill()
        restarted_at = anyio.current_time()
        await server.start()
        async with connected(server.endpoint) as other, other.watch("bound") as watch:
            with anyio.fail_after(WAIT):
                assert len((await anext(watch)).entries) == 1
                assert [entry.value for entry in (await anext(watch)).entries] == [None]
            assert 2.5 <= anyio.current_time() - restarted_at <= 10


async def test_one_sync_serves_many_commits(tmp_path: Path) -> None:
    async with serve(port=0, data_dir=tmp_path) as server, connected(server.endpoint) as backend:
        async with anyio.create_task_group() as group:
            for number in range(500):
                group.start_soon(backend.commit, Put(f"key/{number}", b"x"))
        assert server.table.revision == 500
        assert server.journal is not None
        assert sum(server.journal.sync_times.counts) < 100


async def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = tmp_path / LOG_NAME
    async with serve(port=0, data_dir=tmp_path) as server, connected(server.endpoint) as backend:
        largest = 0
        for number in range(120):
            await backend.commit(Put("key", b"%6d" % number + b"x" * 100_000))
            largest = max(largest, log.stat().st_size)
        assert largest < 4_000_000  # of 12 MB that were written
    async with serve(port=0, data_dir=tmp_path) as server, connected(server.endpoint) as backend:
        entry = await backend.get("key")
        assert entry is not None
        assert entry.value is not None
        assert entry.value.startswith(b"   119")


@pytest.mark.parametrize("data_dir", [True, False], ids=["on disk", "in memory"])
async def test_a_server_may_be_closed_twice(data_dir: bool, tmp_path: Path) -> None:
    async with serve(port=0, data_dir=tmp_path if data_dir else None) as server, connected(server.endpoint) as backend:
        await backend.commit(Put("key", b""))
        async with anyio.create_task_group() as group:
            group.start_soon(server.aclose)
            group.start_soon(server.aclose)


async def test_who_is_cancelled_while_it_closes_a_server_may_close_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_close = threading.Event(), threading.Event()
    close = Log.close

    def slow(log: Log) -> None:
        begun.set()
        may_close.wait(WAIT)
        close(log)

    async with serve(port=0, data_dir=tmp_path) as server:
        monkeypatch.setattr(Log, "close", slow)
        async with anyio.create_task_group() as group:
            group.start_soon(server.aclose)
            await eventually(begun.is_set, WAIT)
            group.cancel_scope.cancel()
        may_close.set()
    async with serve(port=0, data_dir=tmp_path):
        pass


async def test_a_directory_has_one_server(tmp_path: Path) -> None:
    async with serve(port=0, data_dir=tmp_path):
        with pytest.raises(RendezvousStateError, match="in use by another"):
            async with serve(port=0, data_dir=tmp_path):
                pass
    async with serve(port=0, data_dir=tmp_path):
        pass


async def test_a_full_disk_stops_the_server_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """The file may not grow past 300 kB: the write fails as on a full disk."""
    server = ServerProcess(tmp_path, file_size=300_000)
    acknowledged: list[int] = []
    async with server, connected(server.endpoint) as backend, connected(server.endpoint) as other:
        with pytest.raises(RendezvousConnectionError, match="cannot write to the log"), anyio.fail_after(WAIT):
            for number in range(100):
                await backend.commit(Put(f"key/{number}", b"x" * 10_000))
                acknowledged.append(number)
        # What memory holds is not what a restart would find: nobody else reads it either.
        await eventually(lambda: any("cannot write to the log" in line for line in driver_of(other).attempts), WAIT)
        with pytest.raises(RendezvousConnectionError, match="connection refused"):
            async with connected(server.endpoint, connect_timeout=0.2):
                pass
    assert len(acknowledged) > 10
    async with serve(port=0, data_dir=tmp_path) as again, connected(again.endpoint) as backend:
        assert len((await backend.list("key/")).entries) == len(acknowledged)


class Gate:
    """In the place of ``os.fdatasync``: the test says how many syncs may end."""

    def __init__(self) -> None:
        self.begun = 0
        self._may_end = threading.Semaphore(0)
        self._open = False
        self._fdatasync = os.fdatasync

    def __call__(self, fd: int) -> None:
        self.begun += 1
        if not self._open:
            assert self._may_end.acquire(timeout=WAIT)
        self._fdatasync(fd)

    def let_one_end(self) -> None:
        self._may_end.release()

    def open(self) -> None:
        self._open = True
        self._may_end.release()


@pytest.mark.parametrize("size", [1, 100_000, 300_000], ids=["small news", "large news", "more than may wait"])
async def test_who_watches_what_changes_all_the_time_is_still_answered(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With news for it in every sync there was never a moment without something unsent, and it was not read again."""
    many, in_flight = 100, 20
    gate = Gate()
    async with (
        serve(port=0, data_dir=tmp_path, limits=Limits(in_flight=in_flight)) as server,
        connected(server.endpoint) as writer,
        RawClient.connect(server.endpoint) as peer,
    ):
        await peer.greet()
        peer.send(wire.Follow(1, (f"{writer.prefix}key",), None))
        assert isinstance(await peer.read(), wire.Changed)
        answered: list[int] = []

        async def read() -> None:
            while len(answered) < many:
                answer = await peer.read()
                if isinstance(answer, wire.Done):
                    answered.append(answer.id)

        monkeypatch.setattr(os, "fdatasync", gate)
        # A snapshot would not come to the gate.
        monkeypatch.setattr("rendezvous_async.backends.table.log._SMALL", 2**40)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                # One commit is being synced, and the next one is there before the sync may end.
                for number in range(4 * many // in_flight):
                    await eventually(lambda number=number: gate.begun == number, WAIT)  # type: ignore[misc]
                    if number == 1:
                        peer.send(*(wire.Ping(id) for id in range(many)))
                    group.start_soon(writer.commit, Put("key", b"%d" % number * size))
                    await eventually(lambda number=number: server.table.revision == number + 1, WAIT)  # type: ignore[misc]
                    if number:
                        gate.let_one_end()
                await eventually(lambda: len(answered) == many, WAIT)
                assert server.journal is not None
                assert not server.journal.idle
                assert answered == list(range(many))
                gate.open()
        finally:
            gate.open()


async def test_a_sign_of_life_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may write so much that a sync takes seconds; what was read while it lasts still waits for it."""
    gate = Gate()
    async with (
        serve(port=0, data_dir=tmp_path) as server,
        connected(server.endpoint) as writer,
        RawClient.connect(server.endpoint) as peer,
        anyio.create_task_group() as group,
    ):
        await peer.greet()
        peer.send(wire.OpenSession(1, 60.0))
        opened = await peer.read()
        assert isinstance(opened, wire.SessionOpened)
        monkeypatch.setattr(os, "fdatasync", gate)
        try:
            group.start_soon(writer.commit, Put("key", b"x"))
            await eventually(lambda: gate.begun == 1, WAIT)
            peer.send(wire.Ping(2), wire.Renew(3, opened.session))
            assert [await peer.read() for _ in range(2)] == [wire.Done(2), wire.Done(3)]
            peer.send(wire.Get(4, f"{writer.prefix}key"), wire.Ping(5))
            with anyio.move_on_after(0.05):
                raise AssertionError(f"{await peer.read()} though it is not on disk yet")
        finally:
            gate.open()
        assert [type(await peer.read()) for _ in range(2)] == [wire.Found, wire.Done]


@pytest.mark.parametrize("end", ["goodbye", "time"])
async def test_a_client_that_was_forgotten_is_forgotten_after_a_restart_too(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next first commit is another one: a replay that still knows the old one's answer would leave it out."""
    if end == "time":
        monkeypatch.setattr("rendezvous_async.backends.tcp.server.server.REMEMBER_CLIENT", 0.0)
    async with serve(port=0, data_dir=tmp_path) as server:
        for number in range(2):
            async with RawClient.connect(server.endpoint) as peer:
                await peer.greet("client", number)
                peer.send(wire.Transact(1, 1, 0, (Put(f"run/{number}", b""),), ()))
                committed = await peer.read()
                assert isinstance(committed, wire.Transacted)
                assert committed.commit.token.revision == number + 1
                if end == "goodbye":
                    peer.send(wire.Goodbye())
                    await peer.read_end()
            await eventually(lambda: server.connections == 0, WAIT)
        assert server.table.snapshot().answers == {}
        kept = server.table.snapshot()
    log = Log.open(str(tmp_path / LOG_NAME))
    log.close()
    assert log.table.snapshot() == kept


async def test_nothing_is_acknowledged_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes its time: neither the commit's author nor a reader hears of it before the sync is done."""
    synced, begun = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def slow(fd: int) -> None:
        begun.set()
        synced.wait(WAIT)
        fdatasync(fd)

    told = []

    async def tell(call: Callable[[], Awaitable[object]]) -> None:
        told.append(await call())

    async with (
        serve(port=0, data_dir=tmp_path) as server,
        connected(server.endpoint) as writer,
        connected(server.endpoint) as reader,
    ):
        monkeypatch.setattr(os, "fdatasync", slow)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(tell, lambda: writer.commit(Put("key", b"value")))
                await eventually(begun.is_set, WAIT)
                group.start_soon(tell, lambda: reader.get("key"))
                await anyio.sleep(0.3)
                assert told == []
                synced.set()
            assert len(told) == 2
        finally:
            synced.set()
