"""``world.gather``: everybody's small value by rank, on every backend, and when somebody does not come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import Change, RendezvousFencedError, RendezvousTimeoutError, Timeouts
from rendezvous_async.node.world import World
from tests.meeting import Meeting, in_virtual_time, now, together
from tests.node.test_store import keys_of_round, pass_barriers


async def gather_all(worlds: Sequence[World], number: int = 0) -> None:
    """Let all members gather, and check what each of them gets."""
    got: list[list[bytes]] = []

    async def gather(world: World) -> None:
        got.append(await world.gather(f"{number}: {world.rank}".encode()))

    async with anyio.create_task_group() as group:
        for world in worlds:
            group.start_soon(gather, world)
    assert got == [[f"{number}: {rank}".encode() for rank in range(len(worlds))]] * len(worlds)


async def worlds_of(meeting: Meeting, names: str) -> list[World]:
    """Return the worlds of these nodes, by rank."""
    worlds = await together(*await meeting.enter_all(names, str(len(names))))
    return sorted(worlds, key=lambda world: world.rank)


@pytest.mark.parametrize("names", ["a", "ab", "abcdefgh"])
@in_virtual_time
async def test_everybody_gets_all_values_by_rank(names: str) -> None:
    async with Meeting() as meeting:
        worlds = await worlds_of(meeting, names)
        for number in range(3):
            await gather_all(worlds, number)
        assert len(await keys_of_round(worlds[0])) <= 2
        assert await worlds[0].store.num_keys() == 0


@pytest.mark.parametrize("kind", ["memory", "tcp", "file"])
async def test_gathers_and_barriers_take_turns_and_clean_up_on_every_backend(kind: str, tmp_path: Path) -> None:
    async with rdzv.serve(port=0) as server, AsyncExitStack() as stack:
        tcp = f"{server.endpoint}?is_host=false"
        endpoint = {"memory": "memory://gather", "tcp": tcp, "file": f"file://{tmp_path}/rdzv"}[kind]
        nodes = [await stack.enter_async_context(rdzv.connect(endpoint, run_id="job", nodes=3)) for _ in range(3)]
        with anyio.fail_after(60):
            worlds = await together(*nodes)
            for number in range(5):
                await gather_all(worlds, number)
                await pass_barriers(worlds, ["step", "=gather"])
            assert len(await keys_of_round(worlds[0])) <= 3


@in_virtual_time
async def test_a_gather_writes_and_waits_for_one_key_per_member() -> None:
    """O(N) messages: a key of each member, one of all, and one push of it to each; then the keys of the members go."""
    async with Meeting() as meeting:
        worlds = await worlds_of(meeting, "abcdefgh")
        before = meeting.server.table.token.revision
        await gather_all(worlds)
        assert meeting.server.table.token.revision - before == len(worlds) + 1


@in_virtual_time
async def test_values_may_hold_anything_and_nothing() -> None:
    async with Meeting() as meeting:
        a, b = await worlds_of(meeting, "ab")
        got: list[Any] = []

        async def gather() -> None:
            got.append(await a.gather(b"\n/\x00\xff", timeout=5))

        async with anyio.create_task_group() as group:
            group.start_soon(gather)
            assert await b.gather(b"") == [b"\n/\x00\xff", b""]
        assert got == [[b"\n/\x00\xff", b""]]


@pytest.mark.parametrize("value", ["text", 7, None, ["a"]])
@in_virtual_time
async def test_a_value_must_be_bytes(value: Any) -> None:
    async with Meeting() as meeting:
        (world,) = await worlds_of(meeting, "a")
        with pytest.raises(TypeError, match="a value to gather must be bytes, not"):
            await world.gather(value)
        with pytest.raises(ValueError, match="timeout must be a positive"):
            await world.gather(b"", timeout=0)
        assert await world.gather(b"fine") == [b"fine"]


@in_virtual_time
async def test_a_value_that_is_too_large_is_refused_before_anything_is_written() -> None:
    async with Meeting() as meeting:
        a, b = await worlds_of(meeting, "ab")
        most = 1024 * 1024 // 2
        with pytest.raises(ValueError, match=f"world of 2, a value to gather has at most {most} bytes, not {most + 1}"):
            await a.gather(b"x" * (most + 1))
        assert await keys_of_round(a) == []
        results = []

        async def gather(world: World) -> None:
            results.append(await world.gather(b"x" * most))

        async with anyio.create_task_group() as group:
            group.start_soon(gather, a)
            group.start_soon(gather, b)
        assert results == [[b"x" * most] * 2] * 2


@in_virtual_time
async def test_who_did_not_come_is_named_and_a_later_call_tries_the_same_gather_again() -> None:
    async with Meeting() as meeting:
        worlds = await worlds_of(meeting, "abcd")
        errors = []

        async def gather(world: World) -> None:
            with pytest.raises(RendezvousTimeoutError) as error:
                await world.gather(b"too early", timeout=7)
            errors.append(str(error.value))

        began = now()
        async with anyio.create_task_group() as group:
            for world in (worlds[0], worlds[2]):
                group.start_soon(gather, world)
        assert now() - began == 7
        assert all("gather() waited 7 s; ranks that did not come: [1, 3]" in error for error in errors)
        await gather_all(worlds, 5)


@in_virtual_time
async def test_a_member_that_gives_up_after_it_came_can_still_fetch_what_the_others_gathered() -> None:
    async with Meeting() as meeting:
        worlds = await worlds_of(meeting, "abc")
        with anyio.move_on_after(1) as scope:
            await worlds[1].gather(b"from 1")
        assert scope.cancelled_caught
        got = []

        async def gather(world: World) -> None:
            got.append(await world.gather(f"from {world.rank}".encode()))

        async with anyio.create_task_group() as group:
            group.start_soon(gather, worlds[0])
            group.start_soon(gather, worlds[2])
        assert got == [[b"from 0", b"from 1", b"from 2"]] * 2
        assert await worlds[1].gather(b"this comes too late") == got[0]
        await gather_all(worlds, 2)


@in_virtual_time
async def test_a_round_that_ends_ends_the_gather_for_all() -> None:
    async with Meeting() as meeting:
        options: dict[str, Any] = {"timeouts": Timeouts(join=60, last_call=1, regroup=1)}
        nodes = await meeting.enter_all("abc", "2:3", **options)
        worlds = await together(*nodes)
        assert [world.node for world in worlds] == ["a", "b", "c"]
        outcomes: list[object] = []

        async def gather(world: World) -> None:
            try:
                outcomes.append(await world.gather(b"some"))
            except RendezvousFencedError as error:
                outcomes.append(type(error))

        async def stop_when_changed(world: World) -> None:
            async with world.until_changed() as block:
                await world.gather(b"some")
            outcomes.append(block.change)

        async with anyio.create_task_group() as group:
            group.start_soon(stop_when_changed, worlds[0])
            group.start_soon(gather, worlds[1])
            await anyio.sleep(1)
            await nodes[2].leave()
            await anyio.sleep(1)
            assert outcomes == [Change.MEMBER_LOST], "who only waits still holds the round"
            assert await nodes[0].evict("b")
        assert outcomes == [Change.MEMBER_LOST, RendezvousFencedError]


@in_virtual_time
async def test_gathers_that_are_cancelled_at_random_agree_in_the_end() -> None:
    rng = random.Random(5)
    async with Meeting() as meeting:
        worlds = await worlds_of(meeting, "abcd")
        got: dict[int, list[list[bytes]]] = {number: [] for number in range(40)}

        async def come(world: World) -> None:
            for number in got:
                while True:
                    with anyio.move_on_after(rng.choice((0, 0.001, 1, 100))) as scope:
                        await anyio.sleep(rng.random())
                        got[number].append(await world.gather(f"{number} of {world.rank}".encode()))
                    if not scope.cancelled_caught:
                        break

        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(come, world)
        for number, results in got.items():
            assert results == [[f"{number} of {rank}".encode() for rank in range(4)]] * 4
        await pass_barriers(worlds, ["last", "of all"])
        assert len(await keys_of_round(worlds[0])) <= 2
