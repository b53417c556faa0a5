"""Test your own orchestrator: the real library, a simulated network, virtual time and injected faults.

``my_orchestrator`` stands for your code. The test crashes a node, partitions the network, and checks that every
guarantee holds and that the job finishes: minutes of timeouts in a fraction of a second, reproducible by its seed.
"""

import anyio

import rendezvous_async as rdzv
from rendezvous_async.testing import Cluster, Faults, check, run

FINISHED: list[int] = []


async def my_orchestrator(rendezvous: rdzv.Rendezvous) -> None:
    async for world in rendezvous.worlds():
        async with world.until_changed():
            await anyio.sleep(60)  # Your training.
            await world.store.barrier("done")
            FINISHED.append(world.rank)
            if world.rank == 0:
                await rendezvous.close("done")
            await world.changed()


async def a_bad_day() -> None:
    faults = Faults(delay=0.05, drop_request=0.02, drop_reply=0.02)
    async with Cluster(nodes=4, min_nodes=2, seed=7, faults=faults, program=my_orchestrator) as cluster:
        await cluster.join_all()
        cluster.crash(0)
        await anyio.sleep(20)
        cluster.partition({1, 2}, {3})
        await anyio.sleep(20)
        cluster.heal()
        cluster.restart(0)
        await anyio.sleep(600)
        check(cluster.history)


def test_my_orchestrator_survives_a_bad_day() -> None:
    FINISHED.clear()
    run(a_bad_day, seed=7)
    assert 0 in FINISHED  # The others may only see that the run is closed.


if __name__ == "__main__":
    test_my_orchestrator_survives_a_bad_day()
    print("the job finished, and every guarantee held")
