"""``rdzv history``: what it prints of a run that goes on, and of one that is over."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec

from rendezvous_async.backends.tcp import TcpServer
from rendezvous_async.cli.exits import Exit
from rendezvous_async.core.history import HistoryRecord
from tests.cli.support import command
from tests.cli.test_runs import Rdzv, join_all, node, run, server

__all__ = ["run", "server"]  # Fixtures.

HISTORY = ("--run-id", "job")


async def test_it_tells_what_happened_and_why_and_goes_on_after_the_close(server: TcpServer, run: Rdzv) -> None:
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        result = await run("history", server.endpoint, *HISTORY)
        assert result.code == Exit.NOT_FOUND
        await join_all(a, b)
        await run("evict", server.endpoint, *HISTORY, "b")
        async with anyio.create_task_group() as group:
            group.start_soon(a.join)
            await b.join()
        await run("scale", server.endpoint, *HISTORY, "--nodes", "1:2")
        await b.leave()
        await a.join()
        await a.close("training done")
    result = await run("history", server.endpoint, *HISTORY)
    assert result.code == Exit.OK
    day, *lines = result.out.splitlines()
    assert re.fullmatch(r"\w+, \d\d \w+ \d{4} \(times are \S+\)", day)
    told = " / ".join(line[10:] for line in lines)
    assert all(re.match(r"\d\d:\d\d:\d\d  |  ", line) and len(line) <= 80 for line in lines)
    assert "round 1 formed with 2 nodes" in told
    assert "lost b" in told
    assert "it was evicted" in told
    assert "scaled from 2:2 to 1:2 by" in told
    assert "it left" in told
    assert told.endswith("closed by a: training done")


async def test_machines_read_json_and_the_same_from_the_library(server: TcpServer, run: Rdzv) -> None:
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        result = await run("history", server.endpoint, *HISTORY, "--json")
        (record,) = msgspec.json.decode(result.out, type=tuple[HistoryRecord, ...])
        assert (record.kind, record.round, record.size, record.since is None) == ("formed", 1, 2, False)
        assert (record,) == await a.history()
        await a.close("done")
        assert [each.kind for each in await b.history()] == ["formed", "closed"]


async def test_goodput_adds_up_and_names_all_of_the_time(server: TcpServer, run: Rdzv) -> None:
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        await a.close("done")
    result = await run("history", server.endpoint, *HISTORY, "--goodput")
    assert result.code == Exit.OK
    assert "1 round formed" in result.out
    assert "a round was held" in result.out
    sums = msgspec.json.decode((await run("history", server.endpoint, *HISTORY, "--goodput", "--json")).out)
    assert set(sums["seconds"]) <= {"held", "gathering", "forming", "stopping"}


async def test_it_draws_one_page(server: TcpServer, run: Rdzv, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        await b.leave()
        await a.close("<done>")
    page = tmp_path / "job.html"
    result = await run("history", server.endpoint, *HISTORY, "--html", str(page))
    assert (result.code, result.out) == (Exit.OK, "")
    text = page.read_text()
    assert "The history of run &#x27;job&#x27;" in text
    assert "&lt;done&gt;" in text
    assert "http://" not in text


async def test_it_follows_until_the_run_is_closed(server: TcpServer) -> None:
    async with AsyncExitStack() as stack:
        a, b = await node(stack, server, "a"), await node(stack, server, "b")
        await join_all(a, b)
        async with command("history", server.endpoint, *HISTORY, "--follow") as follow:
            await follow.line("round 1 formed with 2 nodes")
            await a.close("done")
            await follow.line("closed by a: done")
            assert await follow.code() == Exit.OK
