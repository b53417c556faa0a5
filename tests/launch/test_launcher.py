"""rdzv launch: what workers get, how a job ends, and what it survives; with real processes, killed for real."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

import rendezvous_async as library
from rendezvous_async.admin import close_run, read_status, scale_run
from rendezvous_async.backends.tcp import TcpServer, serve
from rendezvous_async.core.diagnosis import Role
from rendezvous_async.core.state import STATE
from tests.backends.tcp.support import eventually
from tests.cli.support import WAIT, Command, command
from tests.ports import free_port

WORKER = """
import os, sys, time
print("worker", os.getpid(), os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["RDZV_ROUND"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


class Worker(NamedTuple):
    pid: int
    rank: int
    size: int
    round: int


@pytest.fixture
async def server() -> AsyncIterator[TcpServer]:
    async with serve("127.0.0.1", 0) as server:
        yield server


def launch(endpoint: str, name: str, nodes: str, *more: str) -> AbstractAsyncContextManager[Command]:
    """A launcher whose stderr is read, too."""
    arguments = ("--run-id", "job", "--node", name, "--nodes", nodes, "--last-call", "0.3", *more)
    return command("launch", endpoint, *arguments, merged=True)


def waiting_for(file: Path) -> tuple[str, ...]:
    """Workers that end when there is a file."""
    return ("--", sys.executable, "-c", WORKER, str(file))


async def worker(launcher: Command, *, size: int, after: int = 0) -> Worker:
    """Wait for a worker in a world of this size, in a later round."""

    def wanted(line: str) -> bool:
        return line.startswith("worker ") and Worker(*map(int, line.split()[1:]))[2:] >= (size, after + 1)

    def exact(line: str) -> bool:
        return wanted(line) and int(line.split()[3]) == size

    return Worker(*map(int, (await launcher.line(exact)).split()[1:]))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


async def test_what_workers_get(server: TcpServer) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR RDZV_ROUND RDZV_RUN_ID RDZV_ENDPOINT"
    echo = "echo got " + " ".join(f"{name}=${name}" for name in names.split()) + " $MASTER_PORT $RDZV_TOKEN"
    async with launch(server.endpoint, "a", "1", "--nproc-per-node", "2", "--", "sh", "-c", echo) as launcher:
        assert await launcher.code() == 0
    lines = sorted(line.split() for line in launcher.lines if line.startswith("got "))
    for local, line in enumerate(lines):
        facts = dict(fact.split("=", 1) for fact in line[1:-2])
        assert facts == {
            "RANK": str(local),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "RDZV_ROUND": "1",
            "RDZV_RUN_ID": "job",
            "RDZV_ENDPOINT": server.endpoint,
        }
        assert 0 < int(line[-2]) < 65536
        assert line[-1].startswith(f"{server.table.epoch}:")
    assert len(lines) == 2


async def test_a_worker_is_killed(server: TcpServer, tmp_path: Path) -> None:
    job = waiting_for(tmp_path / "end")
    async with launch(server.endpoint, "a", "2", *job) as a, launch(server.endpoint, "b", "2", *job) as b:
        before = [await worker(a, size=2), await worker(b, size=2)]
        assert {w.rank for w in before} == {0, 1}
        os.kill(before[0].pid, signal.SIGKILL)
        after = [await worker(a, size=2, after=1), await worker(b, size=2, after=1)]
        assert [w.rank for w in after] == [w.rank for w in before]
        assert is_gone(before[1].pid)
        (tmp_path / "end").touch()
        assert await a.code() == 0
        assert await b.code() == 0
    assert any("code 137; restart 1 of 3" in line for line in a.lines)


async def test_a_launcher_comes_late_and_is_killed(server: TcpServer, tmp_path: Path) -> None:
    """Its workers die with it, and the other goes on."""
    job = waiting_for(tmp_path / "end")
    async with launch(server.endpoint, "a", "1:2", "--max-restarts", "0", *job) as a:
        alone = await worker(a, size=1)
        async with launch(server.endpoint, "b", "1:2", *job) as b:
            first, late = await worker(a, size=2), await worker(b, size=2)
            assert (first.rank, late.rank) == (0, 1)
            assert is_gone(alone.pid)
            b.signal(signal.SIGKILL)
            await eventually(lambda: is_gone(late.pid))
        again = await worker(a, size=1, after=first.round)
        assert again.rank == 0
        (tmp_path / "end").touch()
        assert await a.code() == 0


async def test_the_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    serving = ("serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"))
    job = waiting_for(tmp_path / "end")
    async with command(*serving) as first:
        endpoint = (await first.line("ready ")).split()[1] + "?is_host=false"
        async with launch(endpoint, "a", "2", *job) as a, launch(endpoint, "b", "2", *job) as b:
            await worker(a, size=2)
            await worker(b, size=2)
            first.signal(signal.SIGKILL)
            await first.code()
            async with command(*serving) as second:
                await second.line("ready ")
                (tmp_path / "end").touch()
                assert await a.code() == 0
                assert await b.code() == 0
                async with library.open_backend(endpoint, run_id="job") as backend:
                    state = await backend.get("state")
                    assert state is not None
                    assert b"the job is done" in (state.value or b"")


async def test_restarts_run_out(server: TcpServer, tmp_path: Path) -> None:
    """The launcher ends with the worker's code; too few are left, so the run is closed, and the other ends with 1."""
    failing = ("--max-restarts", "1", "--", "sh", "-c", "echo try; exit 7")
    async with launch(server.endpoint, "a", "2", *waiting_for(tmp_path / "end")) as a:
        async with launch(server.endpoint, "b", "2", *failing) as b:
            assert await b.code() == 7
        assert b.lines.count("try") == 2
        assert await a.code() == 1
    assert "the job failed: a worker on node b exited with code 7" in a.lines[-1]


async def test_a_run_is_scaled_while_it_trains(server: TcpServer, tmp_path: Path) -> None:
    """Down, and up beyond the --nodes that all launchers were started with; one that comes late brings the same."""
    job = waiting_for(tmp_path / "end")
    async with AsyncExitStack() as stack:
        a, b, c = [await stack.enter_async_context(launch(server.endpoint, name, "2:3", *job)) for name in "abc"]
        for launcher in (a, b, c):
            await worker(launcher, size=3)
        backend = await stack.enter_async_context(library.open_backend(server.endpoint, run_id="job", is_host="false"))
        assert (await scale_run(backend, "1:2")).nodes == "1:2"
        for launcher in (a, b, c):
            await launcher.line("round 1: the run was scaled; joining the next round")
        status = await eventually_formed(backend, 2)
        members = [{"a": a, "b": b, "c": c}[name] for name in status.nodes(Role.MEMBER)]
        for launcher in members:
            assert (await worker(launcher, size=2, after=1)).round == 2
        await scale_run(backend, "1:8", target=4)
        d = await stack.enter_async_context(launch(server.endpoint, "d", "2:3", *job))
        ranks = {(await worker(launcher, size=4)).rank for launcher in (a, b, c, d)}
        assert ranks == {0, 1, 2, 3}
        (tmp_path / "end").touch()
        assert [await launcher.code() for launcher in (a, b, c, d)] == [0, 0, 0, 0]


async def eventually_formed(backend: library.Backend, size: int) -> library.Status:
    """Wait for a round of this size."""
    with anyio.fail_after(WAIT):
        async with backend.watch(STATE) as watch:
            async for _ in watch:
                status = await read_status(backend)
                if len(status.nodes(Role.MEMBER)) == size:
                    return status
    raise AssertionError


@pytest.mark.parametrize("spare", [False, True], ids=["smaller", "with a spare"])
async def test_restarts_run_out_and_the_others_can_go_on(server: TcpServer, tmp_path: Path, spare: bool) -> None:
    """By the sizes that hold now, not by those that the launcher was started with; and a spare takes the place."""
    nodes, size = ("2", 2) if spare else ("2:2", 1)
    job = waiting_for(tmp_path / "end")
    fails = ("--max-restarts", "0", "--", "sh", "-c", f"while [ ! -e {tmp_path}/fail ]; do sleep 0.05; done; exit 7")
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(launch(server.endpoint, "a", nodes, *job))
        b = await stack.enter_async_context(launch(server.endpoint, "b", nodes, *fails))
        await worker(a, size=2)
        backend = await stack.enter_async_context(library.open_backend(server.endpoint, run_id="job", is_host="false"))
        if spare:
            c = await stack.enter_async_context(launch(server.endpoint, "c", nodes, *job))
            await c.line("c (spare)")
        else:
            await scale_run(backend, "1:2")
        (tmp_path / "fail").touch()
        assert await b.code() == 7
        assert "the other nodes can continue without this one" in b.lines[-1]
        assert (await worker(a, size=size, after=1)).size == size
        (tmp_path / "end").touch()
        assert await a.code() == 0


@pytest.mark.parametrize(
    ("command_line", "code"),
    [
        ("trap 'echo trapped; exit 0' TERM; echo up; while :; do sleep 0.05; done", 143),
        ("trap '' TERM; echo up; sleep 60", 143),
    ],
    ids=["obeys", "has to be killed"],
)
async def test_signals_are_passed_on(server: TcpServer, command_line: str, code: int) -> None:
    async with launch(server.endpoint, "a", "1", "--grace", "0.5", "--", "sh", "-c", command_line) as a:
        await a.line("up")
        a.signal(signal.SIGTERM)
        assert await a.code() == code
    assert ("trapped" in a.lines) == ("trapped" in command_line)
    async with library.open_backend(server.endpoint, run_id="job", is_host="false") as backend:
        assert not (await backend.list("nodes/")).entries, "it has left"


async def test_a_second_signal_does_not_wait_for_the_grace(server: TcpServer) -> None:
    stubborn = "trap '' TERM; trap 'echo usr1' USR1; echo up; while :; do sleep 0.05; done"
    async with launch(server.endpoint, "a", "1", "--grace", "600", "--", "sh", "-c", stubborn) as a:
        await a.line("up")
        a.signal(signal.SIGUSR1)
        await a.line("usr1")
        a.signal(signal.SIGTERM)
        await a.line("stopping the workers")
        a.signal(signal.SIGTERM)
        assert await a.code() == 143


async def test_a_run_that_is_closed_by_hand(server: TcpServer, tmp_path: Path) -> None:
    async with launch(server.endpoint, "a", "1", *waiting_for(tmp_path / "end")) as a:
        running = await worker(a, size=1)
        async with library.open_backend(server.endpoint, run_id="job", is_host="false") as backend:
            await close_run(backend, "enough", "somebody")
        assert await a.code() == 4
        assert is_gone(running.pid)
    assert "somebody: enough" in a.lines[-1]
    async with launch(server.endpoint, "late", "1", "--", "true") as late:
        assert await late.code() == 4


async def test_a_strange_member_neither_ends_nor_steers_a_launcher(server: TcpServer) -> None:
    """Its label ended the others with a ValueError, its name reached their terminals, and forged lines there."""
    evil = "\x1b[2Jevil\nrdzv: all is well"
    echo = "echo size $WORLD_SIZE; sleep 60"
    async with launch(server.endpoint, "a", "1:2", "--grace", "0.1", "--", "sh", "-c", echo) as a:
        await a.line("size 1")
        member = library.connect(
            server.endpoint,
            run_id="job",
            nodes="1:2",
            node=evil,
            timeouts=library.Timeouts(last_call=0.3),
            labels={"nproc": "\x1b[31mmany"},
            is_host=False,
        )
        async with member:
            await member.join()
            await a.line("size 2")
            await member.close("\x1b]0;owned\x07\nrdzv: all is well")
            assert await a.code() == 4
    assert not [line for line in a.lines if not line.isprintable() or line.startswith("rdzv: all")], a.lines
    assert any("assuming 1 worker" in line for line in a.lines)


async def test_the_secret_stays_with_the_launcher() -> None:
    async with serve("127.0.0.1", 0, secret="sesame") as server:
        endpoint = f"{server.endpoint}?secret=sesame&is_host=false"
        show = "echo got $RDZV_ENDPOINT; env | grep sesame || true"
        async with launch(endpoint, "a", "1", "--", "sh", "-c", show) as a:
            assert await a.code() == 0
    assert f"got {server.endpoint}?is_host=false" in a.lines
    assert not [line for line in a.lines if "sesame" in line]


async def test_a_command_that_is_not_there(server: TcpServer) -> None:
    async with launch(server.endpoint, "a", "1", "--", "no-such-command") as a:
        assert await a.code() == 127
    assert a.lines[-1] == "rdzv: cannot run 'no-such-command': No such file or directory"


async def test_other_settings_than_the_run_has(server: TcpServer, tmp_path: Path) -> None:
    async with launch(server.endpoint, "a", "1", *waiting_for(tmp_path / "end")) as a:
        await worker(a, size=1)
        async with launch(server.endpoint, "b", "1:5", "--", "true") as b:
            assert await b.code() == 2
        assert b.lines[-1].startswith("rdzv: run 'job'")
