"""Joining: when rounds form, which nodes are in and which wait, and the errors of a join that fails."""

from __future__ import annotations

import anyio
import pytest

from rendezvous_async import (
    Change,
    Delete,
    Put,
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
    Timeouts,
)
from rendezvous_async.admin import read_head
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.diagnosis import Role, Status
from rendezvous_async.core.state import Head, Node
from tests.meeting import Meeting, in_virtual_time, now, together, until


async def arrival_of(meeting: Meeting, node: str) -> str:
    entry = await meeting.entry(f"nodes/{node}")
    assert entry is not None
    return decode(Node, entry.value).arrival


# Gathering


@in_virtual_time
async def test_max_forms_at_once() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        worlds = await together(a, b)
        assert now() == 0
        assert sorted(world.rank for world in worlds) == [0, 1]
        assert {(world.round, world.size) for world in worlds} == {(1, 2)}
        assert worlds[0].token == worlds[1].token
        assert (await meeting.head()).token == (worlds[0].token.epoch, worlds[0].token.revision)


@in_virtual_time
async def test_one_node_alone() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1")
        world = await a.join()
        assert (world.round, world.rank, world.size) == (1, 0, 1)
        assert [(m.rank, m.node, m.address) for m in await world.members()] == [(0, "a", "a.example")]


@in_virtual_time
async def test_the_last_call_runs_out_and_the_round_forms_with_min() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab")
        worlds = await together(a, b)
        assert now() == 30
        assert [world.size for world in worlds] == [2, 2]


@in_virtual_time
async def test_the_last_call_is_never_extended_by_arrivals() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc")
        joins = [meeting.start(a), meeting.start(b)]
        await anyio.sleep(29.9)
        joins.append(meeting.start(c))
        await until(lambda: all(joining.ended for joining in joins))
        assert [joining.ended_at for joining in joins] == [30, 30, 30]
        assert {joining.world.size for joining in joins if joining.world} == {3}


@in_virtual_time
async def test_max_reached_ends_the_last_call() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        joins = [meeting.start(a)]
        await anyio.sleep(10)
        joins.append(meeting.start(b))
        await until(lambda: all(joining.ended for joining in joins))
        assert [joining.ended_at for joining in joins] == [10, 10]


@in_virtual_time
async def test_the_last_call_is_off_when_fewer_than_min_are_left() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc")
        joining_a, joining_b = meeting.start(a), meeting.start(b)
        await anyio.sleep(29)
        joining_b.scope.cancel()
        await anyio.sleep(11)
        assert not joining_a.ended
        joining_c = meeting.start(c)
        await until(lambda: joining_c.ended)
        assert joining_a.ended_at == joining_c.ended_at == 70


@in_virtual_time
async def test_the_last_call_starts_anew_when_the_coordinator_changes() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:9")
        joining_a = meeting.start(a)
        await anyio.sleep(1)
        joins = [meeting.start(b), meeting.start(c)]
        await anyio.sleep(20)
        assert (await a.status()).coordinator == "a"
        joining_a.scope.cancel()
        await until(lambda: all(joining.ended for joining in joins))
        assert now() == pytest.approx(51, abs=0.01)
        assert {joining.world.size for joining in joins if joining.world} == {2}


# Regrouping


@in_virtual_time
async def test_survivors_regroup_and_keep_their_ranks() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        first = dict(zip("abc", await together(a, b, c), strict=True))
        await c.leave()
        assert await first["a"].changed() is Change.MEMBER_LOST
        assert await first["b"].changed() is Change.MEMBER_LOST
        left_at = now()
        second = dict(zip("ab", await together(a, b), strict=True))
        assert now() == left_at + 3, "regroup is 3 s by default"
        assert {world.round for world in second.values()} == {2}
        assert {world.size for world in second.values()} == {2}
        for node, world in second.items():
            assert world.token.revision > first[node].token.revision
            if first[node].rank < 2:
                assert world.rank == first[node].rank


@in_virtual_time
async def test_newcomers_wait_until_members_return() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2:3")
        worlds = await together(a, b)
        joining = meeting.start(c)
        started = now()
        assert [await world.changed() for world in worlds] == [Change.NODES_WAITING] * 2
        assert now() == started, "members learn of it at once"
        back = meeting.start(a)
        await anyio.sleep(60)
        assert not joining.ended
        assert not back.ended
        world_b = await b.join()
        assert now() == started + 60, "max is reached, so it forms at once"
        await until(lambda: joining.ended and back.ended)
        assert joining.world is not None
        assert (joining.world.round, joining.world.size) == (2, 3)
        assert world_b.rank == worlds[1].rank
        assert joining.world.rank == 2


@in_virtual_time
async def test_round_numbers_grow_even_if_the_backend_forgot_everything() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        for _ in range(3):
            worlds = await together(a, b)
        assert worlds[0].round == 3
        meeting.forget_everything()
        assert await worlds[0].changed() is Change.EVICTED
        again = await together(a, b)
        assert {world.round for world in again} == {4}
        assert [world.rank for world in again] == [world.rank for world in worlds]
        assert again[0].token.epoch != worlds[0].token.epoch


# Waiting and lost


class HeadWatcher:
    """Notes every head that is pushed, and when."""

    def __init__(self, meeting: Meeting) -> None:
        self._backend = meeting.backend()
        self.seen: list[tuple[float, int, int]] = []

    async def run(self) -> None:
        async with self._backend.watch("state") as watch:
            async for listing in watch:
                for entry in listing.entries:
                    head = read_head(entry)
                    assert head is not None
                    self.seen.append((now(), head.waiting, head.lost))


@in_virtual_time
async def test_waiting_is_counted_at_once_and_then_every_100_ms() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1:9")
        await a.join()
        start = now()
        watcher = HeadWatcher(meeting)
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run)
            await anyio.sleep(1)
            watcher.seen.clear()
            for number in range(6):
                meeting.start(await meeting.enter(f"n{number}", "1:9"))
                await anyio.sleep(0.03)
            await anyio.sleep(1)
            group.cancel_scope.cancel()
        times = [round(at - start - 1, 6) for at, _, _ in watcher.seen]
        assert times == [0, 0.1, 0.2]
        assert [waiting for _, waiting, _ in watcher.seen] == [1, 4, 6]


@in_virtual_time
async def test_lost_members_are_counted() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "3")
        world = (await together(a, b, c))[0]
        await b.leave()
        assert await world.changed() is Change.MEMBER_LOST
        await c.leave()
        await anyio.sleep(0.2)
        head = await meeting.head()
        assert (head.waiting, head.lost) == (0, 2)
        await a.leave()
        await anyio.sleep(0.2)


# Spares


@in_virtual_time
async def test_a_spares_clock_stands_still_and_starts_anew_when_a_place_frees() -> None:
    timeouts = Timeouts(join=5)
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        c = await meeting.enter("c", "2", timeouts=timeouts)
        world, _ = await together(a, b)
        spare = meeting.start(c)
        await anyio.sleep(100)
        assert not spare.ended
        assert world.change is None, "spares do not disturb members"
        assert (await a.status()).nodes(Role.SPARE) == ["c"]
        await b.leave()
        assert await world.changed() is Change.MEMBER_LOST
        await until(lambda: spare.ended)
        assert isinstance(spare.error, RendezvousTimeoutError)
        assert spare.ended_at == pytest.approx(105, abs=0.01)


@in_virtual_time
async def test_a_spare_takes_the_place_that_frees() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        c = await meeting.enter("c", "2", timeouts=Timeouts(join=5))
        worlds = await together(a, b)
        spare = meeting.start(c)
        await anyio.sleep(60)
        await b.leave()
        world = await a.join()
        await until(lambda: spare.ended)
        assert spare.world is not None
        assert (spare.world.round, spare.world.size) == (2, 2)
        assert world.rank == 0, "rank 0 goes to a survivor"
        assert worlds[0].change is Change.EVICTED


@in_virtual_time
async def test_spares_come_in_the_order_of_their_arrival() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "1")
        await a.join()
        first = meeting.start(b)
        await anyio.sleep(1)
        second = meeting.start(c)
        await anyio.sleep(1)
        await a.leave()
        await until(lambda: first.ended)
        assert first.world is not None
        assert not second.ended


@in_virtual_time
async def test_a_spare_exits_gracefully_when_the_run_closes() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1")
        await a.join()
        spare = meeting.start(b)
        await anyio.sleep(1)
        await a.close("all done")
        await until(lambda: spare.ended)
        assert isinstance(spare.error, RendezvousGracefulExitError)
        assert str(spare.error) == "run 'job' was closed by a: all done; this node was a spare, and was not needed"


# Leave, loss and close


@in_virtual_time
async def test_leaving_does_not_close_for_the_others() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world, _ = await together(a, b)
        await b.leave()
        assert await world.changed() is Change.MEMBER_LOST
        assert (await a.join()).size == 1
        assert (await meeting.head()).closed is None


@in_virtual_time
async def test_a_node_may_join_again_after_it_left() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1")
        first = await a.join()
        await a.leave()
        assert await meeting.keys("nodes/") == []
        assert first.change is Change.EVICTED
        second = await a.join()
        assert (first.round, second.round) == (1, 2)
        await a.leave()
        await a.leave()


@in_virtual_time
async def test_dying_does_not_close_for_the_others() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world, lost = await together(a, b)
        meeting.end_session_of("nodes/b")
        assert await world.changed() is Change.MEMBER_LOST
        await anyio.sleep(1.5)
        assert lost.change is Change.EVICTED, "it learns so with its next keep-alive"
        assert (await a.join()).size == 1


@in_virtual_time
async def test_closing_ends_every_join_and_every_world_for_good() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world = await a.join()
        newcomer = meeting.start(b)
        assert await world.changed() is Change.NODES_WAITING
        await a.close("training done")
        assert await world.changed() is Change.CLOSED
        await until(lambda: newcomer.ended)
        for rendezvous in (a, b):
            with pytest.raises(RendezvousClosedError) as caught:
                await rendezvous.join()
            assert (caught.value.reason, caught.value.by) == ("training done", "a")
            assert str(caught.value) == "run 'job' was closed by a: training done"
        await b.close("another word")
        closed = (await meeting.head()).closed
        assert closed is not None
        assert (closed.reason, closed.by) == ("training done", "a"), "the first close counts"
        assert isinstance(newcomer.error, RendezvousClosedError)


@in_virtual_time
async def test_closed_beats_formed() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        waiting = meeting.start(a)
        await anyio.sleep(1)
        await b.close("never mind")
        await until(lambda: waiting.ended)
        assert isinstance(waiting.error, RendezvousClosedError)
        with pytest.raises(RendezvousClosedError):
            await b.join()
        assert (await meeting.head()).round == 0


@in_virtual_time
async def test_a_run_can_be_closed_before_anybody_joined() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a")
        await a.close("called off")
        with pytest.raises(RendezvousClosedError, match="called off"):
            await a.join()
        assert str(await a.status()) == "run 'job': closed by a: called off\n  here: nobody"


# Settings


@in_virtual_time
async def test_other_settings_are_an_error_that_names_both() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2:4")
        b = await meeting.enter("b", "1:9")
        waiting = meeting.start(a)
        await anyio.sleep(1)
        with pytest.raises(RendezvousSettingsError) as caught:
            await b.join()
        assert str(caught.value) == (
            "run 'job' has the settings '2:4 sticky last_call=30 regroup=3', like 1 other node here, but node b has "
            "'1:9 sticky last_call=30 regroup=3': use the same nodes, ranks and timeouts on all nodes, or another run "
            "id"
        )
        assert await meeting.keys("nodes/") == ["nodes/a"]
        assert not waiting.ended


@in_virtual_time
async def test_settings_are_replaced_if_nobody_else_is_here() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1")
        b = await meeting.enter("b", "1:9", ranks="sorted")
        first = await a.join()
        with pytest.raises(RendezvousSettingsError):
            await b.join()
        await a.leave()
        world = await b.join()
        assert world.round == first.round + 1
        assert (await meeting.head()).settings == b.settings


@in_virtual_time
async def test_settings_are_replaced_by_several_that_come_together() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as alone:
            first = await alone.join()
        worlds = await together(*await meeting.enter_all("bcd", "3"))
        assert {(world.round, world.size) for world in worlds} == {(first.round + 1, 3)}


@in_virtual_time
async def test_one_that_wants_something_else_does_not_keep_many_from_replacing_settings() -> None:
    many = "bcdefghijklmnopqrstuvw"
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as alone:
            await alone.join()
        joining = [meeting.start(node) for node in await meeting.enter_all(many, str(len(many)))]
        stray = meeting.start(await meeting.enter("x", "500"))
        await until(lambda: stray.ended and all(join.ended for join in joining))
        assert isinstance(stray.error, RendezvousSettingsError)
        assert {join.world.size for join in joining if join.world is not None} == {len(many)}


@in_virtual_time
async def test_nobody_stays_who_came_to_a_run_that_is_closed() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1")
        await a.close("done")
        with pytest.raises(RendezvousClosedError, match="done"):
            await b.join()
        assert await meeting.keys("nodes/") == []


@in_virtual_time
async def test_a_member_alone_may_come_back_with_other_settings() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as first:
            await first.join()
        second = await meeting.enter("a", "1:3", timeouts=Timeouts(last_call=7))
        world = await second.join()
        assert (world.round, world.size) == (2, 1)
        assert now() == 7


@in_virtual_time
async def test_a_node_that_crashed_and_comes_back_with_other_settings_is_not_in_its_own_way() -> None:
    async with Meeting() as meeting:
        crashed = meeting.line()
        first = await meeting.enter("a", "1", backend=crashed)
        await first.join()
        crashed.cut()
        second = await meeting.enter("a", "1:2", timeouts=Timeouts(last_call=1))
        assert (await second.join()).round == 2
        assert now() == pytest.approx(6, abs=0.01), "its old session holds the post for its TTL"
        crashed.mend()
        await anyio.sleep(10)
        assert await meeting.keys("nodes/") == ["nodes/a"], "the old session does not delete what the new one wrote"


@in_virtual_time
async def test_a_node_whose_settings_were_replaced_is_told() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2")
        waiting = meeting.start(a)
        await anyio.sleep(1)
        state = await meeting.entry("state")
        assert state is not None
        async with Meeting() as other, other.node("z", "1:9") as z:
            await z.join()
            foreign = await other.entry("state")
        assert foreign is not None
        assert foreign.value is not None
        await meeting.backend().commit(Put("state", foreign.value))
        await anyio.sleep(1)
        assert (await meeting.head()).settings == a.settings, "nobody is here who wants the others"
        record = Node(arrival="z", fingerprint=z.settings.fingerprint)
        await meeting.backend().commit(Put("state", encode(Head(settings=z.settings))), Put("nodes/z", encode(record)))
        await until(lambda: waiting.ended)
        assert isinstance(waiting.error, RendezvousSettingsError)
        assert "has the settings '1:9 sticky" in str(waiting.error)
        await meeting.backend().commit(Delete("nodes/z"))


# Eviction and lost sessions


@in_virtual_time
async def test_evicting_a_node() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        world, evicted = await together(a, b)
        assert await a.evict("b") is True
        assert await world.changed() is Change.MEMBER_LOST
        await anyio.sleep(1.5)
        assert evicted.change is Change.EVICTED
        assert await a.evict("b") is False
        assert await a.evict("nobody") is False
        assert {again.round for again in await together(a, b)} == {2}, "it may join again"


@in_virtual_time
async def test_a_session_lost_inside_join_is_a_new_arrival_with_the_same_deadline() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", timeouts=Timeouts(join=50))
        waiting = meeting.start(a)
        await anyio.sleep(20)
        before = await arrival_of(meeting, "a")
        meeting.end_session_of("nodes/a")
        await anyio.sleep(5)
        assert await arrival_of(meeting, "a") != before
        assert (await a.status()).coordinator == "a"
        await until(lambda: waiting.ended)
        assert waiting.ended_at == 50
        assert isinstance(waiting.error, RendezvousTimeoutError)


@in_virtual_time
async def test_a_session_lost_inside_join_does_not_keep_a_round_from_forming() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        waiting = meeting.start(a)
        await anyio.sleep(20)
        meeting.end_session_of("nodes/a")
        world = await b.join()
        await until(lambda: waiting.ended)
        assert waiting.world is not None
        assert {world.rank, waiting.world.rank} == {0, 1}


# A join that takes too long


@in_virtual_time
async def test_a_join_that_times_out_says_who_is_here_and_how_many_are_missing() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "3:4", timeouts=Timeouts(join=10))
        with pytest.raises(RendezvousTimeoutError) as caught:
            await a.join()
        assert now() == 10
        assert str(caught.value) == (
            "run 'job': no round with node a formed within 10 s\n"
            "run 'job': gathering its first round; 1 of 3 to 4 nodes are at the barrier\n"
            "  here: a (waiting)\n"
            "  next: 2 more must join before a round can form\n"
            "  coordinator: a"
        )
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value.diagnosis, Status)
        assert caught.value.diagnosis.missing == 2
        assert await meeting.keys("nodes/") == [], "a join that failed leaves nothing behind"


@in_virtual_time
async def test_a_join_that_times_out_says_who_has_not_come_back() -> None:
    timeouts = Timeouts(join=40)
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "3", timeouts=timeouts)
        c = await meeting.enter("c", "3")
        worlds = dict(zip("abc", await together(a, b, c), strict=True))
        await c.leave()
        joins = [meeting.start(a), meeting.start(b)]
        await until(lambda: all(joining.ended for joining in joins))
        error = joins[0].error
        assert isinstance(error, RendezvousTimeoutError)
        assert isinstance(error.diagnosis, Status)
        assert error.diagnosis.coordinator in ("a", "b")
        assert f"\n  not back: c (rank {worlds['c'].rank} in round 1)\n" in str(error)
        assert "\n  next: 1 more must join before a round can form\n" in str(error)
        assert str(error).endswith(f"\n  coordinator: {error.diagnosis.coordinator}")


@in_virtual_time
async def test_a_join_that_times_out_says_whose_return_it_waits_for() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "1:2")
        b = await meeting.enter("b", "1:2", timeouts=Timeouts(join=10))
        await a.join()
        with pytest.raises(RendezvousTimeoutError, match="the next round gathers when these return or leave: a"):
            await b.join()


@in_virtual_time
async def test_a_node_that_returned_and_timed_out_may_try_again() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", timeouts=Timeouts(join=10))
        b = await meeting.enter("b", "2")
        await together(a, b)
        with pytest.raises(RendezvousTimeoutError):
            await a.join()
        assert (await together(a, b))[0].round == 2
