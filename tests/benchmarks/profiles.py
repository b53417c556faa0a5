"""Where the time of a formation goes, in the nodes and in the server: calls per node, and the functions that took most.

    python -m tests.benchmarks.profiles [--nodes 256] [--lines 25] [--rejoin]

The profiler makes everything slower by a few times, C code less than Python; the number of calls is exact, and the same
on a busy machine: it is what to look at when a change is meant to make a join cheaper.
"""

from __future__ import annotations

import argparse
import asyncio

from tests.benchmarks.fleet import fleet, server


async def main(count: int, lines: int, rejoin: bool) -> None:
    """Profile a first or a second round of nodes that are all in one process."""
    async with (
        server("server") as (process, endpoint),
        fleet("ours", count, endpoint, "run", count, processes=1) as one,
    ):
        node = one.workers[0]
        await node.ask("enter")
        await node.ask("connect")
        if rejoin:
            await node.ask("join")
        for side in (process, node):
            await side.ask("profile")
        await node.ask("join")
        for side, name in ((process, "server"), (node, "nodes")):
            answer = await side.ask(f"profiled {lines}")
            print(f"{name}: {answer['calls'] / count:.0f} calls per node\n{answer['text']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--lines", type=int, default=25)
    parser.add_argument("--rejoin", action="store_true", help="the second round, with sessions and watches in place")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.nodes, arguments.lines, arguments.rejoin))
