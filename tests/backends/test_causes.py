"""Why a leased key is gone: every backend that knows says so with the deletion, and none invents a cause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Backend, Delete, Entry, Put, Session
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.server.serving import serve
from rendezvous_async.causes import Cause, known_cause
from rendezvous_async.testing.proxy import Proxy
from tests.meeting import in_virtual_time

KEY = "nodes/a"


async def deletion_seen_by(backend: Backend, happen: Callable[[], Awaitable[object]]) -> Entry:
    """Return the deletion of the key that a watcher sees when this happens."""
    async with backend.watch(KEY) as watch:
        assert [entry.key for entry in (await anext(watch)).entries] == [KEY]
        await happen()
        with anyio.fail_after(20):
            (entry,) = (await anext(watch)).entries
    assert entry.value is None
    return entry


async def held(backend: Backend, ttl: float = 30.0) -> Session:
    session = await backend.open_session(ttl)
    await backend.commit(Put(KEY, b"record", session.id))
    return session


@pytest.mark.parametrize("kind", ["memory", "tcp", "file"])
def test_the_one_who_ends_a_session_says_why(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serve("127.0.0.1", 0) as server:
            endpoint = {"memory": "memory://causes", "tcp": server.endpoint, "file": f"file://{tmp_path}/run"}[kind]
            async with open_backend(endpoint, run_id="run") as backend, open_backend(endpoint, run_id="run") as other:
                session = await held(backend)
                assert (await deletion_seen_by(other, session.aclose)).cause == Cause.LEFT
                session = await held(backend)
                end = partial(session.aclose, Cause.STALLED)
                assert (await deletion_seen_by(other, end)).cause == Cause.STALLED
                session = await held(backend)
                assert (await deletion_seen_by(other, partial(other.end_session, session.id))).cause == Cause.EVICTED
                session = await held(backend)
                assert (await deletion_seen_by(other, lambda: backend.commit(Delete(KEY)))).cause == ""
                session = await held(backend, ttl=0.3)
                assert (await deletion_seen_by(other, anyio.lowlevel.checkpoint)).cause == Cause.SILENT

    anyio.run(main)


@in_virtual_time
async def test_a_session_in_memory_that_nobody_renews_was_silent() -> None:
    async with open_backend("memory://silent", run_id="run") as backend:
        await held(backend, ttl=5)
        assert (await deletion_seen_by(backend, lambda: anyio.sleep(6))).cause == Cause.SILENT


async def test_a_client_that_says_goodbye_has_left_and_one_that_is_cut_was_cut() -> None:
    async with serve("127.0.0.1", 0) as server, open_backend(server.endpoint, run_id="run") as other:
        async with open_backend(server.endpoint, run_id="run") as backend:
            await held(backend)
            assert (await deletion_seen_by(other, backend.aclose)).cause == Cause.LEFT
        host, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(Proxy(host, int(port)))
            endpoint = f"tcp://127.0.0.1:{proxy.port}?is_host=false"
            async with open_backend(endpoint, run_id="run") as backend:
                await held(backend)
                assert (await deletion_seen_by(other, stack.aclose)).cause == Cause.CUT


def test_causes_are_kept_by_a_log_and_a_snapshot(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "log"), epoch="epoch", sync=False)
    table = log.table
    before = table.token
    for cause in (Cause.CUT, ""):
        session = table.open_session(5, now=0)
        table.commit([Put(f"nodes/{cause}", b"", session)])
        table.end_session(session, cause)
    log.compact(table.snapshot())
    log.close()
    restored = Log.open(str(tmp_path / "log"), sync=False)
    for each in (table, restored.table):
        listing = each.changes(["nodes/"], before)
        assert listing is not None
        assert [(entry.key, entry.cause) for entry in listing.entries] == [("nodes/", ""), ("nodes/cut", Cause.CUT)]
    restored.close()


def test_a_session_is_due_by_silence_unless_its_connection_is_lost() -> None:
    table = Table("epoch")
    one, other = table.open_session(5, now=0), table.open_session(5, now=0)
    table.hasten(other, 1)
    assert (table.why_due(one), table.why_due(other)) == (Cause.SILENT, Cause.CUT)
    table.resume(other)
    assert table.why_due(other) == Cause.SILENT


def test_a_cause_from_outside_counts_only_if_it_is_known() -> None:
    assert known_cause("cut") == "cut"
    assert known_cause("aliens") == ""


def test_a_client_that_does_not_say_why_is_understood() -> None:
    """Older clients send no cause, and older servers pass over it."""
    assert wire.decode_request(msgspec.msgpack.encode([17, 1, "epoch.1"])) == wire.EndSession(1, "epoch.1", "")
