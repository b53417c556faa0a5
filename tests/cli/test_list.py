"""``rdzv list``, against a real server with runs in every state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio.to_thread
import pytest

import rendezvous_async as library
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import Limits, TcpServer, serve
from rendezvous_async.core.diagnosis import Present, Role
from rendezvous_async.runs import RunState, state_of
from tests.backends.tcp.support import eventually
from tests.cli.support import Result, assert_one_line, rdzv
from tests.ports import free_port

TIMEOUTS = library.Timeouts(last_call=0.1, regroup=0.1)


@pytest.fixture
async def server() -> AsyncIterator[TcpServer]:
    async with serve("127.0.0.1", 0) as server:
        yield server


async def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    return await anyio.to_thread.run_sync(lambda: rdzv(capsys, "list", *arguments))


def node(server: TcpServer, run_id: str, nodes: int = 1) -> library.Rendezvous:
    return library.connect(server.endpoint, run_id=run_id, nodes=nodes, node="a", timeouts=TIMEOUTS, is_host=False)


async def test_all_states(server: TcpServer, capsys: pytest.CaptureFixture[str]) -> None:
    async with AsyncExitStack() as stack:
        for run_id in ("formed", "over/100%", "left"):
            rendezvous = await stack.enter_async_context(node(server, run_id))
            await rendezvous.join()
            if run_id.startswith("over"):
                await rendezvous.close("enough")
            if run_id == "left":
                await rendezvous.leave()
        alone = await stack.enter_async_context(node(server, "alone", 2))
        group = await stack.enter_async_context(anyio.create_task_group())
        group.start_soon(alone.join)
        await eventually(lambda: bool(server.table.list("rendezvous_async/alone/nodes/").entries))
        server.table.commit([Put("rendezvous_async/broken/state", b"nonsense")])

        result = await listed(capsys, server.endpoint)
        assert result.code == 0, result
        head, *lines = result.out.splitlines()
        assert head == f"5 runs at {server.endpoint}: 1 damaged, 1 waiting, 1 formed, 1 idle, 1 closed"
        assert [line.split()[:2] for line in lines] == [
            ["damaged", "broken"],
            ["waiting", "alone"],
            ["formed", "formed"],
            ["idle", "left"],
            ["closed", "over/100%"],
        ]
        assert lines[1].endswith("gathering its first round; 1 of 2 nodes are at the barrier")

        short = await listed(capsys, server.endpoint, "--limit", "2")
        assert short.out.splitlines()[-1] == "... and 3 more; see --limit"
        found = json.loads((await listed(capsys, server.endpoint, "--json", "--limit", "2")).out)
        assert found["total"] == 5
        assert found["states"] == {"stuck": 0, "damaged": 1, "waiting": 1, "formed": 1, "idle": 1, "closed": 1}
        assert [run["run_id"] for run in found["runs"]] == ["broken", "alone"]
        assert found["runs"][1] | {"headline": ""} == {
            "run_id": "alone",
            "state": "waiting",
            "round": 0,
            "nodes": 1,
            "absent": 0,
            "missing": 1,
            "headline": "",
        }
        group.cancel_scope.cancel()


async def test_nothing_is_there(server: TcpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert (await listed(capsys, server.endpoint)).out == f"no runs at {server.endpoint}\n"
    assert len(server.table) == 0
    assert json.loads((await listed(capsys, server.endpoint, "--json")).out)["total"] == 0


async def test_other_backends_and_namespaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for namespace in ("", "?namespace=a/b"):
        async with library.connect(f"file://{tmp_path}{namespace}", run_id=f"job{namespace}", nodes=1) as rendezvous:
            await rendezvous.join()
    assert "1 run at" in (await listed(capsys, f"file://{tmp_path}")).out
    assert "idle     job?namespace=a/b" in (await listed(capsys, f"file://{tmp_path}?namespace=a/b")).out


async def test_more_than_a_server_lists(capsys: pytest.CaptureFixture[str]) -> None:
    async with serve("127.0.0.1", 0, limits=Limits(listed=3)) as server:
        server.table.commit([Put(f"rendezvous_async/job-{number}/state", b"x") for number in range(4)])
        assert_one_line(await listed(capsys, server.endpoint), 1, "too many keys to list")


def test_what_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(rdzv(capsys, "list", f"tcp://127.0.0.1:{free_port()}", "--timeout", "0.3"), 3, "127.0.0.1")
    assert_one_line(rdzv(capsys, "list", "memory://here"), 2, "one process")
    assert_one_line(rdzv(capsys, "list", "tcp://127.0.0.1", "--limit", "0"), 2, "--limit")


def test_a_run_is_stuck_when_its_nodes_wait_longer_than_its_last_call() -> None:
    here = (Present("a", Role.WAITING),)
    waiting = library.Status(run_id="job", settings=library.Settings(2, 4, last_call=30), here=here, missing=1)
    assert state_of(waiting, 39) is RunState.WAITING
    assert state_of(waiting, 41) is RunState.STUCK
