"""status, watch, scale, close and evict, against a real server with real nodes; and what they say to nonsense."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

import rendezvous_async as library
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import TcpServer, serve
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import Head
from tests.backends.tcp.support import eventually
from tests.cli.support import Command, Result, assert_one_line, command, rdzv
from tests.ports import free_port

Rdzv = Callable[..., Coroutine[None, None, Result]]
TIMEOUTS = library.Timeouts(join=30, last_call=0.1, regroup=0.1, close=5)


@pytest.fixture
async def server() -> AsyncIterator[TcpServer]:
    async with serve("127.0.0.1", 0) as server:
        yield server


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Rdzv:
    """``rdzv`` in a thread of this process, so that the server's loop goes on."""

    async def run(*arguments: str) -> Result:
        return await anyio.to_thread.run_sync(lambda: rdzv(capsys, *arguments))

    return run


async def node(
    stack: AsyncExitStack, server: TcpServer, name: str, nodes: str = "2:2", timeouts: library.Timeouts = TIMEOUTS
) -> library.Rendezvous:
    return await stack.enter_async_context(
        library.connect(server.endpoint, run_id="job", nodes=nodes, node=name, timeouts=timeouts, is_host="false")
    )


async def join_all(*nodes: library.Rendezvous) -> None:
    async with anyio.create_task_group() as group:
        for rendezvous in nodes:
            group.start_soon(rendezvous.join)


async def test_status_says_why_a_run_has_not_formed(server: TcpServer, run: Rdzv) -> None:
    async with AsyncExitStack() as stack:
        first = await node(stack, server, "a")
        async with anyio.create_task_group() as group:
            group.start_soon(first.join)
            await eventually(lambda: bool(server.table.list("rendezvous_async/job/nodes/").entries))
            result = await run("status", server.endpoint, "--run-id", "job")
            assert result.code == 0
            assert "1 more must join before a round can form" in result.out
            second = await node(stack, server, "b")
            await second.join()
        result = await run("status", server.endpoint, "--run-id", "job", "--json")
        status = json.loads(result.out)
        assert (status["round"], status["phase"], len(status["here"])) == (1, "formed", 2)


async def test_watch_tells_every_change(server: TcpServer) -> None:
    async with AsyncExitStack() as stack, command("watch", server.endpoint, "--run-id", "job", "--wait") as watch:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        await watch.line("round 1 has formed with 2 members")
        await b.leave()
        await watch.line("gone: b")
        await a.close("enough")
        assert await watch.code() == 0
    assert "closed by a: enough" in watch.lines[-1]


async def watched_on_a_killed_server(stack: AsyncExitStack, *serving: str) -> tuple[library.Rendezvous, Command, str]:
    """Return a node in round 1, ``rdzv watch`` of its run, and the endpoint of their server, which was killed since."""
    server = await stack.enter_async_context(command(*serving))
    endpoint = (await server.line("ready ")).split()[1]
    a = library.connect(endpoint, run_id="job", nodes="1", node="a", is_host=False)
    await stack.enter_async_context(a)
    await a.join()
    watch = await stack.enter_async_context(command("watch", endpoint, "--run-id", "job"))
    await watch.line("round 1 has formed")
    server.signal(signal.SIGKILL)
    await server.code()
    return a, watch, endpoint


async def test_watch_tells_that_the_server_is_gone_and_back(tmp_path: Path) -> None:
    serving = ("serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"))
    async with AsyncExitStack() as stack:
        a, watch, endpoint = await watched_on_a_killed_server(stack, *serving)
        await watch.line(lambda line: endpoint in line and ("cannot reach" in line or "no connection" in line))
        second = await stack.enter_async_context(command(*serving))
        await second.line("ready ")
        await watch.line("is reachable again")
        await a.close("enough")
        assert await watch.code() == 0


async def test_watch_goes_on_when_the_server_has_forgotten_the_run() -> None:
    serving = ("serve", "--port", str(free_port()))
    async with AsyncExitStack() as stack:
        a, watch, _ = await watched_on_a_killed_server(stack, *serving)
        second = await stack.enter_async_context(command(*serving))
        await second.line("ready ")
        before = watch.lines.index(await watch.line("the backend has lost the run's state"))
        await a.join()
        await watch.line("has formed with 1 member", after=before)


async def test_evict_throws_a_node_out(server: TcpServer, run: Rdzv) -> None:
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        assert (await run("evict", server.endpoint, "--run-id", "job", "b")).code == 0
        assert b.world is not None
        assert a.world is not None
        with anyio.fail_after(10):
            assert await b.world.changed() in (library.Change.EVICTED, library.Change.MEMBER_LOST)
            assert await a.world.changed() is library.Change.MEMBER_LOST
        assert_one_line(await run("evict", server.endpoint, "--run-id", "job", "b"), 6, "no node 'b'")


async def test_close_and_purge(server: TcpServer, run: Rdzv) -> None:
    where = (server.endpoint, "--run-id", "job")
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        result = await run("close", *where, "--reason", "bad data")
        assert result.code == 0
        with pytest.raises(library.RendezvousClosedError, match="bad data"):
            await a.join()
        assert_one_line(await run("close", *where, "--reason", "again"), 4, "bad data")
        assert_one_line(await run("status", *where), 4, "closed")
        assert_one_line(await run("watch", *where), 4, "bad data")
        assert_one_line(await run("evict", *where, "c"), 4, "bad data")
        late = await run("close", *where, "--purge", "--timeout", "0.3")
        assert late.code == 5, "b is still here"
        assert "rdzv status" in late.err
    assert (await run("close", *where, "--purge")).code == 0
    assert len(server.table) == 0


async def test_scale_says_what_held_what_holds_and_what_is_next(server: TcpServer, run: Rdzv) -> None:
    where = (server.endpoint, "--run-id", "job")
    async with AsyncExitStack() as stack:
        a, b, c = [await node(stack, server, name, "2:3") for name in "abc"]
        await join_all(a, b, c)
        watch = await stack.enter_async_context(command("watch", *where))
        await watch.line("round 1 has formed")
        down = await run("scale", *where, "--nodes", "2", "--quiet")
        assert (down.code, down.err) == (0, "")
        assert "scaled run 'job' from 2:3 to 2:2\n" in down.out
        assert "next: the members go back to the barrier: worlds of 3 are no longer allowed, only 2:2" in down.out
        await watch.line("scaled from 2:3 to 2:2")
        again = await run("scale", *where, "--nodes", "2:2")
        assert again.out.startswith("run 'job' has the sizes 2:2 already; nothing was changed\nrun 'job': round 1 is")
        assert a.world is not None
        with anyio.fail_after(10):
            assert await a.world.changed() is library.Change.RESIZED
        up = await run("scale", *where, "--nodes", "2:12", "--target", "8")
        assert "from 2:2 to 2:12, target 8\n" in up.out
        assert "scaled: 2:12, target 8 (change 2; nodes still start with '2:3 sticky" in up.out
        assert "usable: 3 here, all usable: 1 more node would make 4" in up.out
        assert "from 2:12, target 8 to 2:12\n" in (await run("scale", *where, "--target", "0")).out
        status = json.loads((await run("status", *where, "--json")).out)
        assert status["spec"] == {"nodes": "2:12", "target": None, "generation": 3}
        assert (status["fit"]["usable"], status["fit"]["next_size"], status["fit"]["missing"]) == (3, 4, 1)
        assert (status["origin"][:3], status["held_back"], status["unlabelled"]) == ("2:3", 0, [])


async def test_scale_lets_newcomers_in_who_are_held_back(server: TcpServer, run: Rdzv) -> None:
    where = (server.endpoint, "--run-id", "job")
    slow = msgspec.structs.replace(TIMEOUTS, grow=math.inf)
    async with AsyncExitStack() as stack:
        a, b = [await node(stack, server, name, "1:3", slow) for name in "ab"]
        await a.join()
        assert (await run("scale", *where, "--grow")).out.startswith("no newcomers are held back\nrun 'job': round 1 ")
        watch = await stack.enter_async_context(command("watch", *where))
        await watch.line("round 1 has formed")
        async with anyio.create_task_group() as group:
            group.start_soon(b.join)
            await watch.line("1 newcomer held back")
            assert (
                "1 newcomer will be let in by grow() (rdzv scale --grow) or by a loss"
                in (await run("status", *where)).out
            )
            assert (await run("scale", *where, "--grow")).out.startswith("let 1 newcomer in\nrun 'job': round 1 is")
            assert a.world is not None
            with anyio.fail_after(10):
                assert await a.world.changed() is library.Change.NODES_WAITING
                await a.join()


async def test_scale_makes_room_and_lets_newcomers_in(server: TcpServer, run: Rdzv) -> None:
    where = (server.endpoint, "--run-id", "job")
    slow = msgspec.structs.replace(TIMEOUTS, grow=math.inf)
    async with AsyncExitStack() as stack:
        a, b = [await node(stack, server, name, "1:1", slow) for name in "ab"]
        await a.join()
        assert a.world is not None
        watch = await stack.enter_async_context(command("watch", *where))
        await watch.line("round 1 has formed")
        async with anyio.create_task_group() as group:
            group.start_soon(b.join)
            with anyio.fail_after(10):
                await watch.line("here now: b")
                done = await run("scale", *where, "--nodes", "1:3", "--grow")
                counted_yet = "let 1 newcomer in", "newcomers for whom there is room now will be let in"
                assert any(text in done.out for text in counted_yet), done.out
                assert await a.world.changed() is library.Change.NODES_WAITING
                await a.join()


async def test_scale_changes_nothing_when_it_is_wrong(server: TcpServer, run: Rdzv) -> None:
    where = (server.endpoint, "--run-id", "job")
    async with AsyncExitStack() as stack:
        a = await node(stack, server, "a", "1:4")
        await a.join()
        before = server.table.get("rendezvous_async/job/state")
        for wrong, word in (
            ((), "say what to change: --nodes, --target or both, or --grow"),
            (("--nodes", "3:2"), "nodes='3:2'"),
            (("--nodes", "x"), "not 'x'"),
            (("--nodes", "4:9:4"), "do not reach 9"),
            (("--target", "7"), "the nearest is 4"),
            (("--target", "-1"), "--target"),
            (("--target", "many"), "'many'"),
            (("--nodes", "2:4", "--target", "1"), "the target 1 is not a size"),
        ):
            assert_one_line(await run("scale", *where, *wrong), 2, word)
        assert server.table.get("rendezvous_async/job/state") == before
        await a.close("enough")
        assert_one_line(await run("scale", *where, "--target", "2"), 4, "enough")
        assert_one_line(await run("scale", *where, "--grow"), 4, "enough")


NAMES = ["status", "watch", "scale", "close", "evict"]


def with_node(name: str) -> tuple[str, ...]:
    return {"evict": ("n",), "scale": ("--target", "2")}.get(name, ())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("endpoint", "code", "word"),
    [
        ("nonsense", 2, "tcp://head:29400"),
        ("tcp://127.0.0.1:99999", 2, "99999"),
        ("tcp://127.0.0.1?nonsense=1", 2, "nonsense"),
        ("memory://here", 2, "one process"),
        ("ftp://host", 2, "ftp"),
        ("file:///no/such/directory", 3, "/no/such/directory"),
        ("tcp://127.0.0.1:{free}?secret=hush", 3, "127.0.0.1"),
        ("tcp://127.0.0.1:{free}", 3, "127.0.0.1"),
        ("etcd://127.0.0.1:{free}", 3, "Connection refused"),
        ("etcd://127.0.0.1:{free}?nonsense=1", 2, "nonsense"),
    ],
)
def test_bad_endpoints(capsys: pytest.CaptureFixture[str], name: str, endpoint: str, code: int, word: str) -> None:
    where = endpoint.format(free=free_port())
    timeout = "2" if word == "Connection refused" else "0.3"  # gRPC takes its time to find out.
    result = rdzv(capsys, name, where, "--run-id", "job", "--timeout", timeout, *with_node(name))
    assert_one_line(result, code, word)
    assert "hush" not in result.err


@pytest.mark.parametrize("name", NAMES)
async def test_unknown_runs(server: TcpServer, run: Rdzv, name: str) -> None:
    result = await run(name, server.endpoint, "--run-id", "nobody", *with_node(name))
    assert_one_line(result, 6, "'nobody'")
    assert_one_line(await run(name, server.endpoint, "--run-id", "", *with_node(name)), 2, "--run-id")
    assert len(server.table) == 0


@pytest.mark.parametrize("name", NAMES)
async def test_wrong_secrets(run: Rdzv, tmp_path: Path, name: str) -> None:
    wrong = tmp_path / "secret"
    wrong.write_text("wrong\n")
    async with serve("127.0.0.1", 0, secret="right") as server:
        where = (name, server.endpoint, "--run-id", "job", *with_node(name))
        assert_one_line(await run(*where, "--secret-file", str(wrong)), 3, "secret")
        assert_one_line(await run(*where), 3, "secret")
        assert_one_line(await run(*where, "--secret-file", str(tmp_path / "none")), 2, "secret file")
        right = tmp_path / "right"
        right.write_text("right\n")
        assert_one_line(await run(*where, "--secret-file", str(right)), 6)


def test_a_look_never_hosts_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    where = f"tcp://127.0.0.1:{free_port()}?is_host=true"
    assert_one_line(rdzv(capsys, "status", where, "--run-id", "job", "--timeout", "0.3"), 3)


def test_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    result = rdzv(capsys, "simulate", "--seeds", "2", "--quiet")
    assert result.code == 0
    assert result.out.startswith("2 scenarios")
    assert result.err == ""
    assert_one_line(rdzv(capsys, "simulate", "--seeds", "none"), 2, "none")


async def test_watch_can_be_interrupted(server: TcpServer) -> None:
    async with AsyncExitStack() as stack:
        a = await node(stack, server, "a", nodes="1:1")
        await a.join()
        async with command("watch", server.endpoint, "--run-id", "job", merged=True) as watch:
            await watch.line("round 1 has formed")
            await interrupted(watch)


async def interrupted(running: Command) -> None:
    running.signal(2)
    assert await running.code() == 130
    assert running.lines[-1] == "rdzv: interrupted"


async def test_a_run_of_a_newer_version_can_be_looked_at_and_not_closed(server: TcpServer, run: Rdzv) -> None:
    head = Head(settings=library.Settings(2, 2), requires=("shape@0.2",))
    server.table.commit([Put("rendezvous_async/job/state", encode(head))])
    before = server.table.get("rendezvous_async/job/state")
    result = await run("status", server.endpoint, "--run-id", "job")
    assert result.code == 0
    assert "upgrade rendezvous_async here" in result.out
    assert "'shape' (0.2 or later)" in result.out
    for more in ((), ("--purge",)):
        result = await run("close", server.endpoint, "--run-id", "job", *more)
        assert_one_line(result, 1, "'shape' (0.2 or later)", "Upgrade rendezvous_async")
    result = await run("scale", server.endpoint, "--run-id", "job", "--target", "2")
    assert_one_line(result, 1, "'shape' (0.2 or later)", "Upgrade rendezvous_async")
    assert server.table.get("rendezvous_async/job/state") == before
    session = server.table.open_session(100, 0)
    server.table.commit([Put("rendezvous_async/job/nodes/new", b"of a newer version", session)])
    result = await run("evict", server.endpoint, "new", "--run-id", "job")
    assert result.code == 0
    assert server.table.get("rendezvous_async/job/nodes/new") is None
