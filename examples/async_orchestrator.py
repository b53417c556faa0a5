"""An elastic job with an async orchestrator: workers join, one crashes, a new one joins, and the work continues.

Without arguments, all workers are tasks of this process and meet in its memory. With an endpoint and a name, for
example tcp://head:29400 alice, the same ``worker`` runs in any number of processes on any number of machines.
"""

import sys

import anyio

import rendezvous_async as rdzv

STEPS = 100


async def worker(name: str, endpoint: str, crash_at: int | None = None) -> None:
    timeouts = rdzv.Timeouts(join=30, last_call=0.5, regroup=0.2)
    step = 0
    async with rdzv.connect(endpoint, run_id="example", nodes="2:4", node=name, timeouts=timeouts) as rendezvous:
        async for world in rendezvous.worlds():  # Until the run is closed.
            print(f"{name}: round {world.round}, rank {world.rank} of {world.size}, from step {step}", flush=True)
            async with world.until_changed():
                # Continue from the step of rank 0, a survivor if there is one.
                if world.rank == 0:
                    await world.store.set("step", str(step))
                step = int(await world.store.get("step"))
                while step < STEPS:
                    await train_one_step(world)
                    step += 1
                    if step == crash_at:
                        print(f"{name}: crashes", flush=True)
                        return
                await world.store.barrier("done")
                if world.rank == 0:
                    await rendezvous.close(f"all {STEPS} steps are done")
                await world.changed()  # The others wait for rank 0.
            print(f"{name}: {world.change} at step {step}", flush=True)


async def train_one_step(world: rdzv.World) -> None:
    await anyio.sleep(0.02)  # Your training step; it is cancelled when the world changes.


async def main() -> None:
    if len(sys.argv) > 2:
        await worker(sys.argv[2], sys.argv[1])
        return
    async with anyio.create_task_group() as group:
        group.start_soon(worker, "alice", "memory://example")
        group.start_soon(worker, "bob", "memory://example")
        group.start_soon(worker, "carol", "memory://example", 10)
        await anyio.sleep(1.5)
        group.start_soon(worker, "dave", "memory://example")


if __name__ == "__main__":
    anyio.run(main)
