"""The round's own store: what it does while the round is current, and what it refuses afterwards."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import Put, RendezvousFencedError, RendezvousTimeoutError, Store
from rendezvous_async.core.state import round_key
from rendezvous_async.node.world import World
from tests.meeting import Meeting, in_virtual_time, now, together, until

Call = Callable[[Store], Awaitable[object]]

WRITES: dict[str, Call] = {
    "set": lambda store: store.set("key", b"new"),
    "add": lambda store: store.add("number", 1),
    "compare_set that would write": lambda store: store.compare_set("key", b"old", b"new"),
    "compare_set that would not": lambda store: store.compare_set("key", b"other", b"new"),
    "compare_set of nothing": lambda store: store.compare_set("nothing", b"some", b"new"),
    "delete": lambda store: store.delete("key"),
    "delete of nothing": lambda store: store.delete("nothing"),
    "barrier": lambda store: store.barrier("done"),
    "num_keys": lambda store: store.num_keys(),
    "check": lambda store: store.check(["nothing"]),
    "get": lambda store: store.get("nothing"),
    "wait": lambda store: store.wait(["key", "nothing"]),
}
each_call = pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())


async def two(meeting: Meeting) -> tuple[World, World]:
    """Return the worlds of two nodes, rank 0 first."""
    a, b = await meeting.enter_all("ab", "2")
    first, second = sorted(await together(a, b), key=lambda world: world.rank)
    return first, second


# Keys and values


@in_virtual_time
async def test_members_read_what_others_wrote() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        await first.store.set("key", b"value")
        await first.store.set("text", "été")
        assert await second.store.get("key") == b"value"
        assert await second.store.get("text") == "été".encode()
        await second.store.set("key", b"other")
        assert await first.store.get("key") == b"other"


@in_virtual_time
async def test_get_waits_until_the_value_is_there() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)

        async def later() -> None:
            await anyio.sleep(100)
            await first.store.set("late", b"value")

        async with anyio.create_task_group() as group:
            group.start_soon(later)
            assert await second.store.get("late") == b"value"
            assert now() == 100


@in_virtual_time
async def test_wait_returns_the_values_in_order() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)

        async def later() -> None:
            for key in "cab":
                await anyio.sleep(1)
                await first.store.set(key, key * 2)

        async with anyio.create_task_group() as group:
            group.start_soon(later)
            assert await second.store.wait(key for key in "abcb") == [b"aa", b"bb", b"cc", b"bb"]
        assert await second.store.wait([]) == []


@in_virtual_time
async def test_wait_does_not_return_what_was_deleted_meanwhile() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        await first.store.set("a", b"1")
        await first.store.set("b", b"1")
        results: list[list[bytes]] = []

        async def wait() -> None:
            results.append(await second.store.wait(["a", "b", "c"]))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(1)
            await first.store.delete("a")
            await first.store.set("c", b"1")
            await anyio.sleep(1)
            assert results == []
            await first.store.set("a", b"2")
        assert results == [[b"2", b"1", b"1"]]


@pytest.mark.parametrize("delay", range(8))
@in_virtual_time
async def test_wait_does_not_return_what_was_deleted_while_it_began(delay: int) -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        await first.store.set("a", b"1")

        async def delete() -> None:
            for _ in range(delay):
                await anyio.lowlevel.checkpoint()
            await first.store.delete("a")
            await anyio.sleep(1)
            await first.store.set("b", b"1")

        async with anyio.create_task_group() as group:
            group.start_soon(delete)
            with pytest.raises(RendezvousTimeoutError, match=r"nobody has set \['a'\] within 5 s"):
                await second.store.wait(["a", "b"], timeout=5)


@in_virtual_time
async def test_a_wait_that_takes_too_long_names_the_keys() -> None:
    async with Meeting() as meeting:
        first, _ = await two(meeting)
        await first.store.set("there", b"")
        with pytest.raises(RendezvousTimeoutError) as caught:
            await first.store.wait(["there", "x", "a"], timeout=5)
        assert str(caught.value) == "<Store run='job' round=1 rank=0>: nobody has set ['a', 'x'] within 5 s"
        assert now() == 5


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), None, "5"])
@in_virtual_time
async def test_a_wrong_timeout_is_a_value_error(timeout: float) -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        store = (await a.join()).store
        for call in (store.get("key", timeout=timeout), store.barrier(timeout=timeout)):
            with pytest.raises(ValueError, match=f"timeout must be a.*number of seconds, not {timeout!r}"):
                await call


@in_virtual_time
async def test_check_delete_and_num_keys() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        store = first.store
        assert await store.num_keys() == 0
        await store.set("a", b"1")
        await store.set("b/c", b"")
        assert await store.num_keys() == 2
        assert await second.store.check(["a", "b/c"]) is True
        assert await second.store.check(["a", "b"]) is False
        assert await second.store.check([]) is True
        assert await store.delete("a") is True
        assert await store.delete("a") is False
        assert await store.num_keys() == 1


@in_virtual_time
async def test_keys_are_any_text() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        store = (await a.join()).store
        for key in ("a/b", "..", "a b", "é", "%2F", "/", "a/", "?"):
            await store.set(key, key)
        for key in ("a/b", "..", "a b", "é", "%2F", "/", "a/", "?"):
            assert await store.get(key, timeout=1) == key.encode()
        with pytest.raises(ValueError, match="must not be empty"):
            await store.set("", b"")


@pytest.mark.parametrize("value", [5, None, 1.5, ["x"]])
@in_virtual_time
async def test_values_are_bytes_or_text(value: object) -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        store = (await a.join()).store
        with pytest.raises(TypeError, match="bytes or a string"):
            await store.set("key", value)  # type: ignore[arg-type]
        assert await store.num_keys() == 0


# compare_set and add


@in_virtual_time
async def test_compare_set() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        store = first.store
        assert await store.compare_set("key", b"something", b"new") == b"something"
        assert await store.check(["key"]) is False, "no value, and one was expected: nothing is written"
        assert await store.compare_set("key", b"", b"one") == b"one"
        assert await store.compare_set("key", "", "two") == b"one"
        assert await second.store.compare_set("key", "one", "two") == b"two"
        assert await store.get("key") == b"two"
        await store.set("empty", b"")
        assert await store.compare_set("empty", b"x", b"y") == b""
        assert await store.compare_set("empty", b"", b"y") == b"y"


@in_virtual_time
async def test_of_many_that_compare_and_set_one_wins() -> None:
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all("abcd", "4"))
        results: list[bytes] = []

        async def claim(world: World) -> None:
            results.append(await world.store.compare_set("leader", b"", str(world.rank)))

        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(claim, world)
        assert len(set(results)) == 1
        assert await worlds[0].store.get("leader") == results[0]


@in_virtual_time
async def test_add_counts_every_call_once() -> None:
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all("abcd", "4"))
        sums: list[int] = []

        async def count(world: World) -> None:
            for _ in range(5):
                sums.append(await world.store.add("count", 2))

        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(count, world)
        assert sorted(sums) == list(range(2, 42, 2))
        assert await worlds[0].store.get("count") == b"40"
        assert await worlds[0].store.add("count", -50) == -10
        assert await worlds[0].store.add("count", 0) == -10


@in_virtual_time
async def test_append_adds_to_the_end_of_what_anybody_wrote() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        await first.store.append("log", b"one")
        await second.store.append("log", "-two")
        assert await first.store.get("log") == b"one-two"
        async with anyio.create_task_group() as group:
            for store in (first.store, second.store) * 10:
                group.start_soon(store.append, "both", b"x")
        assert await first.store.get("both") == b"x" * 20


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
@in_virtual_time
async def test_multi_set_writes_any_number_of_values(count: int) -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        first._backend.driver.max_writes = 3
        values = {f"key {number}": b"%d" % number for number in range(count)}
        await first.store.multi_set(values)
        assert await second.store.wait(values) == [*values.values()]
        assert await second.store.num_keys() == count


@in_virtual_time
async def test_adding_to_what_is_no_number_is_a_value_error() -> None:
    async with Meeting() as meeting:
        first, _ = await two(meeting)
        await first.store.set("key", b"abc")
        with pytest.raises(ValueError, match="the value at 'key' is not a number: b'abc'"):
            await first.store.add("key", 1)
        assert await first.store.get("key") == b"abc"


# Barriers


@in_virtual_time
async def test_a_barrier_waits_for_everybody() -> None:
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all("abc", "3"))
        passed: list[tuple[float, int]] = []

        async def come(world: World) -> None:
            await anyio.sleep(10 * world.rank)
            await world.store.barrier("done")
            passed.append((now(), world.rank))

        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(come, world)
        assert sorted(passed) == [(20, 0), (20, 1), (20, 2)]


@in_virtual_time
async def test_a_barrier_can_be_used_again() -> None:
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all("abc", "3"))
        passed: list[int] = []

        async def come(world: World) -> None:
            for number in range(5):
                await anyio.sleep(world.rank)
                await world.store.barrier("step")
                passed.append(number)

        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(come, world)
        assert passed == [number for number in range(5) for _ in range(3)]


@in_virtual_time
async def test_barriers_with_other_names_do_not_meet() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)

        async def come(world: World, name: str) -> None:
            with pytest.raises(RendezvousTimeoutError):
                await world.store.barrier(name, timeout=5)

        async with anyio.create_task_group() as group:
            group.start_soon(come, first, "x")
            group.start_soon(come, second, "x-1")


@in_virtual_time
async def test_barriers_are_no_keys() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        store = (await a.join()).store
        await store.barrier()
        await store.barrier("any/name ..")
        assert await store.num_keys() == 0


async def keys_of_round(world: World) -> list[str]:
    """What the backend holds of a world's round, but for the marker."""
    prefix = f"rounds/{world.round}/"
    return [entry.key.removeprefix(prefix) for entry in (await world.store._backend.list(prefix)).entries]


async def pass_barriers(worlds: Sequence[World], names: Sequence[str]) -> None:
    async def come(world: World) -> None:
        for name in names:
            await world.store.barrier(name)

    async with anyio.create_task_group() as group:
        for world in worlds:
            group.start_soon(come, world)


@pytest.mark.parametrize("names", [["step"] * 300, [f"step {number}" for number in range(300)]], ids=["same", "other"])
@pytest.mark.parametrize("nodes", ["a", "abcd"])
@in_virtual_time
async def test_barriers_clean_up_after_themselves(nodes: str, names: list[str]) -> None:
    """A key for each member and each barrier was left until the round was over."""
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all(nodes, str(len(nodes))))
        await pass_barriers(worlds, names)
        assert len(await keys_of_round(worlds[0])) <= 2
        assert all(len(world.store._passed) <= 1 for world in worlds)
        assert all(len(world.store._telling) <= 2 for world in worlds)


@in_virtual_time
async def test_a_late_reader_still_passes_a_barrier_that_others_have_left_behind() -> None:
    """Rank 2 is released and does not run for a while; meanwhile the others go on to barriers that fail without it."""
    async with Meeting() as meeting:
        worlds = sorted(await together(*await meeting.enter_all("abc", "3")), key=lambda world: world.rank)
        with anyio.move_on_after(1):
            await worlds[2].store.barrier("first")  # It has arrived, and its task is gone before the release.
        await pass_barriers(worlds[:2], ["first"])
        for number in range(3):
            for world in worlds[:2]:
                with pytest.raises(RendezvousTimeoutError, match=r"ranks that did not come: \[.*2\]"):
                    await world.store.barrier(f"later {number}", timeout=1)
        await worlds[2].store.barrier("first", timeout=1)
        await pass_barriers(worlds, [f"later {number}" for number in range(3)])
        await pass_barriers(worlds, ["last", "of all"])
        assert len(await keys_of_round(worlds[0])) <= 2


@in_virtual_time
async def test_barriers_of_several_tasks_of_a_member_do_not_disturb_each_other() -> None:
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all("abc", "3"))
        async with anyio.create_task_group() as group:
            for name in ("x", "y", "z"):
                group.start_soon(pass_barriers, worlds, [name] * 50)
        assert len(await keys_of_round(worlds[0])) <= 4
        await pass_barriers(worlds, ["last", "of all"])
        assert len(await keys_of_round(worlds[0])) <= 2


@in_virtual_time
async def test_cancelled_calls_at_random_leave_every_barrier_passable() -> None:
    """Each member gives up calls at random and tries again; all pass all barriers in the end, and few keys are left."""
    rng = random.Random(3)
    async with Meeting() as meeting:
        worlds = await together(*await meeting.enter_all("abcd", "4"))

        async def come(world: World) -> None:
            for number in range(60):
                while True:
                    with anyio.move_on_after(rng.choice((0, 0.001, 1, 100))) as scope:
                        await anyio.sleep(rng.random())
                        await world.store.barrier(f"{number % 7}")
                    if not scope.cancelled_caught:
                        break

        async with anyio.create_task_group() as group:
            for world in worlds:
                group.start_soon(come, world)
        await pass_barriers(worlds, ["last", "of all"])
        assert len(await keys_of_round(worlds[0])) <= 2


@pytest.mark.parametrize("kind", ["tcp", "file"])
async def test_barriers_clean_up_on_real_backends(kind: str, tmp_path: Path) -> None:
    async with rdzv.serve(port=0) as server, AsyncExitStack() as stack:
        endpoint = f"{server.endpoint}?is_host=false" if kind == "tcp" else f"file://{tmp_path}/rdzv"
        nodes = [await stack.enter_async_context(rdzv.connect(endpoint, run_id="job", nodes=3)) for _ in range(3)]
        worlds: list[World] = []

        async def join(node: rdzv.Rendezvous) -> None:
            worlds.append(await node.join())

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for node in nodes:
                    group.start_soon(join, node)
            await pass_barriers(worlds, [f"step {number}" for number in range(20)])
            assert len(await keys_of_round(worlds[0])) <= 2


@in_virtual_time
async def test_a_barrier_that_takes_too_long_names_who_did_not_come() -> None:
    async with Meeting() as meeting:
        worlds = sorted(await together(*await meeting.enter_all("abcd", "4")), key=lambda world: world.rank)
        texts: list[str] = []

        async def come(world: World) -> None:
            with pytest.raises(RendezvousTimeoutError) as caught:
                await world.store.barrier("done", timeout=7)
            texts.append(str(caught.value))

        async with anyio.create_task_group() as group:
            group.start_soon(come, worlds[0])
            group.start_soon(come, worlds[2])
        assert sorted(texts) == [
            f"<Store run='job' round=1 rank={rank}>: barrier 'done' waited 7 s; ranks that did not come: [1, 3]"
            for rank in (0, 2)
        ]


@in_virtual_time
async def test_a_barrier_that_all_passed_while_a_member_was_cut_off_is_passed() -> None:
    """Its time is over before it hears so; then it looks, and all were there."""
    async with Meeting() as meeting:
        line = meeting.line()
        a, b = await meeting.enter("a", "2"), await meeting.enter("b", "2", backend=line)
        here, far = await together(a, b)
        assert here.rank == 0, "it is who says that all are there"

        async def cut_off() -> None:
            await anyio.sleep(0.5)
            line.cut()
            await here.store.barrier("done", timeout=0.1)
            await anyio.sleep(1)
            line.mend()

        async with anyio.create_task_group() as group:
            group.start_soon(cut_off)
            await far.store.barrier("done", timeout=1)


@in_virtual_time
async def test_a_member_that_could_not_even_arrive_has_not_passed_a_barrier() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a, b = await meeting.enter("a", "2"), await meeting.enter("b", "2", backend=line)
        _, world = await together(a, b)

        async def mend() -> None:
            await anyio.sleep(1.5)
            line.mend()

        async with anyio.create_task_group() as group:
            group.start_soon(mend)
            line.cut()
            with pytest.raises(RendezvousTimeoutError, match=r"ranks that did not come: \[0, 1\]"):
                await world.store.barrier("done", timeout=1)


@in_virtual_time
async def test_a_barrier_that_timed_out_or_was_cancelled_can_be_tried_again() -> None:
    async with Meeting() as meeting:
        first, second = await two(meeting)
        for early in (first, second):
            with pytest.raises(RendezvousTimeoutError):
                await early.store.barrier(timeout=1)
            with anyio.move_on_after(1):
                await early.store.barrier()
            async with anyio.create_task_group() as group:
                group.start_soon(first.store.barrier)
                group.start_soon(second.store.barrier)


# Fencing


@each_call
@in_virtual_time
async def test_a_store_of_an_old_round_refuses(call: Call) -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        old, _ = await together(a, b)
        await old.store.set("key", b"old")
        new, _ = await together(a, b)
        before = meeting.server.table.revision
        with pytest.raises(RendezvousFencedError, match=r"round 1 is over; join\(\) again for the next one"):
            await call(old.store)
        assert meeting.server.table.revision == before, "an error leaves the state as it was"
        assert await new.store.num_keys() == 0


@each_call
@in_virtual_time
async def test_a_store_of_a_node_that_left_refuses(call: Call) -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        await a.leave()
        with pytest.raises(RendezvousFencedError, match="node a has left"):
            await call(world.store)


@in_virtual_time
async def test_a_store_refuses_when_its_round_was_formed_again_under_the_same_number() -> None:
    async with Meeting() as meeting:
        first, _ = await two(meeting)
        await meeting.backend().commit(Put(round_key(first.round), b""))
        with pytest.raises(RendezvousFencedError, match="round 1 is over"):
            await first.store.num_keys()


@in_virtual_time
async def test_the_store_of_an_old_round_is_cleared() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        await world.store.set("key", b"value")
        await world.store.barrier()
        assert "rounds/1" in await meeting.keys()
        await a.join()
        await anyio.sleep(1)
        assert await meeting.keys("rounds/") == ["rounds/2"]


@pytest.mark.parametrize("name", ["get", "wait", "barrier"])
@in_virtual_time
async def test_a_wait_fails_when_the_round_is_over(name: str) -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        errors: list[Exception] = []

        async def wait() -> None:
            try:
                await WRITES[name](world.store)
            except RendezvousFencedError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(1)
            await together(a, b)
            await until(lambda: bool(errors), within=1)
        assert "round 1 is over" in str(errors[0])


@pytest.mark.parametrize("name", ["get", "wait", "barrier"])
@in_virtual_time
async def test_a_wait_fails_when_the_node_is_cut_off(name: str) -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        a, b = await meeting.enter("a", "2", backend=line), await meeting.enter("b", "2")
        world, _ = await together(a, b)

        async def cut() -> None:
            await anyio.sleep(10.001)
            line.cut()

        async with anyio.create_task_group() as group:
            group.start_soon(cut)
            with pytest.raises(RendezvousFencedError, match="by its own clock this node is out"):
                await WRITES[name](world.store)
        assert now() == pytest.approx(10 + 3.75, abs=0.01)
        line.mend()
        await anyio.sleep(10)


@in_virtual_time
async def test_a_wait_fails_when_the_node_is_evicted() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        world, _ = await together(a, b)
        await b.evict("a")
        with pytest.raises(RendezvousFencedError, match="has ended"):
            await world.store.get("never")
        assert now() <= 1.5
