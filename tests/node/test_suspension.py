"""A machine that was suspended: its timers stood still, the others went on, and the node must know that it is out."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from rendezvous_async import Change, RendezvousFencedError, connect
from rendezvous_async.aio import clock
from rendezvous_async.backends.tcp import serve
from rendezvous_async.testing import Cluster, check, run, virtual_loop
from tests.blocking import join_all, make_handler, serve_apart


@pytest.fixture
def sleep_of_machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that this machine has been suspended: what the list adds up to."""
    slept: list[float] = []
    true = clock._awake_and_asleep
    monkeypatch.setattr(clock, "_awake_and_asleep", lambda: true() + sum(slept))
    return slept


@pytest.mark.parametrize("seed", range(10))
def test_a_node_that_wakes_is_out_at_once(seed: int) -> None:
    """It is cut off as well, so that nobody tells it; the history is checked as well."""

    async def play() -> None:
        async with Cluster(nodes=3, min_nodes=2, seed=seed) as cluster:
            await cluster.join_all()
            sleeper = cluster.nodes[0]
            world = sleeper.holds
            assert world is not None
            cluster.partition({1, 2}, {0})
            cluster.pause(0, suspend=True)
            await anyio.sleep(3600)
            assert world.change is Change.EVICTED
            with pytest.raises(RendezvousFencedError, match="by its own clock this node is out"):
                await world.store.set("key", b"value")
            cluster.resume(0)
            await anyio.sleep(1.001)
            assert sleeper.holds is None, "the keep-alive that was due comes within an interval, and says so to all"
            cluster.heal()
            await cluster.settle()
        check(cluster.history)

    run(play, seed=seed)


def test_a_short_sleep_does_no_harm() -> None:
    async def play() -> None:
        async with Cluster(nodes=2, min_nodes=2, seed=1) as cluster:
            await cluster.join_all()
            worlds = [node.holds for node in cluster.nodes]
            for _ in range(5):
                cluster.pause(0, suspend=True)
                await anyio.sleep(1.5)
                cluster.resume(0)
                await anyio.sleep(3)
            assert [node.holds for node in cluster.nodes] == worlds
            assert [world.change for world in worlds if world is not None] == [None, None]

    run(play)


def test_the_clock_and_the_timers_of_a_suspended_group_stand_still() -> None:
    async def play() -> None:
        loop = virtual_loop()
        woke: list[tuple[str, float, float]] = []

        async def sleep(name: str, seconds: float) -> None:
            await anyio.sleep(seconds)
            woke.append((name, loop.time(), loop.lease_time()))
            await anyio.sleep(1)
            woke.append((name, loop.time(), loop.lease_time()))

        tasks = [loop.start("a", sleep, "due meanwhile", 2), loop.start("a", sleep, "due later", 20)]
        await anyio.sleep(1)
        loop.suspend("a")
        await anyio.sleep(10)
        loop.thaw("a")
        await asyncio.gather(*tasks)
        assert woke == [
            ("due meanwhile", 2, 12),
            ("due meanwhile", 3, 13),
            ("due later", 20, 30),
            ("due later", 21, 31),
        ]
        assert loop.time() == loop.lease_time(), "nobody else was suspended"

    run(play)


async def test_no_store_call_goes_through_after_waking(
    sleep_of_machine: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(port=0) as server, connect(server.endpoint, run_id="run", nodes=1) as rendezvous:
        world = await rendezvous.join()
        await world.store.set("key", b"before")
        sleep_of_machine.append(3.0)
        assert world.change is None
        await world.store.set("key", b"between")
        revision = server.table.revision
        sleep_of_machine.append(3.0)
        with pytest.raises(RendezvousFencedError, match="by its own clock this node is out"):
            await world.store.set("key", b"after")
        assert world.change is Change.EVICTED
        assert server.table.revision == revision
        assert server.table.sessions == 1, "the server slept as well, and blames nobody"
        with anyio.fail_after(10):
            assert await world.changed() is Change.EVICTED
            assert (await rendezvous.join()).round == 2
    assert "or this machine was suspended" in caplog.text


def test_the_facade_knows_after_waking_too(sleep_of_machine: list[float]) -> None:
    with serve_apart() as (endpoint, _):
        handler = make_handler(endpoint, (1, 1))
        join_all(handler)
        assert handler.num_nodes_waiting() == 0
        sleep_of_machine.append(10.0)
        assert handler.num_nodes_waiting() == 1
        handler.shutdown()
