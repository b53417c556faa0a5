"""The coordinator: one at a time, any node can, and whatever goes wrong, another takes over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from rendezvous_async import (
    Change,
    Delete,
    Event,
    EventKind,
    Put,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    Timeouts,
)
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Commit, Condition, Sink, Subscription, Token, Write
from rendezvous_async.backends.memory import MemoryDriver, MemoryServer
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import Phase, Seat
from rendezvous_async.node.rendezvous import Rendezvous
from tests.meeting import PREFIX, Line, Meeting, in_virtual_time, now, together, until

Fault = Callable[[tuple[str, ...]], Exception | None]


class Spy(Line):
    """Notes what is committed, and fails where a test says so."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.log: list[tuple[bool, tuple[str, ...], tuple[str, ...]]] = []
        self.fault: Fault = lambda _: None

    async def commit(
        self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
    ) -> Commit:
        start = len(PREFIX)
        names = tuple(write.key[start:] if isinstance(write, Put) else "-" + write.name[start:] for write in writes)
        error = self.fault(names)
        if error is not None:
            raise error
        commit = await super().commit(writes, when, deadline)
        self.log.append((commit.won, names, tuple(condition.key[start:] for condition in when)))
        return commit


class Stuck(MemoryDriver):
    """Its watch on the roster says that it has not been current since a moment that a test sets."""

    stuck_since: float | None = None

    def watch(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> Subscription:
        subscription = super().watch(names, after, sink)
        if names == (f"{PREFIX}nodes/",):
            driver = self

            class StuckSubscription(type(subscription)):  # type: ignore[misc]
                @property
                def current_at(self) -> float:
                    return anyio.current_time() if driver.stuck_since is None else driver.stuck_since

            subscription.__class__ = StuckSubscription
        return subscription


def spy(meeting: Meeting) -> Spy:
    return Spy(meeting.server)


async def coordinator_of(rendezvous: Rendezvous) -> str | None:
    return (await rendezvous.status()).coordinator


async def wait_for_coordinator(rendezvous: Rendezvous, name: str, within: float = 60.0) -> None:
    with anyio.fail_after(within):
        while await coordinator_of(rendezvous) != name:  # noqa: ASYNC110 - in virtual time a look costs nothing
            await anyio.sleep(0.01)


# Who coordinates


@in_virtual_time
async def test_the_first_to_arrive_coordinates() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab")
        meeting.start(a)
        await anyio.sleep(1)
        meeting.start(b)
        await anyio.sleep(1)
        assert await coordinator_of(b) == "a"


@pytest.mark.parametrize("how", ["leave", "die", "evict", "cancel"])
@in_virtual_time
async def test_another_takes_over_when_the_coordinator_is_gone(how: str) -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        worlds = await together(a, b, c)
        name = await coordinator_of(a)
        gone = {"a": a, "b": b, "c": c}[name or ""]
        first, second = (node for node in (a, b, c) if node is not gone)
        match how:
            case "leave":
                await gone.leave()
            case "die":
                meeting.end_session_of("coordinator")
            case "evict":
                await first.evict(gone.node)
            case _:
                joining = meeting.start(gone)
                await anyio.sleep(1)
                joining.scope.cancel()
        assert await worlds[[a, b, c].index(first)].changed() in (Change.MEMBER_LOST, Change.NODES_WAITING)
        again = await together(first, second)
        assert {world.size for world in again} == {2}
        assert await coordinator_of(first) in (first.node, second.node)


@in_virtual_time
async def test_of_many_that_campaign_one_coordinates() -> None:
    async with Meeting() as meeting:
        nodes = await meeting.enter_all("abcd")
        await together(*nodes)
        name = await coordinator_of(nodes[0])
        (gone,) = (node for node in nodes if node.node == name)
        coordinating: list[str] = []

        def note(name: str, event: Event) -> None:
            if event.kind is EventKind.COORDINATING:
                coordinating.append(name)

        for node in nodes:
            node.listen(partial(note, node.node))
        await gone.leave()
        await anyio.sleep(1)
        assert coordinating == [await coordinator_of(gone)]


@in_virtual_time
async def test_a_coordinator_cut_off_is_replaced_and_its_late_writes_change_nothing() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a = await meeting.enter("a", "1:3", backend=line)
        old = await a.join()
        b, c = await meeting.enter_all("bc", "1:3")
        joins = [meeting.start(b), meeting.start(c)]
        assert await old.changed() is Change.NODES_WAITING
        line.cut()
        await until(lambda: all(joining.ended for joining in joins))
        assert old.change is Change.EVICTED
        assert {joining.world.round for joining in joins if joining.world} == {2}
        assert await coordinator_of(b) in ("b", "c")
        revision = meeting.server.table.revision
        line.mend()
        await anyio.sleep(5)
        assert meeting.server.table.revision == revision
        assert (await meeting.head()).round == 2


@in_virtual_time
async def test_a_coordinator_without_its_key_stands_down_and_campaigns_again() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1:2")
        world = await a.join()
        await meeting.backend().commit(Delete("coordinator"))
        await wait_for_coordinator(a, "a", within=1)
        (b,) = await meeting.enter_all("b", "1:2")
        meeting.start(b)
        assert await world.changed() is Change.NODES_WAITING


@in_virtual_time
async def test_nobody_campaigns_for_a_closed_run() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        await together(a, b)
        await a.close()
        await anyio.sleep(1)
        await meeting.backend().commit(Delete("coordinator"))
        await anyio.sleep(60)
        assert await coordinator_of(a) is None


@in_virtual_time
async def test_a_coordinator_of_other_settings_gives_the_post_back() -> None:
    async with Meeting() as other:
        (z,) = await other.enter_all("z", "1:9")
        await z.join()
        foreign = await other.entry("state")
    assert foreign is not None
    assert foreign.value is not None
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        await a.join()
        await meeting.backend().commit(Put("state", foreign.value))
        await anyio.sleep(1)
        assert await meeting.entry("coordinator") is None
        (b,) = await meeting.enter_all("b", "1:9")
        await a.leave()
        await b.join()
        assert await coordinator_of(b) == "b"


# What goes wrong


@pytest.mark.parametrize("error", [RendezvousConnectionError, RendezvousStateError, ValueError, KeyError])
@in_virtual_time
async def test_a_coordinator_that_fails_resigns_and_another_takes_over(error: type[Exception]) -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        backend.fault = lambda names: error("no luck") if "state" in names and "rounds/1" in names else None
        a = await meeting.enter("a", "2", backend=backend)
        (b,) = await meeting.enter_all("b", "2")
        meeting.start(a)
        await anyio.sleep(1)
        assert await coordinator_of(a) == "a"
        await b.join()
        assert await coordinator_of(a) == "b"
        assert now() < 3
        assert [names for won, names, _ in backend.log if won and names == ("-coordinator",)]


@in_virtual_time
async def test_a_coordinator_that_always_fails_tries_on_and_does_not_spin() -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        backend.fault = lambda names: ValueError("a bug") if "rounds/1" in names else None
        a = await meeting.enter("a", "1", backend=backend, timeouts=Timeouts(join=10))
        with pytest.raises(RendezvousTimeoutError):
            await a.join()
        assert 20 <= sum("coordinator" in names for _, names, _ in backend.log) <= 60
        backend.fault = lambda _: None
        assert (await a.join()).round == 1


@in_virtual_time
async def test_a_coordinator_whose_watch_shows_no_progress_resigns() -> None:
    async with Meeting() as meeting:
        backend = Stuck(meeting.server)
        a = await meeting.enter("a", "2", backend=backend)
        (b,) = await meeting.enter_all("b", "2")
        await together(a, b)
        if await coordinator_of(a) == "b":
            await meeting.backend().commit(Delete("coordinator"))
            await wait_for_coordinator(b, "a")
        backend.stuck_since = anyio.current_time()
        start = now()
        (c,) = await meeting.enter_all("c", "2")
        await c.evict("nobody")
        await wait_for_coordinator(b, "b")
        assert now() - start <= 5 + 1


@in_virtual_time
async def test_a_write_whose_answer_is_lost_is_found_out() -> None:
    """The commit that forms the round happens, the coordinator does not hear of it: the round stands."""

    class Deaf(Spy):
        deaf = True

        async def commit(
            self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
        ) -> Commit:
            commit = await super().commit(writes, when, deadline)
            if self.deaf and "rounds/1" in self.log[-1][1]:
                self.deaf = False
                raise RendezvousConnectionError("no answer")
            return commit

    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", backend=Deaf(meeting.server))
        (b,) = await meeting.enter_all("b", "2")
        meeting.start(a)
        await anyio.sleep(1)
        world = await b.join()
        await anyio.sleep(5)
        assert world.change is None
        assert (await meeting.head()).round == 1


# Damaged records


@in_virtual_time
async def test_a_damaged_record_of_a_node_is_passed_over() -> None:
    async with Meeting() as meeting:
        session = await meeting.backend().open_session(100)
        await meeting.backend().commit(Put("nodes/x", b"garbage", session.id))
        a, b = await meeting.enter_all("ab", "2")
        assert {world.size for world in await together(a, b)} == {2}
        await session.aclose()


@in_virtual_time
async def test_a_record_that_gets_damaged_counts_as_lost() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        entry = await meeting.entry("nodes/b")
        assert entry is not None
        await meeting.backend().commit(Put("nodes/b", b"garbage", entry.session))
        assert await world.changed() is Change.MEMBER_LOST


@in_virtual_time
async def test_seats_that_do_not_count_are_deleted_by_whoever_takes_over() -> None:
    async with Meeting() as meeting:
        stale = Seat(round=1, attempt="given up", arrival="x", rank=0)
        await meeting.backend().commit(Put("seats/x", encode(stale)), Put("seats/y", b"garbage"))
        (a,) = await meeting.enter_all("a", "1")
        await a.join()
        await anyio.sleep(1)
        assert await meeting.keys("seats/") == ["seats/a"]


@in_virtual_time
async def test_seats_of_those_who_left_are_deleted_after_the_next_round() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        await together(a, b)
        await b.leave()
        await anyio.sleep(1)
        assert await meeting.keys("seats/") == ["seats/a", "seats/b"]
        await a.join()
        await anyio.sleep(1)
        assert await meeting.keys("seats/") == ["seats/a"]


# Commits


@in_virtual_time
async def test_a_round_that_fits_is_one_commit() -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        a = await meeting.enter("a", "2", backend=backend)
        (b,) = await meeting.enter_all("b", "2")
        meeting.start(a)
        await anyio.sleep(1)
        await b.join()
        form = [entry for entry in backend.log if "rounds/1" in entry[1]]
        assert len(form) == 1
        won, names, when = form[0]
        assert won
        assert sorted(names) == ["history/1", "rounds/1", "seats/a", "seats/b", "state"]
        assert when == ("state", "coordinator")
        await b.leave()
        await a.leave()
        await together(a, b)
        assert [e[1] for e in backend.log if "-rounds/1" in e[1]] or (await meeting.head()).round == 2


@in_virtual_time
async def test_every_write_of_the_coordinator_compares_the_state_and_the_post() -> None:
    async with Meeting(max_writes=5) as meeting:
        backend = spy(meeting)
        backend.max_writes = 5
        a = await meeting.enter("a", "1:9", backend=backend)
        await a.join()
        others = await meeting.enter_all("bcdefghi", "1:9")
        joins = [meeting.start(other) for other in others]
        await anyio.sleep(1)
        await a.join()
        await until(lambda: all(joining.ended for joining in joins))
        await others[0].leave()
        await anyio.sleep(1)
        checked = 0
        for _, names, when in backend.log:
            if not any(name in ("nodes/a", "coordinator") for name in names):
                assert when[:2] == ("state", "coordinator"), names
                checked += 1
        assert checked > 5


@pytest.mark.parametrize(
    "limits", [{"max_writes": 6}, {"max_bytes": 700}, {"max_writes": 5, "max_bytes": 700}], ids=str
)
@in_virtual_time
async def test_a_round_that_does_not_fit_is_written_in_batches(limits: dict[str, Any]) -> None:
    async with Meeting(**limits) as meeting:
        backend = spy(meeting)
        backend.max_writes = limits.get("max_writes", backend.max_writes)
        backend.max_bytes = limits.get("max_bytes", backend.max_bytes)
        a = await meeting.enter("a", "8", backend=backend)
        others = await meeting.enter_all("bcdefgh", "8")
        for number in (1, 2, 3):
            backend.log.clear()
            joining = meeting.start(a)
            await anyio.sleep(0.1)
            worlds = await together(*others)
            with anyio.fail_after(60):
                while not joining.ended:  # noqa: ASYNC110 - in virtual time a look costs nothing
                    await anyio.sleep(0.01)
            assert joining.world is not None
            assert sorted(world.rank for world in (*worlds, joining.world)) == list(range(8))
            assert {world.round for world in worlds} == {number}
            assert len(await joining.world.members()) == 8
            if await coordinator_of(a) != "a":
                continue
            steps = [(names, when) for won, names, when in backend.log if "nodes/a" not in names]
            begin = next(index for index, (names, _) in enumerate(steps) if names == ("forming",))
            end = next(index for index, (names, _) in enumerate(steps) if f"rounds/{number}" in names)
            assert end > begin + 1
            assert steps[begin][1] == ("state", "coordinator")
            batches = steps[begin + 1 : end]
            assert sorted(name for names, _ in batches for name in names) == [f"seats/{name}" for name in "abcdefgh"]
            assert {when for _, when in steps[begin + 1 : end + 1]} == {("state", "coordinator", "forming")}
            assert "-forming" in steps[end][0]
            assert "state" in steps[end][0]
        assert await meeting.entry("forming") is None
        assert await meeting.keys("rounds/") == ["rounds/3"]


@in_virtual_time
async def test_a_seat_does_not_count_before_the_head_names_its_attempt() -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        backend.max_writes = 5
        halted = anyio.Event()

        def halt(names: tuple[str, ...]) -> Exception | None:
            if "rounds/1" in names:
                halted.set()
                return RendezvousConnectionError("the last commit is lost")
            return None

        backend.fault = halt
        a = await meeting.enter("a", "4", backend=backend)
        others = await meeting.enter_all("bcd", "4")
        joins = [meeting.start(a)]
        await anyio.sleep(1)
        joins += [meeting.start(other) for other in others]
        await halted.wait()
        assert await meeting.keys("seats/") == ["seats/a", "seats/b", "seats/c", "seats/d"]
        assert not any(joining.ended for joining in joins)
        assert (await meeting.head()).round == 0
        await until(lambda: all(joining.ended for joining in joins))
        assert {joining.world.round for joining in joins if joining.world} == {1}
        assert await coordinator_of(a) in ("b", "c", "d")


@in_virtual_time
async def test_a_close_in_the_middle_of_an_attempt_wins() -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        backend.max_writes = 5
        a = await meeting.enter("a", "4", backend=backend)
        others = await meeting.enter_all("bcd", "4")

        class Closing:
            done = False

            def __call__(self, names: tuple[str, ...]) -> Exception | None:
                if names[0].startswith("seats/") and not self.done:
                    self.done = True
                    meeting._group.start_soon(others[0].close, "stop")
                return None

        backend.fault = Closing()
        joins = [meeting.start(a)]
        await anyio.sleep(1)
        joins += [meeting.start(other) for other in others]
        await until(lambda: all(joining.ended for joining in joins))
        head = await meeting.head()
        assert head.closed is not None
        assert head.round in (0, 1)
        assert {type(joining.error).__name__ for joining in joins} <= {"RendezvousClosedError", "NoneType"}


@in_virtual_time
async def test_gathering_is_told_when_everybody_has_left() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "3:4")
        await together(a, b, c)
        await b.leave()
        await c.leave()
        await anyio.sleep(1)
        assert (await meeting.head()).phase is Phase.FORMED
        meeting.start(a)
        await anyio.sleep(1)
        head = await meeting.head()
        assert (head.phase, head.round, head.waiting, head.lost) == (Phase.GATHERING, 1, 0, 0)
        assert head.token is not None


@in_virtual_time
async def test_a_campaign_without_an_answer_is_tried_again() -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        a = await meeting.enter("a", "1:2", backend=backend)
        world = await a.join()
        failures = 3

        def fail(names: tuple[str, ...]) -> Exception | None:
            nonlocal failures
            if names == ("coordinator",) and failures:
                failures -= 1
                return RendezvousConnectionError("no answer")
            return None

        backend.fault = fail
        await meeting.backend().commit(Delete("coordinator"))
        await wait_for_coordinator(a, "a", within=5)
        assert failures == 0
        assert world.change is None


@in_virtual_time
async def test_a_coordinator_without_a_state_stands_down() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await meeting.backend().commit(Delete("state"))
        await until(lambda: world.change is Change.EVICTED)
        await anyio.sleep(1)
        assert await meeting.entry("coordinator") is None
        assert (await a.join()).round == 2, "it remembers what the backend forgot"


def touch_state(meeting: Meeting) -> None:
    """Rewrite the head as another writer would: every compare with the old one fails."""
    table, key = meeting.server.table, f"{PREFIX}state"
    entry = table.get(key)
    assert entry is not None
    assert entry.value is not None
    table.commit([Put(key, entry.value)])
    meeting.server.settle()


@pytest.mark.parametrize("at", ["forming", "seats/", "rounds/1"])
@in_virtual_time
async def test_an_attempt_that_loses_a_compare_is_given_up_and_made_anew(at: str) -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        backend.max_writes = 5
        rivals = 1

        def interfere(names: tuple[str, ...]) -> Exception | None:
            nonlocal rivals
            if rivals and any(name.startswith(at) for name in names):
                rivals -= 1
                touch_state(meeting)
            return None

        backend.fault = interfere
        a = await meeting.enter("a", "4", backend=backend)
        others = await meeting.enter_all("bcd", "4")
        meeting.start(a)
        await anyio.sleep(1)
        worlds = await together(*others)
        assert rivals == 0
        assert {world.round for world in worlds} == {1}
        assert now() < 1.5
        await anyio.sleep(1)
        assert await meeting.keys("seats/") == [f"seats/{name}" for name in "abcd"]
        assert await meeting.entry("forming") is None


@in_virtual_time
async def test_clean_up_that_loses_a_compare_is_left_to_the_next() -> None:
    async with Meeting() as meeting:
        backend = spy(meeting)
        a = await meeting.enter("a", "1", backend=backend)
        world = await a.join()
        await world.store.set("key", b"value")

        def interfere(names: tuple[str, ...]) -> Exception | None:
            if "-rounds/1/" in names:
                touch_state(meeting)
            return None

        backend.fault = interfere
        assert (await a.join()).round == 2
        await anyio.sleep(1)
        assert "rounds/1/kv/key" in await meeting.keys()
        backend.fault = lambda _: None
        await meeting.backend().commit(Delete("coordinator"))
        await anyio.sleep(1)
        assert await meeting.keys("rounds/") == ["rounds/2"]
