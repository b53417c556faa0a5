"""Real processes on one directory: a linear history, kills at random moments, clocks that differ, stopped owners."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put, Watch
from rendezvous_async.backends.table.log import Log
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.file.processes import PATIENCE, Process, started


async def everyone(processes: list[Process], what: str, patience: float = PATIENCE) -> None:
    """Wait until each process has said ``what``."""
    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.until, what, patience)


async def show(watch: Watch, view: dict[str, bytes], done: Any) -> None:
    """Read a watch into ``view`` until ``done(view)``."""
    with anyio.fail_after(PATIENCE):
        while not done(view):
            for entry in (await watch.__anext__()).entries:
                if entry.value is None:
                    view.pop(entry.key, None)
                else:
                    view[entry.key] = entry.value


def check_history(said: list[list[Any]]) -> int:
    """Check that reads, commits and watches of one counter fit in one line; return how many commits won."""
    won = sorted((line[1:] for line in said if line[0] == "won"), key=lambda line: line[2])
    revisions = [revision for _, _, revision, _, _ in won]
    assert len(set(revisions)) == len(revisions)
    assert [value for *_, value in won] == list(range(1, len(won) + 1)), "a commit was lost, or won twice"
    for before, after in pairwise(won):
        assert after[3] == before[2], "a commit won on a token that was not the current one"
        assert not after[1] < before[0], "a commit that had ended is newer than one that had not begun"
    # Whatever was acknowledged before a read began, the read has seen; what it saw had begun before it ended.
    began = {revision: start for start, _, revision, _, _ in won}
    value_of = {revision: value for _, _, revision, _, value in won}
    ends = sorted((end, revision) for _, end, revision, _, _ in won)
    reads = sorted(line[1:] for line in said if line[0] == "read")
    newest = index = 0
    for start, end, revision in reads:
        while index < len(ends) and ends[index][0] < start:
            newest = max(newest, ends[index][1])
            index += 1
        assert (revision or 0) >= newest, "a read missed a commit that was acknowledged before it began"
        if revision is not None:
            assert began[revision] <= end, "a read saw a commit before it was made"
    for line in said:
        if line[0] == "saw":
            assert value_of[line[1]] == line[2]
    return len(won)


async def hammer(path: Path, processes: int, commits: int, **options: Any) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                started("increment", path=str(path), name=f"n{number:02}", commits=commits, options=options)
            )
            for number in range(processes)
        ]
        await everyone(workers, "ready")
        async with open_backend(f"file://{path}", run_id="hammer", **options) as backend:
            assert len((await backend.list("here/")).entries) == processes
            for worker in workers:
                worker.tell()
            await everyone(workers, "done")
            async with backend.watch("here/", "counter") as watch:
                view: dict[str, bytes] = {}
                await show(watch, view, lambda view: view.get("counter") == b"%d" % (processes * commits))
                for worker in workers:
                    worker.tell()
                async with anyio.create_task_group() as group:
                    for worker in workers:
                        group.start_soon(worker.rest)
                await show(watch, view, lambda view: len(view) == 1)
        for worker in workers:
            assert worker.process.returncode == 0
            seen = [line[1] for line in worker.said if line[0] == "saw"]
            assert seen == sorted(set(seen)), "a watch went back, or showed something twice"
        assert check_history([line for worker in workers for line in worker.said]) == processes * commits


async def test_sixteen_processes_make_one_history(tmp_path: Path) -> None:
    await hammer(tmp_path / "shared", 16, 10)


async def test_processes_without_notices_make_one_history(tmp_path: Path) -> None:
    await hammer(tmp_path / "shared", 4, 20, inotify=False, fsync=False)


async def test_a_lock_file_that_is_removed_again_and_again_lets_nobody_write_beside_another(tmp_path: Path) -> None:
    """Each process begins with a lock file of its own, and goes on while whatever lock file there is is removed."""
    path, processes, commits = tmp_path / "shared", 4, 40
    async with AsyncExitStack() as stack:
        workers = []
        for number in range(processes):
            worker = await stack.enter_async_context(
                started("increment", path=str(path), name=f"n{number:02}", commits=commits, options={"fsync": False})
            )
            await worker.until("ready")
            (path / "lock").unlink()
            workers.append(worker)

        async def remove() -> None:
            while True:
                (path / "lock").unlink(missing_ok=True)
                await anyio.sleep(0.005)

        async with anyio.create_task_group() as group:
            group.start_soon(remove)
            for worker in workers:
                worker.tell()
            await everyone(workers, "done")
            group.cancel_scope.cancel()
        for worker in workers:
            worker.tell()
        await everyone_ends(workers)
        assert [worker.process.returncode for worker in workers] == [0] * processes
        assert check_history([line for worker in workers for line in worker.said]) == processes * commits
    log = Log.open(str(path / "log"))  # which is sound
    log.close()


async def everyone_ends(processes: list[Process]) -> None:
    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.rest)


async def run_kits(path: Path, processes: int) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(started("kit", path=str(path), first=3 * number))
            for number in range(processes)
        ]
        await everyone(workers, "passed", 400)


async def test_the_kit_passes_in_two_processes_at_once(tmp_path: Path) -> None:
    await run_kits(tmp_path / "shared", 2)


@pytest.mark.slow
async def test_the_kit_passes_in_sixteen_processes_at_once(tmp_path: Path) -> None:
    await run_kits(tmp_path / "shared", 16)


async def kill_many(path: Path, kills: int, seed: int, **options: Any) -> None:
    """Kill random processes after random numbers of commits, while others go on; check that nothing is lost."""
    dice = random.Random(seed)
    acknowledged: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        count = 0

        async def start() -> Process:
            nonlocal count
            count += 1
            return await stack.enter_async_context(started("commit", path=str(path), name=f"n{count}", options=options))

        workers = [await start() for _ in range(4)]
        everybody = list(workers)
        await everyone(workers, "ready")
        for _ in range(kills):
            witness, victim = dice.sample(workers, 2)
            for _ in range(dice.randrange(30)):
                await victim.until("acknowledged")
            await victim.kill()
            workers.remove(victim)
            # No deadlock: another one goes on, past whatever it had said before.
            heard = len(witness.said)
            while len(witness.said) < heard + 5:
                await witness.until("acknowledged")
            workers.append(await start())
            everybody.append(workers[-1])
            await workers[-1].until("ready")
        async with open_backend(f"file://{path}", run_id="killed", **options) as backend:
            async with backend.watch("here/") as watch:
                await show(watch, {}, lambda view: len(view) == len(workers))
            for worker in workers:
                await worker.kill()
            for worker in everybody:
                acknowledged.update({line[1]: line[2] for line in worker.said if line[0] == "acknowledged"})
            there = {entry.key: entry.token.revision for entry in (await backend.list("done/")).entries}
            lost = {key: revision for key, revision in acknowledged.items() if there.get(key, 0) < revision}
            assert not lost, f"acknowledged, and gone: {sorted(lost)[:5]}"
            revisions = [line[2] for worker in everybody for line in worker.said if line[0] == "acknowledged"]
            assert len(revisions) > kills * 5
            assert len(set(revisions)) == len(revisions), "two commits have the same revision"
            for worker in everybody:
                assert_growing([line[1:] for line in worker.said if line[0] == "acknowledged"])
            everything = await backend.list("")
    log = Log.open(str(path / "log"))
    log.close()
    assert len(log.table) == len(everything.entries)


def assert_growing(acknowledged: list[list[Any]]) -> None:
    """Check that each lane of a process, which does one commit after the other, has growing revisions."""
    newest: dict[str, int] = {}
    for key, revision in acknowledged:
        lane = key.rpartition("/")[0]
        assert newest.get(lane, 0) < revision
        newest[lane] = revision


async def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    await kill_many(tmp_path / "shared", 20, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", [True, False])
async def test_two_hundred_kills_lose_nothing(tmp_path: Path, fsync: bool) -> None:
    await kill_many(tmp_path / "shared", 200, seed=6, fsync=fsync)


@pytest.mark.parametrize("inotify", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_wall_clocks_an_hour_apart_make_no_difference(tmp_path: Path, inotify: bool) -> None:
    """Each process forges the times of all files to its own wall clock, at each beat; nobody may care."""
    path = tmp_path / "shared"
    ttl = 0.8
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                started("live", path=str(path), ttl=ttl, ahead=ahead, options={"inotify": inotify})
            )
            for ahead in (-3600.0, 0.0, 3600.0)
        ]
        await everyone(workers, "ready")
        backend = await stack.enter_async_context(open_backend(f"file://{path}", run_id="live", inotify=inotify))
        watch = await stack.enter_async_context(backend.watch("node/"))
        view: dict[str, bytes] = {}
        await show(watch, view, lambda view: len(view) == 3)
        with anyio.move_on_after(2.5 * ttl):
            await show(watch, view, lambda view: len(view) < 3)
        assert len(view) == 3, "a living session was ended"
        for left, worker in enumerate(workers):
            worker.tell()
            await worker.until("silent")
            silent_at = anyio.current_time()
            await show(watch, view, lambda view, left=left: len(view) == 2 - left)
            took = anyio.current_time() - silent_at
            assert 0.7 * ttl < took < 3 * ttl, f"a silent session was ended after {took} s"
            await worker.until("lost")
            await worker.until("ended")


@asynccontextmanager
async def living(path: Path, ttl: float) -> AsyncIterator[tuple[Process, Watch, dict[str, bytes]]]:
    """A process with a session, as a watch here shows it."""
    async with (
        started("live", path=str(path), ttl=ttl, ahead=0, options={}) as worker,
        open_backend(f"file://{path}", run_id="live") as backend,
        backend.watch("node/") as watch,
    ):
        await worker.until("ready")  # it can be seen while it still has the lock, and must not be stopped with it
        view: dict[str, bytes] = {}
        await show(watch, view, lambda view: len(view) == 1)
        yield worker, watch, view


async def test_a_stopped_owner_finds_itself_out(tmp_path: Path) -> None:
    async with living(tmp_path / "shared", 1.0) as (worker, watch, view):
        worker.send(signal.SIGSTOP)
        await show(watch, view, lambda view: not view)
        worker.send(signal.SIGCONT)
        assert await worker.until("refused") == ["refused", "RendezvousSessionError"]
        worker.tell()
        await worker.until("ended")


async def test_a_killed_owner_is_known_long_before_its_ttl(tmp_path: Path) -> None:
    async with living(tmp_path / "shared", 600.0) as (worker, watch, view):
        worker.send(signal.SIGKILL)
        await show(watch, view, lambda view: not view)


async def test_a_stopped_process_with_the_lock_holds_up_writes_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}", run_id="held", timeout=1.0) as backend:
        session = await backend.open_session(60)
        async with started("hold_lock", path=str(path)) as worker:
            await worker.until("held")
            worker.send(signal.SIGSTOP)
            with pytest.raises(RendezvousConnectionError, match="a stopped process holds"):
                await backend.commit(Put("key", b"never"))
            for _ in range(5):
                await session.keep_alive()
                assert await backend.get("key") is None
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(backend.commit, Put("key", b"abandoned"))
                    await anyio.lowlevel.checkpoint()
                    scope.cancel()
            worker.send(signal.SIGCONT)
            worker.tell()
            await worker.until("released")
            with anyio.fail_after(PATIENCE):
                while True:
                    try:
                        await backend.commit(Put("other", b""))
                        break
                    except RendezvousConnectionError:
                        continue
            assert await backend.get("key") is None, "what was given up before it began was done all the same"
            await session.keep_alive()


async def test_a_dead_process_with_the_lock_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with open_backend(f"file://{path}", run_id="held") as backend:
        async with started("hold_lock", path=str(path)) as worker:
            await worker.until("held")
            async with anyio.create_task_group() as group:
                group.start_soon(backend.commit, Put("key", b"1"))
                await anyio.lowlevel.checkpoint()
                worker.send(signal.SIGKILL)
        assert await backend.get("key") is not None


async def test_a_file_that_cannot_grow_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    async with started("put_until_full", path=str(path), limit=50_000) as worker:
        _, kept, kind, text = await worker.until("full")
        assert kind == "RendezvousConnectionError"
        assert "File too large" in text
        assert 20 < kept < 50
        assert await worker.until("goes on") == ["goes on", kept]
        await worker.rest()
        assert worker.process.returncode == 0


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.slow)])
async def test_processes_form_a_world(tmp_path: Path, size: int) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(started("join", path=str(tmp_path / "shared"), size=size, options={}))
            for _ in range(size)
        ]
        await everyone(workers, "ready")
        for worker in workers:
            worker.tell()
        await everyone(workers, "joined")
        worlds = [worker.said[-1] for worker in workers]
        assert {(world[3], world[5], world[6]) for world in worlds} == {(1, size, worlds[0][6])}
        assert sorted(world[4] for world in worlds) == list(range(size))
        for worker in workers:
            worker.tell()
        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(worker.rest)
        assert [worker.process.returncode for worker in workers] == [0] * size
