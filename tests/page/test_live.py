"""What is told live: everything at first, then what changes, once for all readers, within bounds."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import serve
from rendezvous_async.backends.tcp.addresses import listen_on, resolve
from rendezvous_async.page import live as live_module
from rendezvous_async.page import site as site_module
from rendezvous_async.page.live import MAX_READERS, Live
from rendezvous_async.page.overview import Overview
from rendezvous_async.page.pages import serve_pages, status_pages
from rendezvous_async.page.site import Site
from rendezvous_async.page.summary import LONGEST, NAMED
from tests.backends.tcp.support import eventually
from tests.page.crowd import Crowd
from tests.page.test_status_page import request

News = dict[str, Any]


class Listener:
    """A reader in this process."""

    def __init__(self) -> None:
        self.is_slow = False
        self.pieces: list[bytes] = []

    def push(self, data: bytes) -> None:
        self.pieces.append(data)

    @property
    def news(self) -> list[News]:
        """All events, read as a browser does."""
        found = []
        for piece in self.pieces:
            assert piece.endswith(b"\n\n")
            assert piece.count(b"\n") == 2
            if not piece.startswith(b":"):
                found.append(json.loads(piece.removeprefix(b"data: ")))
        return found

    @property
    def last(self) -> News:
        return self.news[-1]


class Scene:
    """A server with runs, and what is told of them."""

    def __init__(self, crowd: Crowd, live: Live, overview: Overview) -> None:
        self.crowd = crowd
        self.live = live
        self.overview = overview

    async def reader(self) -> Listener:
        """Return a reader that knows everything."""
        reader = Listener()
        assert self.live.enter(reader)
        await eventually(lambda: bool(reader.news))
        return reader


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with serve("127.0.0.1", 0) as server:
        overview = Overview(server)
        live = Live(overview)
        try:
            yield Scene(Crowd(server), live, overview)
        finally:
            live.close()
            overview.close()


def ids(news: News) -> list[str]:
    return [run["id"] for run in news["runs"]]


async def test_everything_at_first_then_what_changes() -> None:
    async with scene() as s:
        s.crowd.add("a", 2)
        s.crowd.add("b", 1, nodes=2, round=0)
        reader = await s.reader()
        first = reader.last
        assert (first["whole"], sorted(ids(first)), first["gone"], first["hidden"]) == (True, ["a", "b"], [], {})
        by_id = {run["id"]: run for run in first["runs"]}
        assert (by_id["a"]["state"], by_id["a"]["waiting_since"], by_id["a"]["roles"]) == (
            "formed",
            None,
            {"member": 2},
        )
        assert (by_id["b"]["state"], by_id["b"]["missing"], by_id["b"]["patience"]) == ("waiting", 1, 40)
        assert 0 <= first["now"] - by_id["b"]["waiting_since"] < 30
        s.crowd.add("b", 2)
        await eventually(lambda: len(reader.news) == 2)
        assert (reader.last["whole"], ids(reader.last)) == (False, ["b"])
        assert reader.last["runs"][0]["state"] == "formed"
        s.crowd.remove("a")
        await eventually(lambda: len(reader.news) == 3)
        assert (ids(reader.last), reader.last["gone"]) == ([], ["a"])


async def test_many_changes_are_one_event_and_the_same_bytes_for_all() -> None:
    async with scene() as s:
        one, other = await s.reader(), await s.reader()
        for number in range(50):
            s.crowd.add(f"run-{number}", 1)
        await eventually(lambda: {run for news in one.news for run in ids(news)} == {f"run-{n}" for n in range(50)})
        assert len(one.news) <= 3
        assert one.pieces[-1] is other.pieces[-1]


async def test_one_that_does_not_read_gets_everything_anew_once_it_reads() -> None:
    async with scene() as s:
        slow, other = await s.reader(), await s.reader()
        slow.is_slow = True
        for number in range(3):
            s.crowd.add(f"run-{number}", 1)
            await eventually(lambda: len(other.news) == number + 2)  # noqa: B023
        assert len(slow.news) == 1
        slow.is_slow = False
        s.live.wake(slow)
        await eventually(lambda: len(slow.news) == 2)
        assert (slow.last["whole"], sorted(ids(slow.last))) == (True, ["run-0", "run-1", "run-2"])
        assert len(other.news) == 4, "the others get nothing twice"


async def test_without_readers_there_is_no_work() -> None:
    async with scene() as s:
        reader = await s.reader()
        s.live.leave(reader)
        s.crowd.add("a", 1)
        await eventually(lambda: s.overview.summary("a") is not None)
        assert len(reader.news) == 1
        again = await s.reader()
        assert ids(again.last) == ["a"]


async def test_a_sign_of_life_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "BEAT", 0.05)
    async with scene() as s:
        reader = await s.reader()
        await eventually(lambda: reader.pieces.count(b": still here\n\n") >= 2)


async def test_stuck_runs_are_shown_before_those_that_changed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "SHOWN_RUNS", 3)
    monkeypatch.setattr("rendezvous_async.runs.STUCK_AFTER", 0.0)
    async with scene() as s:
        s.crowd.add("stuck", 1, nodes=2, round=0, last_call=0.01)
        for number in range(5):
            s.crowd.add(f"run-{number}", 1)
            s.overview.look()
            noted = clock.now()
            await eventually(lambda noted=noted: clock.now() > noted)  # type: ignore[misc]
        await eventually(lambda: s.overview.ranked()[0] == "stuck")
        reader = await s.reader()
        assert ids(reader.last) == ["stuck", "run-4", "run-3"]
        assert reader.last["hidden"] == {"formed": 3}
        s.crowd.add("run-0", 2)
        await eventually(lambda: len(reader.news) == 2)
        assert (ids(reader.last), reader.last["gone"]) == (["run-0"], ["run-3"])


async def test_a_run_in_brief_is_small_however_large_it_is() -> None:
    async with scene() as s:
        s.crowd.add("x" * 200, 500, lost=100)
        reader = await s.reader()
        (run,) = reader.last["runs"]
        assert (run["here"], run["absent"], len(run["unsettled"])) == (500, 100, NAMED)
        assert max(map(len, run["why"])) <= LONGEST
        assert len(reader.pieces[0]) < 12_000


async def test_damaged_records_are_said_and_harm_no_other() -> None:
    async with scene() as s:
        s.crowd.add("a", 1)
        s.overview.server.commit([Put("rendezvous_async/broken/state", b"junk")], [])
        s.overview.server.pushes.settle()
        reader = await s.reader()
        assert {run["id"]: run["state"] for run in reader.last["runs"]} == {"a": "formed", "broken": "damaged"}


async def test_over_a_socket(tmp_path: Path) -> None:
    async with serve("127.0.0.1", 0) as server, serve_pages(server, "127.0.0.1", 0) as url:
        crowd = Crowd(server)
        crowd.add("job", 3, domain="rack")
        async with stream(url) as (head, events):
            assert "HTTP/1.1 200" in head
            assert "text/event-stream" in head
            assert "default-src 'none'" in head
            assert ids(await anext(events)) == ["job"]
            crowd.add("other", 1)
            assert ids(await anext(events)) == ["other"]
        assert (await request(url, "/api/live", method="HEAD")) == (200, "")
        code, body = await request(url, "/api/run?id=job")
        assert code == 200
        assert json.loads(body)["labels"]["job-gpu-0001"] == {"rack": "r0", "zone": "a"}
        assert (await request(url, "/api/run?id=nobody"))[0] == 404
        assert (await request(url, "/api/run"))[0] == 404
        assert (await request(url, "/api/run?" + "a=1&" * 20))[0] == 400


async def test_readers_are_bounded_and_the_rest_of_the_page_goes_on(tmp_path: Path) -> None:
    async with serve("127.0.0.1", 0) as server, serve_pages(server, "127.0.0.1", 0) as url:
        readers = [stream(url) for _ in range(MAX_READERS)]
        opened = [await reader.__aenter__() for reader in readers]
        assert all("HTTP/1.1 200" in head for head, _ in opened)
        async with stream(url) as (head, _):
            assert "HTTP/1.1 503" in head
        assert (await request(url, "/health"))[0] == 200
        await readers.pop().__aexit__(None, None, None)

        async def free() -> bool:
            async with stream(url) as (head, _):
                return "HTTP/1.1 200" in head

        with anyio.fail_after(10):
            while not await free():  # noqa: ASYNC110 - the server notices the end of a connection in its own time
                await anyio.sleep(0.05)
        for reader in readers:
            await reader.__aexit__(None, None, None)


async def test_one_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "TIMEOUT", 0.3)
    async with scene() as s:
        for number in range(200):
            s.crowd.add(f"run-{number}-{'x' * 150}", 2, lost=12)
        (listening,) = listen_on(await resolve("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        site = Site(status_pages(s.overview, s.live))
        site.start([listening])
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, listening.getsockname())
            client.send(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(lambda: s.live.readers == 1)
            await eventually(lambda: s.live.readers == 0)
        await site.aclose()


async def test_the_secret_is_wanted_here_too() -> None:
    async with serve("127.0.0.1", 0) as server, serve_pages(server, "127.0.0.1", 0, secret="s") as url:
        assert (await request(url, "/api/live"))[0] == 401
        assert (await request(url, "/api/run?id=job"))[0] == 401


@asynccontextmanager
async def stream(url: str) -> AsyncIterator[tuple[str, AsyncIterator[News]]]:
    """Open the live connection; yield its head and its events."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    writer.write(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")

    async def events() -> AsyncIterator[News]:
        while True:
            with anyio.fail_after(20):
                size = int(await reader.readline(), 16)
                piece = await reader.readexactly(size + 2)
            if piece.startswith(b"data: "):
                yield json.loads(piece[6:-4])

    try:
        with anyio.fail_after(20):
            head = await reader.readuntil(b"\r\n\r\n")
        yield head.decode(), events()
    finally:
        writer.close()
