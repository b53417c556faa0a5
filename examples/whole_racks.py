"""Worlds of whole racks: sizes, domains, spares that know why, and a run that is scaled while it goes on.

A world has 4 or 8 nodes, and 4 of each rack that is in it. Rack r2 is one node short at first. All nodes are tasks of
this process; with tcp://head:29400 in place of memory://racks they run on as many machines.
"""

import anyio
from anyio.abc import TaskGroup

import rendezvous_async as rdzv


async def node(rack: str, group: TaskGroup) -> None:
    rendezvous = rdzv.connect(
        "memory://racks",
        run_id="example",
        nodes="4:8:4",
        domain="rack",
        per_domain=4,
        labels={"rack": rack},
        timeouts=rdzv.Timeouts(join=30, last_call=0.5, regroup=0.2),
    )
    async with rendezvous:
        async for world in rendezvous.worlds():  # Spares wait here for a place; for them too it ends with the run.
            async with world.until_changed():
                racks = await world.gather(rack.encode())  # What every member brings, by rank: a barrier as well.
                if world.rank == 0:
                    print(f"round {world.round}: {b' '.join(racks).decode()}", flush=True)
                    await steer(rendezvous, world, group)
                await world.changed()  # Your training: it is cancelled when the world changes.


async def steer(rendezvous: rdzv.Rendezvous, world: rdzv.World, group: TaskGroup) -> None:
    """What a person or a scheduler does, from anywhere: ``rdzv scale`` and ``rdzv close`` are the same."""
    if world.round == 1:
        status = await rendezvous.status()
        print(status.fit, flush=True)
        group.start_soon(node, "r2", group)  # The missing node comes, and makes the next size.
    elif world.size == 8:
        await rendezvous.scale(target=4)  # Somebody else needs a rack: the last four ranks become spares.
    else:
        await rendezvous.close("enough")


async def main() -> None:
    async with anyio.create_task_group() as group:
        for rack in ["r1"] * 4 + ["r2"] * 3:
            group.start_soon(node, rack, group)


if __name__ == "__main__":
    anyio.run(main)
