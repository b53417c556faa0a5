"""The rendezvous as a user holds it: arguments, entering and leaving, and calls at the wrong time."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import (
    Change,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    Timeouts,
    connect,
)
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Backend, Granted, Opening, Session
from rendezvous_async.backends.memory import MemoryDriver, MemoryServer
from rendezvous_async.node.rendezvous import Rendezvous
from tests.meeting import Line, Meeting, in_virtual_time, now, session_of, together, until


class Boom(Exception):
    """What a test's body raises."""


GOOD: dict[str, Any] = {"endpoint": "memory://here", "run_id": "job", "nodes": 2}


# Arguments


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"nodes": 0}, "not 0"),
        ({"nodes": -1}, "not -1"),
        ({"nodes": "3:2"}, "nodes='3:2': .*, not 3:2"),
        ({"nodes": "two"}, "not 'two'"),
        ({"nodes": "2:"}, "not '2:'"),
        ({"nodes": ""}, "not ''"),
        ({"nodes": (4, 2)}, r"nodes=\(4, 2\): .*, not 4:2"),
        ({"nodes": "4:64:7"}, "steps of 7 from 4 do not reach 64, only 60 and 67"),
        ({"nodes": [4, 16, 8]}, "sizes must be in increasing order, and 16 is before 8"),
        ({"per_domain": 4}, "per_domain=4 needs a domain"),
        (
            {"nodes": "3,5", "domain": "nvlink", "per_domain": 4},
            "none of the sizes 3:5:2 is a multiple of per_domain=4",
        ),
        ({"domain": "nvlink", "per_domain": 0}, "per_domain must be from 1 to 1000000, not 0"),
        ({"domain": "nvlink", "per_domain": "4"}, "per_domain must be a count of nodes, not '4'"),
        ({"domain": None}, "domain must be the name of a label"),
        ({"domain": "x", "labels": {"x": ""}}, "the label 'x' is empty, and domain='x' goes by its value"),
        ({"ranks": "label:x", "labels": {"x": ""}}, "the label 'x' is empty, and ranks='label:x' goes by its value"),
        ({"domain": "x" * 300}, "domain must have at most 256 characters, not 300"),
        ({"domain": "\ud800"}, "domain must be a string that UTF-8 can encode"),
        ({"nodes": (1, 2, 3)}, r"not \(1, 2, 3\)"),
        ({"nodes": 1.5}, "not 1.5"),
        ({"nodes": True}, "not True"),
        ({"nodes": None}, "not None"),
        ({"nodes": 10_000_000}, "not 10000000"),
        ({"run_id": ""}, "run_id must be a non-empty string, not ''"),
        ({"run_id": "  "}, "not '  '"),
        ({"run_id": 7}, "not 7"),
        ({"run_id": "x" * 300}, "at most 256 characters, not 300: 'xxxx"),
        ({"node": ""}, "node must be a non-empty string, not ''"),
        ({"node": "x" * 300}, "at most 256 characters"),
        ({"node": "\ud800"}, "node must be .*'\\\\ud800'"),
        ({"node": "é" * 256}, "node.*'éééé"),
        ({"endpoint": "head:29400"}, "not 'head:29400'"),
        ({"endpoint": "udp://head"}, "'udp://head' has the unknown scheme 'udp'"),
        ({"endpoint": "tcp://head:99999"}, "'tcp://head:99999' has the port '99999'"),
        ({"endpoint": "memory://"}, "'memory://' must name a place"),
        ({"endpoint": 5}, "not 5"),
        ({"endpoint": None}, "the endpoint is None"),
        ({"ranks": "random"}, "not 'random'"),
        ({"ranks": "label:"}, "not 'label:'"),
        ({"ranks": None}, "not None"),
        ({"ranks": "label:rack"}, "needs the label 'rack' on every node, not {}"),
        ({"keep_alive_interval": 0}, "keep_alive_interval must be a positive, finite number of seconds, not 0"),
        ({"keep_alive_interval": "1"}, "not '1'"),
        ({"keep_alive_max_attempt": 1}, "keep_alive_max_attempt must be a count from 2 to 1000, not 1"),
        ({"keep_alive_max_attempt": 2.5}, "not 2.5"),
        ({"keep_alive_max_attempt": True}, "not True"),
        ({"keep_alive_max_attempt": "5"}, "not '5'"),
        ({"address": "x" * 1025}, "address"),
        ({"address": 5}, "address"),
        ({"labels": {"rack": 5}}, "labels"),
        ({"labels": {"rack": "x" * 1025}}, "labels"),
        ({"labels": {str(number): "" for number in range(65)}}, "labels"),
        ({"labels": {str(number): "x" * 1024 for number in range(64)}}, "65536 bytes"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", str(value))[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_a_value_error_with_the_value_in_it(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        connect(**GOOD | wrong)


@pytest.mark.parametrize("name", ["join", "last_call", "regroup", "close", "heartbeat"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_wrong_timeout_is_a_value_error_with_the_value_in_it(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"timeouts.{name} must be .*, not {re.escape(repr(value))}"):
        Timeouts(**{name: value})  # type: ignore[arg-type]


def test_an_endpoint_and_a_backend_are_one_too_many() -> None:
    backend = Backend(MemoryDriver(MemoryServer()), "job")
    with pytest.raises(ValueError, match="an endpoint or a backend, and not both"):
        connect(**GOOD, backend=backend)
    with pytest.raises(ValueError, match="run_id is 'job', but the backend is open for run 'other'"):
        connect(run_id="job", nodes=2, backend=Backend(MemoryDriver(MemoryServer()), "other"))


def test_options_beside_an_open_backend_are_refused_not_ignored() -> None:
    """Whoever gives a secret there would believe that it protects something."""
    backend = Backend(MemoryDriver(MemoryServer()), "job")
    with pytest.raises(ValueError, match=r"no use for secret$"):
        connect(run_id="job", nodes=2, backend=backend, secret="s")
    with pytest.raises(ValueError, match=r"no use for is_host, tls$"):
        connect(run_id="job", nodes=2, backend=backend, tls=object(), is_host=False)


@pytest.mark.parametrize(("nodes", "expected"), [(3, (3, 3)), ("3", (3, 3)), ("1:4", (1, 4)), ((2, 3), (2, 3))])
def test_nodes_can_be_given_in_four_ways(nodes: Any, expected: tuple[int, int]) -> None:
    settings = connect("memory://here", run_id="job", nodes=nodes).settings
    assert (settings.min_nodes, settings.max_nodes) == expected


def test_node_ids_are_unique_by_default() -> None:
    first, second = connect(**GOOD), connect(**GOOD)
    assert first.node != second.node
    assert re.fullmatch(r".+_\d+_[0-9a-f]{12}", first.node)


def test_a_seeded_rendezvous_repeats_itself() -> None:
    first, second = (connect(**GOOD, rng=random.Random(7)) for _ in range(2))
    assert first.node == second.node


@in_virtual_time
async def test_nodes_meet_at_an_endpoint() -> None:
    async with (
        connect("memory://here", run_id="job", nodes=2) as a,
        connect("memory://here", run_id="job", nodes=2) as b,
        connect("memory://here", run_id="other", nodes=1) as c,
    ):
        assert sorted(world.rank for world in await together(a, b)) == [0, 1]
        assert (await c.join()).size == 1


# Entering and leaving


@in_virtual_time
async def test_a_users_exception_comes_out_unwrapped() -> None:
    async with Meeting() as meeting:
        with pytest.raises(Boom) as caught:
            async with meeting.node("a", "1") as a:
                await a.join()
                raise Boom
        assert caught.value.__cause__ is None
        await meeting.expect_nothing_left()


@in_virtual_time
async def test_enter_in_one_task_and_leave_in_another() -> None:
    async with Meeting() as meeting:
        a = meeting.node("a", "1")
        loop = asyncio.get_running_loop()
        await loop.create_task(a.__aenter__())
        world = await loop.create_task(a.join())
        await loop.create_task(world.store.set("key", b"value"))
        assert await loop.create_task(world.store.get("key")) == b"value"
        await loop.create_task(a.__aexit__(None, None, None))
        await meeting.expect_nothing_left()


@asynccontextmanager
async def yielding(meeting: Meeting) -> AsyncIterator[Rendezvous]:
    """As a fixture does."""
    async with meeting.node("a", "1") as a:
        await a.join()
        yield a


@in_virtual_time
async def test_a_generator_that_yields_inside_the_block_may_be_ended_in_another_task() -> None:
    async with Meeting() as meeting:
        manager = yielding(meeting)
        loop = asyncio.get_running_loop()

        async def enter() -> Rendezvous:
            return await manager.__aenter__()

        async def leave() -> None:
            await manager.__aexit__(None, None, None)

        a = await loop.create_task(enter())
        assert a.world is not None
        await loop.create_task(leave())


@in_virtual_time
async def test_entering_sends_nothing() -> None:
    async with Meeting() as meeting:
        meeting.server.table.revision = 7
        async with meeting.node("a", "1"):
            await anyio.sleep(10)
            assert meeting.server.table.sessions == 0
        assert meeting.server.table.revision == 7


@in_virtual_time
async def test_an_endpoint_that_was_never_used_is_not_opened_to_be_closed() -> None:
    async with connect(**GOOD) as a:
        pass
    assert a._supervisor is not None
    assert a._supervisor.backend is None
    assert a._supervisor.failure is None


@in_virtual_time
async def test_leaving_deletes_the_record_and_the_post_in_one_step() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as a:
            await a.join()
            assert {"nodes/a", "coordinator"} <= set(await meeting.keys())
            revision = meeting.server.table.revision
        assert meeting.server.table.revision == revision + 1
        assert await meeting.keys() == ["history/1", "rounds/1", "seats/a", "state"]


@in_virtual_time
async def test_a_backend_that_was_given_stays_open() -> None:
    async with Meeting() as meeting:
        backend = meeting.backend()
        async with meeting.node("a", "1", backend=backend) as a:
            await a.join()
        assert await backend.get("state") is not None


@in_virtual_time
async def test_a_backend_of_its_own_is_closed() -> None:
    async with connect("memory://here", run_id="job", nodes=1) as a:
        await a.join()
        assert a._supervisor is not None
        backend = a._supervisor.backend
    assert backend is not None
    with pytest.raises(RendezvousConnectionError, match="closed"):
        await backend.get("state")


@in_virtual_time
async def test_calls_outside_of_the_block_are_refused() -> None:
    async with Meeting() as meeting:
        a = meeting.node("a", "1")
        calls = (a.join, a.leave, a.close, a.status, lambda: a.evict("b"))
        for call in calls:
            with pytest.raises(RuntimeError, match="<Rendezvous run='job' node='a' not entered>: use it inside its"):
                await call()
        async with a:
            pass
        for call in calls:
            with pytest.raises(RuntimeError, match="node='a' left>: use it inside its 'async with' block"):
                await call()
        with pytest.raises(RuntimeError, match="can be entered only once"):
            await a.__aenter__()


@in_virtual_time
async def test_one_join_at_a_time() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "2")
        meeting.start(a)
        await anyio.sleep(1)
        with pytest.raises(RuntimeError, match=r"join\(\) is already under way"):
            await a.join()
        with pytest.raises(RuntimeError, match=r"join\(\) is under way; cancel it instead of leaving"):
            await a.leave()
        assert await meeting.keys("nodes/") == ["nodes/a"], "the first join goes on"


@in_virtual_time
async def test_a_rendezvous_describes_itself() -> None:
    async with Meeting() as meeting:
        a = meeting.node("a", "1")
        assert repr(a) == "<Rendezvous run='job' node='a' not entered>"
        async with a:
            assert repr(a) == "<Rendezvous run='job' node='a' not joined>"
            await a.join()
            assert repr(a) == "<Rendezvous run='job' node='a' <World run='job' round=1 rank=0 size=1>>"
        assert repr(a) == "<Rendezvous run='job' node='a' left>"


@in_virtual_time
async def test_leaving_without_having_joined_is_no_error() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        await a.leave()
        await a.leave()


# At the same time


@pytest.mark.parametrize("slow", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("after", [0, 0.005, 0.015, 0.025, 0.035, 0.045, 0.055, 0.065, 1])
@in_virtual_time
async def test_a_join_ends_when_the_rendezvous_is_left_meanwhile(slow: bool, after: float) -> None:
    async with Meeting(slow=slow) as meeting:
        a = meeting.node("a", "2")
        await a.__aenter__()
        joining = meeting.start(a)
        await anyio.sleep(after)
        left_at = now()
        await a.__aexit__(None, None, None)
        await until(lambda: joining.ended, within=5)
        assert isinstance(joining.error, RendezvousError | RuntimeError)
        assert joining.ended_at is not None
        assert joining.ended_at < left_at + 1
        assert meeting.server.table.sessions == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
@in_virtual_time
async def test_a_session_that_opens_after_the_rendezvous_was_left_is_ended(is_cancelled: bool) -> None:
    async with Meeting(slow=True) as meeting:
        a = meeting.node("a", "2")
        await a.__aenter__()
        joining = meeting.start(a)
        await anyio.sleep(0.005)
        await a.__aexit__(None, None, None)
        await anyio.sleep(0.02)
        assert meeting.server.table.sessions == 1, "the join has heard of it, and has asked for its end"
        if is_cancelled:
            joining.scope.cancel()
        await anyio.sleep(0.02)
        assert meeting.server.table.sessions == 0
        assert joining.ended
        assert is_cancelled or "was left while it joined" in str(joining.error)


@in_virtual_time
async def test_a_join_at_an_endpoint_ends_when_the_rendezvous_is_left_meanwhile() -> None:
    async with Meeting() as meeting:
        a = connect("memory://here", run_id="job", nodes=2)
        await a.__aenter__()
        joining = meeting.start(a)
        await anyio.sleep(1)
        await a.__aexit__(None, None, None)
        await until(lambda: joining.ended, within=5)
        assert isinstance(joining.error, RendezvousError)


@in_virtual_time
async def test_a_backend_that_opens_after_the_rendezvous_was_left_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Backend] = []

    async def open_slowly(*_: object, **__: object) -> Backend:
        await anyio.sleep(1)
        opened.append(Backend(MemoryDriver(MemoryServer()), "job"))
        return opened[-1]

    monkeypatch.setattr("rendezvous_async.node.supervisor.open_with", open_slowly)
    async with Meeting() as meeting:
        a = connect("memory://slow", run_id="job", nodes=2)
        await a.__aenter__()
        joining = meeting.start(a)
        await anyio.sleep(0.5)
        await a.__aexit__(None, None, None)
        await until(lambda: joining.ended, within=5)
        assert isinstance(joining.error, RendezvousError)
        (backend,) = opened
        with pytest.raises(RendezvousConnectionError, match="the memory backend is closed"):
            await backend.get("state")


@in_virtual_time
async def test_leaving_twice_at_once() -> None:
    async with Meeting(slow=True) as meeting:
        (a,) = await meeting.enter_all("a", "1")
        await a.join()
        async with anyio.create_task_group() as group:
            group.start_soon(a.leave)
            group.start_soon(a.leave)
        assert (await a.join()).round == 2


# A backend that cannot be reached


@in_virtual_time
async def test_a_join_that_gets_no_answer_times_out_and_says_so() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        line.cut()
        a = await meeting.enter("a", "1", backend=line, timeouts=Timeouts(join=12, close=3))
        with pytest.raises(RendezvousTimeoutError) as caught:
            await a.join()
        assert now() < 12.1, "what is known to be out of reach is not asked for the status"
        assert caught.value.diagnosis is None
        text = str(caught.value)
        assert text == (
            "run 'job': no round with node a formed within 12 s\n"
            "  cannot reach the backend for 7 s: node a: open a session: the backend did not answer within 5 s"
        )
        line.mend()
        assert (await a.join()).round == 1


@in_virtual_time
async def test_a_join_goes_on_when_the_backend_is_back() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "2", backend=line)
        joining = meeting.start(a)
        await anyio.sleep(1)
        line.cut()
        await anyio.sleep(60)
        line.mend()
        (b,) = await meeting.enter_all("b", "2")
        assert (await b.join()).size == 2
        await until(lambda: joining.ended)
        assert joining.world is not None


@in_virtual_time
async def test_a_spare_that_is_cut_off_does_not_wait_for_ever() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        (a,) = await meeting.enter_all("a", "1")
        b = await meeting.enter("b", "1", backend=line, timeouts=Timeouts(join=20))
        await a.join()
        spare = meeting.start(b)
        await anyio.sleep(100)
        assert not spare.ended
        line.cut()
        await until(lambda: spare.ended, within=60)
        assert isinstance(spare.error, RendezvousTimeoutError)
        line.mend()


@in_virtual_time
async def test_a_spare_that_was_cut_off_for_a_while_is_a_spare_again() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        (a,) = await meeting.enter_all("a", "1")
        b = await meeting.enter("b", "1", backend=line, timeouts=Timeouts(join=20))
        await a.join()
        spare = meeting.start(b)
        await anyio.sleep(100)
        line.cut()
        await anyio.sleep(10)
        line.mend()
        await anyio.sleep(100)
        assert not spare.ended
        await a.close("done")
        await until(lambda: spare.ended)
        assert isinstance(spare.error, RendezvousGracefulExitError)


@in_virtual_time
async def test_leaving_a_backend_that_does_not_answer_is_bounded() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        async with meeting.node("a", "1", backend=line, timeouts=Timeouts(close=3)) as a:
            await a.join()
            line.cut()
            start = now()
        assert now() == start + 1.5
        line.mend()
        await anyio.sleep(6)


@in_virtual_time
async def test_a_goodbye_without_an_answer_is_not_said_again_at_once() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        for pause, waits in ((0.0, 0.0), (0.4, 0.0), (0.5, 1.5)):
            async with meeting.node("a", "1", backend=line) as a:
                await a.join()
                await anyio.sleep(0.5)
                line.cut()
                await anyio.sleep(2)  # A keep-alive gets no answer, so the node knows of the trouble.
                start = now()
                await a.leave()
                assert now() == start + 1.5
                await anyio.sleep(pause)
                start = now()
            assert now() == start + waits
            line.mend()
            await anyio.sleep(6)


@in_virtual_time
async def test_no_new_session_before_the_old_one_is_ended() -> None:
    """A leave that did not get through is made good before the next join, so one node never has two records."""
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1", backend=line, timeouts=Timeouts(close=2))
        await a.join()
        line.cut()
        await a.leave()
        assert await meeting.keys("nodes/") == ["nodes/a"]
        line.mend()
        await a.join()
        assert meeting.server.table.sessions == 1


@in_virtual_time
async def test_a_session_that_cannot_be_ended_is_followed_by_no_other() -> None:
    class Stubborn(MemoryDriver):
        refusals = 3

        async def end_session(self, session: str, cause: str = "") -> None:
            if self.refusals:
                self.refusals -= 1
                assert meeting.server.table.sessions == 1
                raise RendezvousConnectionError("no answer")
            await super().end_session(session, cause)

    async with Meeting() as meeting:
        backend = Stubborn(meeting.server)
        a = await meeting.enter("a", "1", backend=backend)
        await a.join()
        await a.leave()
        assert (await a.join()).round == 2
        assert backend.refusals == 0
        assert meeting.server.table.sessions == 1


@pytest.mark.parametrize("name", ["close", "status", "evict"])
@in_virtual_time
async def test_calls_that_get_no_answer_say_so(name: str) -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1", backend=line, timeouts=Timeouts(close=3))
        line.cut()
        with pytest.raises(RendezvousConnectionError, match="the backend did not answer within 3 s"):
            await (a.evict("b") if name == "evict" else getattr(a, name)())
        assert now() == 3
        line.mend()


@in_virtual_time
async def test_a_join_tries_again_ever_more_seldom_but_at_least_every_second_and_a_half() -> None:
    tried: list[float] = []

    class Failing(MemoryDriver):
        async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
            tried.append(now())
            raise RendezvousConnectionError("no answer")

    async with Meeting() as meeting:
        a = await meeting.enter("a", "1", backend=Failing(meeting.server), timeouts=Timeouts(join=20))
        with pytest.raises(RendezvousTimeoutError, match="no answer"):
            await a.join()
        assert now() == tried[0] + 20
        pauses = [after - before for before, after in pairwise(tried)]
        means = [min(0.05 * 2**number, 1.0) for number in range(len(pauses))]
        assert len(pauses) > 10
        assert all(0.5 * mean - 1e-5 <= pause <= 1.5 * mean + 1e-5 for mean, pause in zip(means, pauses, strict=True))


@in_virtual_time
async def test_a_final_connection_error_ends_a_join_at_once() -> None:
    class Refusing(MemoryDriver):
        async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
            raise RendezvousConnectionError("wrong secret", final=True)

    async with Meeting() as meeting:
        a = await meeting.enter("a", "1", backend=Refusing(meeting.server))
        with pytest.raises(RendezvousConnectionError, match="wrong secret"):
            await a.join()
        assert now() == 0


@in_virtual_time
async def test_an_arrival_whose_answer_is_lost_is_not_repeated() -> None:
    class Deaf(Line):
        deaf = False

        async def commit(self, *args: Any) -> Any:
            commit = await super().commit(*args)
            if self.deaf:
                self.deaf = False
                self.arrived_at = commit.token
                raise RendezvousConnectionError("no answer")
            return commit

    async with Meeting() as meeting:
        line = Deaf(meeting.server)
        a = await meeting.enter("a", "1", backend=line)
        events: list[rdzv.Event] = []
        a.listen(events.append)
        await a.join()
        line.deaf = True
        assert (await a.join()).round == 2
        assert [event.kind.value for event in events].count("arrived") == 2
        record = await meeting.entry("nodes/a")
        assert record is not None
        assert record.token == line.arrived_at  # it keeps its place among those who came


@pytest.mark.parametrize("nodes", ["1", "20"])  # a founder, and one that is none
@in_virtual_time
async def test_a_session_whose_opening_is_not_answered_is_not_in_the_way(nodes: str) -> None:
    class Deaf(Line):
        ghost: Session | None = None

        async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
            granted = await super().open(opening, deadline)
            if self.ghost is None:
                self.ghost = granted.session
                raise RendezvousConnectionError("no answer")
            return granted

    async with Meeting() as meeting:
        line = Deaf(meeting.server)
        a = await meeting.enter("a", nodes, backend=line)
        joining = meeting.start(a)
        await anyio.sleep(1)
        record = await meeting.entry("nodes/a")
        assert line.ghost is not None
        assert record is not None
        assert record.session == session_of(a).id != line.ghost.id
        await anyio.sleep(10)  # What the ghost still has goes with it, and nothing else.
        assert await meeting.entry("nodes/a") == record
        assert joining.ended == (nodes == "1")


@in_virtual_time
async def test_a_world_of_an_older_join_stays_out_after_the_next() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        old, _ = await together(a, b)
        new, _ = await together(a, b)
        assert old.change is Change.EVICTED
        assert new.change is None
        assert a.world is new


@in_virtual_time
async def test_a_backend_that_cannot_end_a_session_does_not_keep_a_node_from_leaving() -> None:
    class Broken(MemoryDriver):
        async def end_session(self, session: str, cause: str = "") -> None:
            raise OSError("a bug")

    async with Meeting() as meeting:
        async with meeting.node("a", "1", backend=Broken(meeting.server)) as a:
            await a.join()
            await a.leave()
        assert now() == 0
        await until(lambda: meeting.server.table.sessions == 0)


@in_virtual_time
async def test_an_owner_that_fails_is_logged_and_hangs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with Meeting() as meeting:
        a = meeting.node("a", "1")
        await a.__aenter__()
        await a.join()

        async def fail() -> None:
            raise Boom

        assert a._supervisor is not None
        assert a._supervisor.failure is None
        await a._supervisor.see_through(fail)
        await a.__aexit__(None, None, None)
        assert a._supervisor.failure is not None
        assert "its owner failed; please report this" in caplog.text
        meeting._all.clear()
        await until(lambda: meeting.server.table.sessions == 0)
