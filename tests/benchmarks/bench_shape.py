"""Worlds of a shape: how long choosing takes, and how long whole domains take to re-form.

    python -m tests.benchmarks.bench_shape [choosing|domains ...] [--quick] [--runs 5]

``choosing`` is ``core.shape.choose`` and ``ranks.assign_ranks`` alone, for 1,024 candidates. ``domains`` has 64 nodes
in domains of 16, on a TCP server in a process of its own; the nodes share one process. A figure is the time from the
last node's arrival at the barrier until the last member holds the new world, and the CPU time of that process from the
change to that moment: all that 64 to 96 nodes did, from learning of it to holding the new world.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio

import rendezvous_async as rdzv
from rendezvous_async.core.ranks import Candidate, assign_ranks
from rendezvous_async.core.shape import Shape, choose
from rendezvous_async.settings import settings_for
from rendezvous_async.sizes import parse_sizes
from tests.benchmarks.figures import Figures, run_parts
from tests.benchmarks.fleet import server

SHAPES = {"any size": ("1:1024", 1), "multiples of 4": ("4:1024:4", 1), "domains of 4": ("4:1024:4", 4)}
CANDIDATES = 1024
DOMAIN = 16
PATIENCE = 60.0


async def choosing(figures: Figures, runs: int, quick: bool) -> None:
    """Choose among 1,024 candidates, half of them survivors, and rank them."""
    rng = random.Random(7)
    nodes = [
        Candidate(f"n{n}", n, n if n % 2 else None, labels={"nvlink": f"d{rng.randrange(CANDIDATES // 4)}"})
        for n in rng.sample(range(CANDIDATES), CANDIDATES)
    ]
    for what, (sizes, per_domain) in SHAPES.items():
        domain = "nvlink" if per_domain > 1 else ""
        shape = Shape(parse_sizes(sizes), domain, per_domain)
        settings = settings_for(shape.sizes, domain=domain, per_domain=per_domain)
        spent = []
        for _ in range(4 * runs):
            begin = time.perf_counter()
            assign_ranks(settings, choose(nodes, shape))
            spent.append(time.perf_counter() - begin)
        figures.add("shape", f"choose and rank: {what}", "ours", list(spent), nodes=CANDIDATES)


class Fleet:
    """Nodes that hold their worlds until they change, and join again; it remembers when each came and got in."""

    def __init__(self, stack: AsyncExitStack, group: Any, endpoint: str, sizes: str) -> None:
        self.nodes: list[rdzv.Rendezvous] = []
        self.came: dict[str, float] = {}
        self.worlds: dict[str, tuple[rdzv.World, float]] = {}
        self.gone: set[str] = set()
        self._stack = stack
        self._group = group
        self._endpoint = endpoint
        self._sizes = sizes
        self._news = anyio.Event()

    async def add(self, count: int) -> None:
        """Let more nodes come, one domain after the other."""
        for _ in range(count):
            number = len(self.nodes)
            node = rdzv.connect(
                self._endpoint,
                run_id="bench",
                nodes=self._sizes,
                node=f"n{number:03}",
                domain="rack",
                per_domain=DOMAIN,
                labels={"rack": f"r{number // DOMAIN}"},
                timeouts=rdzv.Timeouts(last_call=60, regroup=0.01),
                is_host=False,
            )
            self.nodes.append(await self._stack.enter_async_context(node))
            self._group.start_soon(self._live, node)

    async def _live(self, node: rdzv.Rendezvous) -> None:
        while node.node not in self.gone:
            self.came[node.node] = time.perf_counter()
            world = await node.join()
            self.worlds[node.node] = world, time.perf_counter()
            self._news.set()
            self._news = anyio.Event()
            await world.changed()

    async def lose_a_domain(self) -> None:
        """Let the nodes of the last domain leave for good."""
        lost = self.nodes[-DOMAIN:]
        self.gone.update(node.node for node in lost)
        for node in lost:
            await node.leave()

    async def formed(self, size: int, round: int) -> float:
        """Wait for that world; return the seconds from the last arrival until the last member holds it."""
        with anyio.fail_after(PATIENCE):
            while len(held := [at for world, at in self.worlds.values() if world.round == round]) < size:
                await self._news.wait()
        assert {world.size for world, _ in self.worlds.values() if world.round == round} == {size}
        return max(held) - max(self.came.values())


async def change(figures: Figures, runs: int, what: str, size: int, act: Callable[[Fleet], Any], more: int = 0) -> None:
    """Measure a change from 64 nodes in 4 domains to another world."""
    spent: list[float | None] = []
    cpu: list[float | None] = []
    for _ in range(runs):
        async with server("server") as (_, endpoint), AsyncExitStack() as stack, anyio.create_task_group() as group:
            fleet = Fleet(stack, group, endpoint, "16:64:16")
            await fleet.add(64)
            await fleet.formed(64, 1)
            await fleet.add(more)
            await anyio.sleep(1)
            before = time.process_time()
            await act(fleet)
            spent.append(await fleet.formed(size, 2))
            cpu.append(time.process_time() - before)
            group.cancel_scope.cancel()
    figures.add("shape", what, "ours", spent, nodes=64, note="since the last arrival")
    figures.add("shape", what, "ours", cpu, nodes=64, note="CPU time of all nodes together")


async def domains(figures: Figures, runs: int, quick: bool) -> None:
    """4 domains become 3, by scaling and by a loss, and 6."""
    await change(figures, runs, "4 domains to 3, scaled", 48, lambda fleet: fleet.nodes[0].scale(target=48))
    await change(figures, runs, "4 domains to 6, scaled", 96, lambda fleet: fleet.nodes[0].scale("16:96:16"), more=32)

    await change(figures, runs, "4 domains to 3, one is lost (10 ms of it are the last call)", 48, Fleet.lose_a_domain)


PARTS = {"choosing": choosing, "domains": domains}

if __name__ == "__main__":
    run_parts(PARTS, __doc__)
