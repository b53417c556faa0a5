"""Long work is done in slices, in turn, and after what has come on the sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import OWN, Put
from rendezvous_async.backends.tcp import serve, wire
from rendezvous_async.backends.tcp.server.turns import SLICE, Turns
from rendezvous_async.testing.conformance import BACKEND_CHECKS, Check
from rendezvous_async.testing.conformance.commits import the_limits_are_what_they_say
from tests.backends.tcp.support import RawClient, connected, eventually
from tests.backends.tcp.test_conformance_tcp import maker


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every slice be over after one piece of work."""
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 0.0)


def work(name: str, pieces: int, done: list[str]) -> Callable[[float], bool]:
    """A job of several pieces, each of which takes a whole slice."""
    left = pieces

    def job(end: float) -> bool:
        nonlocal left
        while clock.now() < end:
            pass
        done.append(name)
        left -= 1
        return left > 0

    return job


async def test_jobs_take_turns() -> None:
    turns, done = Turns(), list[str]()
    turns.do_later(work("a", 3, done))
    turns.do_later(work("b", 2, done))
    await eventually(lambda: len(done) == 5)
    assert done == ["a", "b", "a", "b", "a"]


async def test_what_comes_on_a_socket_goes_before_the_next_slice() -> None:
    turns, done = Turns(), list[str]()
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    with here, there:
        loop.add_reader(here, lambda: done.append(here.recv(10).decode()))
        job = work("slice", 4, done)

        def send_and_work(end: float) -> bool:
            there.send(b"socket")
            return job(end)

        turns.do_later(send_and_work)
        await eventually(lambda: len(done) == 8)
        loop.remove_reader(here)
    assert done == ["slice", "socket"] * 4


async def test_a_job_that_fails_does_not_stop_others() -> None:
    turns, done = Turns(), list[str]()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(end: float) -> bool:
        raise ValueError("broken")

    turns.do_later(fail)
    turns.do_later(work("a", 2, done))
    await eventually(lambda: len(done) == 2)
    assert [str(failure) for failure in failures] == ["broken"]


async def test_what_is_left_when_it_is_stopped_stays_undone() -> None:
    turns, done = Turns(), list[str]()
    turns.do(work("a", 3, done))
    turns.stop()
    turns.do_later(work("b", 1, done))
    await anyio.sleep(0.02)
    assert done == ["a"]


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("check", [check for check in BACKEND_CHECKS if check is not the_limits_are_what_they_say])
async def test_every_promise_holds_when_each_piece_of_work_has_a_turn_of_its_own(check: Check) -> None:
    async with serve(port=0) as server:
        await check(maker(server.endpoint))


@pytest.mark.usefixtures("no_time")
async def test_requests_of_one_peer_are_answered_in_order_over_many_turns() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        peer.send(*(wire.Ping(id) for id in range(200)))
        assert [await peer.read() for _ in range(200)] == [wire.Done(id) for id in range(200)]


@pytest.mark.usefixtures("no_time")
async def test_a_push_over_many_turns_tells_each_watch_the_newest() -> None:
    """What changes while a push is under way is not lost, whether a watch was told already or not."""
    async with (
        serve(port=0) as server,
        connected(server.endpoint) as writer,
        RawClient.connect(server.endpoint) as peer,
    ):
        await peer.greet()
        key = f"{writer.prefix}key"
        peer.send(*(wire.Follow(id, (key, f"{writer.prefix}{id}"), None) for id in range(50)))
        for _ in range(50):
            assert isinstance(await peer.read(), wire.Changed)
        last = b""
        for number in range(20):
            last = b"%d" % number
            await writer.commit(Put("key", last))
        seen: dict[int, bytes | None] = {}
        while any(seen.get(id) != last for id in range(50)):
            changed = await peer.read()
            assert isinstance(changed, wire.Changed)
            assert changed.listing is not None
            seen[changed.id] = changed.listing.entries[-1].value


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("goodbye", [True, False])
async def test_many_sessions_that_end_together_all_end(goodbye: bool) -> None:
    async with serve(port=0, disconnect_grace=0.05) as server, connected(server.endpoint) as backend:
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet()
            puts = [Put(f"{backend.prefix}nodes/{number}", b"", OWN) for number in range(300)]
            peer.send(*(wire.OpenSession(id, 60.0, (put,)) for id, put in enumerate(puts)))
            for _ in puts:
                assert isinstance(await peer.read(), wire.SessionOpened)
            if goodbye:
                peer.send(wire.Goodbye())
                await peer.read_end()
        await eventually(lambda: server.table.sessions == 0)
        assert (await backend.list("nodes/")).entries == ()
        assert not server._owners


class Watched:
    """Turns by a clock that moves only when a job says so; a slice lasts 1.0."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.time = 0.0
        self.turns.now = lambda: self.time
        self.done: list[str] = []

    def job(self, name: str, pieces: int, seconds: float) -> Callable[[float], bool]:
        """A job of several pieces that take equally long; it stops where its slice is over."""
        left = pieces

        def job(end: float) -> bool:
            nonlocal left
            while left:
                left -= 1
                self.time += seconds
                self.done.append(name)
                if self.time >= end:
                    break
            return left > 0

        return job


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 1.0)
    return Watched()


async def test_a_slice_is_short_and_begins_now() -> None:
    watched = Watched()
    watched.time = 5.0
    assert watched.turns.end_of_slice() == 5.0 + SLICE == 5.01


async def test_a_job_is_done_now_as_far_as_a_slice_goes_and_the_rest_later(watched: Watched) -> None:
    watched.turns.do(watched.job("a", 5, 0.5))
    assert watched.done == ["a"] * 2
    await eventually(lambda: len(watched.done) == 5)
    watched.turns.do(watched.job("b", 1, 0.5))
    assert watched.done == ["a"] * 5 + ["b"]
    await anyio.sleep(0.01)
    assert watched.done == ["a"] * 5 + ["b"]


async def test_a_turn_has_one_slice_for_all_jobs_and_takes_the_next_group_first(watched: Watched) -> None:
    turns = watched.turns
    for group in ("x", "y"):
        for number in (1, 2):
            turns.do_later(watched.job(f"{group}{number}", 3, 0.5), group)
    turns.do_later(watched.job("own", 1, 0.5))
    await eventually(lambda: len(watched.done) == 13)
    # A line for each turn of the loop, which lasts for two pieces.
    assert watched.done == [
        *("x1", "x1"),
        *("y1", "y1"),
        *("own", "x2"),
        *("y2", "y2"),
        *("x1", "y1"),
        *("x2", "x2"),
        "y2",
    ]


async def test_short_jobs_share_a_turn(watched: Watched) -> None:
    looked: list[int] = []
    for name in "abc":
        watched.turns.do_later(watched.job(name, 1, 0.125), name)
    asyncio.get_running_loop().call_later(0, lambda: looked.append(len(watched.done)))
    await eventually(lambda: bool(looked))
    assert watched.done == ["a", "b", "c"]
    assert looked == [3], "all before the next timer"


async def test_each_of_many_things_is_done_once_in_order(watched: Watched) -> None:

    def act(item: int) -> None:
        watched.time += 0.25
        watched.done.append(str(item))

    watched.turns.for_each(range(10), act)
    assert watched.done == list("0123")
    await eventually(lambda: len(watched.done) >= 10)
    assert watched.done == list("0123456789")
    watched.turns.for_each((), act)
    assert len(watched.done) == 10


async def test_requests_of_one_turn_have_one_slice_whatever_else_is_done(watched: Watched) -> None:
    turns = watched.turns
    assert not turns.is_spent()
    watched.time += 0.875
    assert not turns.is_spent()
    watched.time = 1.0
    assert turns.is_spent()
    await anyio.lowlevel.checkpoint()
    assert not turns.is_spent()
    watched.time += 0.875
    assert not turns.is_spent()


async def test_who_stops_in_a_job_is_not_asked_for_more(watched: Watched) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def stop(end: float) -> bool:
        watched.turns.stop()
        return True

    watched.turns.do_later(stop, "x")
    watched.turns.do_later(watched.job("after", 1, 0), "y")
    await anyio.sleep(0.02)
    assert (watched.done, failures) == ([], [])


async def test_who_is_stopped_with_nothing_to_do_stays_stopped(watched: Watched) -> None:
    watched.turns.stop()
    watched.turns.do(watched.job("a", 3, 1.0))
    await anyio.sleep(0.02)
    assert watched.done == ["a"]
