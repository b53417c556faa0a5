"""Worlds of a shape, with real nodes in virtual time: sizes, whole domains, spares, scaling and growing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import (
    Change,
    RendezvousClosedError,
    RendezvousSettingsError,
    RendezvousStateError,
    RendezvousTimeoutError,
    Spec,
    Timeouts,
    World,
)
from rendezvous_async.admin import read_head
from rendezvous_async.aio.signal import Notice
from rendezvous_async.core.diagnosis import Role
from rendezvous_async.core.state import WORLD_SHAPE
from rendezvous_async.node.rendezvous import Rendezvous
from tests.meeting import Joining, Meeting, in_virtual_time, now, together

FAST: dict[str, Any] = {"timeouts": Timeouts(join=60, last_call=2, regroup=2)}


def rack(name: str) -> dict[str, Any]:
    """Return what a node of whole domains says: the first letter of its name is its rack."""
    return {"domain": "rack", "per_domain": 2, "labels": {"rack": name[0]}} | FAST


async def enter_racks(meeting: Meeting, names: str, nodes: str) -> list[Rendezvous]:
    return [await meeting.enter(name, nodes, **rack(name)) for name in names.split()]


async def start_in_turn(meeting: Meeting, nodes: Sequence[Rendezvous]) -> list[Joining]:
    """Let nodes join in the background, in this order."""
    joins = []
    for node in nodes:
        joins.append(meeting.start(node))
        await anyio.sleep(0.01)
    return joins


async def back_to_barrier(*worlds: tuple[Rendezvous, World]) -> list[World]:
    """Let all members see their world change, and return the next one's."""
    for _, world in worlds:
        await world.changed()
    return await together(*(rendezvous for rendezvous, _ in worlds))


def by_rank(worlds: list[World]) -> list[str]:
    return [world.node for world in sorted(worlds, key=lambda world: world.rank)]


# Sizes and spares


@in_virtual_time
async def test_a_world_has_an_allowed_size_and_the_rest_are_spares_who_make_nobody_restart() -> None:
    async with Meeting() as meeting:
        nodes = await meeting.enter_all("abcdef", "2,4,8", **FAST)
        joins = await start_in_turn(meeting, nodes)
        await anyio.sleep(3)
        worlds = [join.world for join in joins if join.world is not None]
        assert by_rank(worlds) == ["a", "b", "c", "d"]
        await anyio.sleep(300)
        assert [join.ended for join in joins] == [True] * 4 + [False] * 2, "a spare's clock stands still"
        assert {world.change for world in worlds} == {None}
        assert (await meeting.head()).waiting == 0
        assert (await meeting.head()).requires == (WORLD_SHAPE,)
        status = await nodes[0].status()
        assert status.nodes(Role.SPARE) == ["e", "f"]
        assert "usable: 6 here, 4 usable: 2 more nodes would make 8" in str(status)


@in_virtual_time
async def test_newcomers_count_once_they_make_the_next_size() -> None:
    async with Meeting() as meeting:
        a, b, c, d = await meeting.enter_all("abcd", "2,4", **FAST)
        worlds = await together(a, b)
        joins = [meeting.start(c)]
        await anyio.sleep(10)
        assert worlds[0].change is None
        joins.append(meeting.start(d))
        assert await worlds[0].changed() is Change.NODES_WAITING
        assert (await meeting.head()).waiting == 2
        again = await together(a, b)
        await anyio.sleep(1)
        assert {world.size for world in [*again, *(join.world for join in joins if join.world)]} == {4}


@in_virtual_time
async def test_a_loss_that_a_spare_can_fill_forms_the_same_size_at_once() -> None:
    async with Meeting() as meeting:
        nodes = await meeting.enter_all("abcdef", "2,4,8", timeouts=Timeouts(join=60, last_call=2, regroup=50))
        joins = await start_in_turn(meeting, nodes)
        await anyio.sleep(3)
        await nodes[1].leave()
        began = now()
        members = [
            (node, join.world) for node, join in zip(nodes, joins, strict=True) if join.world and node.node != "b"
        ]
        worlds = await back_to_barrier(*members)
        assert now() - began < 1
        assert {world.size for world in worlds} == {4}
        assert joins[4].world is not None
        assert joins[4].world.rank == 1
        assert not joins[5].ended


# Domains


@in_virtual_time
async def test_domains_are_whole_and_their_ranks_contiguous() -> None:
    async with Meeting() as meeting:
        nodes = await enter_racks(meeting, "a1 b1 c1 a2 c2", "2:6:2")
        bare = await meeting.enter("bare", "2:6:2", **(rack("x") | {"labels": {}}))
        joins = await start_in_turn(meeting, [bare, *nodes])
        await anyio.sleep(3)
        worlds = [join.world for join in joins if join.world is not None]
        assert by_rank(worlds) == ["a1", "a2", "c1", "c2"]
        status = await nodes[0].status()
        assert status.nodes(Role.SPARE) == ["bare", "b1"]
        assert status.unlabelled == ("bare",)
        assert status.fit is not None
        assert (status.fit.usable, status.fit.next_size, status.fit.missing, status.fit.fill) == (4, 6, 1, ("b",))
        assert "spares without the label rack: bare" in str(status)
        assert "1 more node in domain b would make 6" in str(status)


@in_virtual_time
async def test_a_lost_node_is_replaced_from_its_own_domain() -> None:
    async with Meeting() as meeting:
        nodes = await enter_racks(meeting, "a1 a2 b1 b2 c3 c4 b5", "2:4:2")
        joins = await start_in_turn(meeting, nodes)
        await anyio.sleep(3)
        assert [bool(join.world) for join in joins] == [True] * 4 + [False] * 3
        await nodes[2].leave()
        members = [
            (node, join.world) for node, join in zip(nodes, joins, strict=True) if join.world and node.node != "b1"
        ]
        worlds = await back_to_barrier(*members)
        assert joins[6].world is not None
        assert by_rank([*worlds, joins[6].world]) == ["a1", "a2", "b5", "b2"]


@in_virtual_time
async def test_a_domain_that_is_replaced_as_a_whole_leaves_the_others_their_ranks() -> None:
    async with Meeting() as meeting:
        nodes = await enter_racks(meeting, "a1 a2 b1 b2 c1 c2 d1 d2", "2:6:2")
        joins = await start_in_turn(meeting, nodes)
        await anyio.sleep(3)
        for node in nodes[2:4]:
            await node.leave()
        members = [(n, j.world) for n, j in zip(nodes, joins, strict=True) if j.world and n.node[0] != "b"]
        worlds = await back_to_barrier(*members)
        new = [join.world for join in joins[6:] if join.world]
        assert by_rank([*worlds, *new]) == ["a1", "a2", "d1", "d2", "c1", "c2"]


# Scaling


async def held(meeting: Meeting, names: str, nodes: str, **options: Any) -> list[tuple[Rendezvous, World]]:
    """Return these nodes, holding the first round."""
    entered = await meeting.enter_all(names, nodes, **FAST | options)
    joins = await start_in_turn(meeting, entered)
    await anyio.sleep(2)
    return [(rendezvous, join.world) for rendezvous, join in zip(entered, joins, strict=True) if join.world]


@in_virtual_time
async def test_a_lower_max_turns_the_last_ranks_into_spares() -> None:
    async with Meeting() as meeting:
        members = await held(meeting, "abcd", "2:4")
        spec = await members[0][0].scale("2:3")
        assert spec == Spec("2:3", None, 1)
        assert {await world.changed() for _, world in members} == {Change.RESIZED}
        assert members[0][1].glance(0).pending == 1
        joins = [meeting.start(rendezvous) for rendezvous, _ in members]
        await anyio.sleep(1)
        worlds = [join.world for join in joins if join.world is not None]
        assert by_rank(worlds) == ["a", "b", "c"]
        await anyio.sleep(200)
        assert not joins[3].ended
        await members[0][0].scale("2:4")
        assert await worlds[0].changed() is Change.NODES_WAITING
        assert {w.size for w in await together(*(rendezvous for rendezvous, _ in members[:3]))} == {4}


@in_virtual_time
async def test_a_higher_max_lets_spares_in_and_nodes_with_the_old_settings_still_match() -> None:
    async with Meeting() as meeting:
        members = await held(meeting, "ab", "2")
        spare = meeting.start(await meeting.enter("c", "2", **FAST))
        await anyio.sleep(5)
        assert members[0][1].change is None
        await members[1][0].scale("2:6", target=4)
        assert await members[0][1].changed() is Change.NODES_WAITING
        again = [meeting.start(rendezvous) for rendezvous, _ in members]
        began = now()
        late = meeting.start(await meeting.enter("d", "2", **FAST))
        await anyio.sleep(0.5)
        assert {join.world.size for join in (*again, spare, late) if join.world} == {4}, "the target forms at once"
        assert late.ended_at is not None
        assert late.ended_at - began < 0.5
        fifth = meeting.start(await meeting.enter("e", "2", **FAST))
        await anyio.sleep(100)
        assert not fifth.ended
        head = await meeting.head()
        assert (head.size, head.target, head.generation, head.waiting) == (4, 4, 1, 0)
        status = str(await members[0][0].status())
        assert "scaled: 2:6, target 4 (change 1; nodes still start with '2:2 sticky last_call=2 regroup=2')" in status
        assert "4 is the target" in status


@in_virtual_time
async def test_a_world_that_is_too_small_now_is_kept_until_a_larger_one_can_form() -> None:
    async with Meeting() as meeting:
        members = await held(meeting, "ab", "2:2")
        await members[0][0].scale("4:6:2")
        await anyio.sleep(10)
        assert {world.change for _, world in members} == {None}
        joins = [meeting.start(await meeting.enter("c", "2:2", **FAST))]
        await anyio.sleep(10)
        assert {world.change for _, world in members} == {None}
        joins.append(meeting.start(await meeting.enter("d", "2:2", **FAST)))
        worlds = await back_to_barrier(*members)
        assert {world.size for world in worlds} == {4}


@in_virtual_time
async def test_scaling_says_what_it_cannot_do_and_changes_nothing() -> None:
    async with Meeting() as meeting:
        alone = await meeting.enter("a", "1:4", **FAST)
        with pytest.raises(RendezvousStateError, match="there is no run 'job' here"):
            await alone.scale(target=2)
        with pytest.raises(RendezvousStateError, match="there is no run 'job' here"):
            await alone.grow()
        await alone.join()
        before = await meeting.entry("state")
        for wrong, text in (
            ({}, "say what is to change"),
            ({"target": 5}, "the target 5 is not a size that a world can have; the nearest is 4"),
            ({"target": -1}, "target must be a count of nodes, or 0 for none, not -1"),
            ({"target": "2"}, "target must be a count of nodes, or 0 for none, not '2'"),
            ({"nodes": "4:2"}, "not 4:2"),
            ({"nodes": "2:8:2", "target": 3}, "the nearest is 2 or 4"),
        ):
            with pytest.raises(ValueError, match=text):
                await alone.scale(**wrong)
        assert await alone.scale("1:4") == Spec("1:4"), "what holds already is no change"
        assert await meeting.entry("state") == before
        assert await alone.scale(target=2) == Spec("1:4", 2, 1)
        assert await alone.scale(target=2) == Spec("1:4", 2, 1)
        assert str(await alone.scale(target=0)) == "1:4"
        await alone.close("done")
        for call in (alone.scale("1:2"), alone.grow()):
            with pytest.raises(RendezvousClosedError, match="done"):
                await call


@in_virtual_time
async def test_domains_stay_whole_when_a_run_is_scaled() -> None:
    async with Meeting() as meeting:
        nodes = await enter_racks(meeting, "a1 a2", "2:4:2")
        await together(*nodes)
        with pytest.raises(ValueError, match="none of the sizes 3:5:2 is a multiple of per_domain=2"):
            await nodes[0].scale("3,5")
        assert (await nodes[0].scale("4:8:4")).nodes == "4:8:4"


@in_virtual_time
async def test_two_who_scale_at_once_both_have_their_way_one_after_the_other() -> None:
    async with Meeting() as meeting:
        members = await held(meeting, "abc", "1:3")
        specs = []

        async def scale(rendezvous: Rendezvous, target: int) -> None:
            specs.append(await rendezvous.scale(target=target))

        async with anyio.create_task_group() as group:
            for number, (rendezvous, _) in enumerate(members, start=1):
                group.start_soon(scale, rendezvous, number)
        assert sorted(spec.generation for spec in specs) == [1, 2, 3]
        last = max(specs, key=lambda spec: spec.generation)
        assert (await meeting.head()).target == last.target


@in_virtual_time
async def test_newcomers_with_the_new_sizes_do_not_match_and_are_told_what_to_bring() -> None:
    async with Meeting() as meeting:
        members = await held(meeting, "ab", "2")
        await members[0][0].scale("2:4")
        with pytest.raises(RendezvousSettingsError, match=r"'2:2 sticky.*\(it was scaled since, but nodes still"):
            await (await meeting.enter("c", "2:4", **FAST)).join()


# Growing


@in_virtual_time
async def test_ten_staggered_arrivals_are_one_change() -> None:
    async with Meeting() as meeting:
        timeouts = Timeouts(join=60, last_call=2, regroup=2, grow=5)
        members = await held(meeting, "ab", "2:20", timeouts=timeouts)
        changes = []
        joins = []
        worlds = [world for _, world in members]
        began = now()
        for name in "cdefghijkl":
            joins.append(meeting.start(await meeting.enter(name, "2:20", timeouts=timeouts)))
            await anyio.sleep(0.4)
            changes += [world.change for world in worlds if world.change]
        assert changes == []
        assert (await meeting.head()).held_back == 10
        assert "10 newcomers will be let in after 5 s" in str(await members[0][0].status())
        assert await worlds[0].changed() is Change.NODES_WAITING
        assert 5 <= now() - began < 5.3
        again = await together(*(rendezvous for rendezvous, _ in members))
        await anyio.sleep(1)
        assert {w.size for w in (*again, *(join.world for join in joins)) if w} == {12}
        assert again[0].round == 2
        await anyio.sleep(60)
        assert again[0].change is None


@in_virtual_time
async def test_newcomers_who_complete_the_world_are_let_in_at_once() -> None:
    async with Meeting() as meeting:
        members = await held(meeting, "ab", "2:4", timeouts=Timeouts(last_call=2, grow=math.inf))
        for name in "cd":
            assert members[0][1].change is None
            meeting.start(await meeting.enter(name, "2:4", timeouts=Timeouts(last_call=2, grow=math.inf)))
            await anyio.sleep(1)
        assert members[0][1].change is Change.NODES_WAITING


@in_virtual_time
async def test_newcomers_are_let_in_when_the_job_says_so() -> None:
    async with Meeting() as meeting:
        timeouts = Timeouts(join=30, last_call=2, grow=math.inf)
        members = await held(meeting, "ab", "2:8", timeouts=timeouts)
        a, world = members[0]
        before = await meeting.entry("state")
        await a.grow()
        assert await meeting.entry("state") == before, "nobody waits"
        joins = [meeting.start(await meeting.enter(name, "2:8", timeouts=timeouts)) for name in "cd"]
        await anyio.sleep(100)
        assert world.change is None
        assert not any(join.ended for join in joins), "the clock of those who are held back stands still"
        assert "2 newcomers will be let in by grow() (rdzv scale --grow) or by a loss" in str(await a.status())
        await a.grow()
        assert {await world.changed() for _, world in members} == {Change.NODES_WAITING}
        again = await together(*(rendezvous for rendezvous, _ in members))
        assert {w.size for w in again} == {4}
        late = meeting.start(await meeting.enter("e", "2:8", timeouts=timeouts))
        await anyio.sleep(20)
        assert again[0].change is None, "the next ones wait for the next call"
        assert not late.ended


@in_virtual_time
@pytest.mark.parametrize("scales_first", [False, True])
@pytest.mark.parametrize("nodes", ["2:8", "2:2"], ids=["held back", "no place"])
async def test_scaling_and_letting_in_do_not_undo_each_other(nodes: str, scales_first: bool) -> None:
    async with Meeting() as meeting:
        timeouts = Timeouts(join=30, last_call=2, grow=math.inf)
        members = await held(meeting, "ab", nodes, timeouts=timeouts)
        a, world = members[0]
        newcomer = meeting.start(await meeting.enter("c", nodes, timeouts=timeouts))
        await anyio.sleep(10)
        if scales_first:
            await a.scale("2:6")
            await a.grow()
        else:
            assert await a.grow() == (1 if nodes == "2:8" else 0)
            await a.scale("2:6")
        await anyio.sleep(10)
        if nodes == "2:2" and not scales_first:
            assert world.change is None, "nobody could be let in"
            assert await a.grow() == 1
        assert {await world.changed() for _, world in members} == {Change.NODES_WAITING}
        again = await together(*(rendezvous for rendezvous, _ in members))
        assert {w.size for w in again} == {3}
        await anyio.sleep(1)
        assert newcomer.world is not None


@in_virtual_time
async def test_a_loss_lets_those_in_who_are_held_back() -> None:
    async with Meeting() as meeting:
        timeouts = Timeouts(join=30, last_call=2, regroup=20, grow=math.inf)
        members = await held(meeting, "abc", "2:8", timeouts=timeouts)
        newcomer = meeting.start(await meeting.enter("d", "2:8", timeouts=timeouts))
        await anyio.sleep(1)
        await members[1][0].leave()
        began = now()
        worlds = await back_to_barrier(members[0], members[2])
        assert {world.size for world in worlds} == {3}
        assert now() - began < 1
        assert newcomer.world is not None
        assert newcomer.world.rank == 1


# Large worlds


@pytest.mark.parametrize(("nodes", "target", "size"), [(None, 48, 48), ("16:96:16", None, 96)], ids=["to 3", "to 6"])
@in_virtual_time
async def test_64_nodes_in_4_domains_re_form_without_waiting(nodes: str | None, target: int | None, size: int) -> None:
    """``tests.benchmarks.bench_shape`` has the real seconds; no rule adds to them."""
    async with Meeting() as meeting:
        spares = max(0, size - 64)
        entered = [
            await meeting.enter(
                f"{n:02}", "16:64:16", domain="rack", per_domain=16, labels={"rack": str(n // 16)}, **FAST
            )
            for n in range(64 + spares)
        ]
        joins = await start_in_turn(meeting, entered)
        await anyio.sleep(5)
        members = [(node, join.world) for node, join in zip(entered, joins, strict=True) if join.world]
        assert len(members) == 64
        began = now()
        await entered[0].scale(nodes, target)
        for _, world in members:
            assert await world.changed() in (Change.RESIZED, Change.NODES_WAITING)
        again = [meeting.start(node) for node, _ in members]
        await anyio.sleep(0.1)
        assert now() - began < 0.2
        worlds = [join.world for join in (*again, *joins[64:]) if join.world]
        assert len(worlds) == size
        assert {world.size for world in worlds} == {size}
        racks = [int(name) // 16 for name in by_rank(worlds)]
        assert racks == sorted(racks)


@in_virtual_time
async def test_a_node_without_the_label_is_told_so_when_its_join_times_out() -> None:
    async with Meeting() as meeting:
        await (await enter_racks(meeting, "a1", "2:4:2"))[0].leave()
        bare = await meeting.enter("bare", "2:4:2", **(rack("x") | {"labels": {}, "timeouts": Timeouts(join=5)}))
        with pytest.raises(RendezvousTimeoutError) as caught:
            await bare.join()
        assert "1 here, none usable: 1 node without the label rack" in str(caught.value)
        assert "spares without the label rack: bare" in str(caught.value)


# On real backends


@pytest.mark.parametrize("kind", ["tcp", "file"])
async def test_a_run_is_scaled_down_and_up_and_grown_on_every_backend(kind: str, tmp_path: Path) -> None:
    async with rdzv.serve(port=0) as server, AsyncExitStack() as stack:
        endpoint = f"{server.endpoint}?is_host=false" if kind == "tcp" else f"file://{tmp_path}/rdzv"
        timeouts = Timeouts(last_call=30, regroup=0.2, grow=math.inf)
        nodes = [
            await stack.enter_async_context(rdzv.connect(endpoint, run_id="job", nodes="2:4:2", timeouts=timeouts))
            for _ in range(4)
        ]
        sizes: dict[str, list[int]] = {node.node: [] for node in nodes}
        news = Notice()

        async def live(node: Rendezvous) -> None:
            async for world in node.worlds():
                sizes[node.node].append(world.size)
                news.fire()
                await world.changed()

        async def all_have(*expected: list[int]) -> None:
            while sorted(sizes.values()) != sorted(expected):
                await news.wait()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for node in nodes:
                    group.start_soon(live, node)
                await all_have(*[[4]] * 4)
                assert str(await nodes[0].scale(target=2)) == "2:4:2, target 2"
                await all_have([4, 2], [4, 2], [4], [4])
                assert str(await nodes[3].scale("2:6:2")) == "2:6:2"
                async with rdzv.open_backend(endpoint, run_id="job") as backend, backend.watch("state") as watch:
                    async for news_of_head in watch:
                        head = read_head(news_of_head.entries[0])
                        if head is not None and head.held_back == 2:
                            break
                await nodes[1].grow()
                await all_have([4, 2, 4], [4, 2, 4], [4, 4], [4, 4])
                await nodes[2].close("done")
