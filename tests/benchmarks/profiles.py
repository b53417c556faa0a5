"""Where the time of a hot path goes, in the nodes and in the server: calls per node, and the functions that took most.

    python -m tests.benchmarks.profiles [join|rejoin|keep-alive|commit|push ...] [--nodes 256] [--lines 25]

The profiler makes everything slower by a few times, C code less than Python; the number of calls is exact, and the same
on a busy machine: it is what to look at when a change is meant to make a path cheaper.

* join: a first round, from open connections
* rejoin: the second round of the same nodes at once, with sessions and watches in place (later: one push more)
* keep-alive: a world at rest, per node and keep-alive
* commit: writes to the round's store, per write
* push: the count of waiting nodes, pushed to each member as one more comes

Not covered: connecting, a lost connection that is resumed, durable servers, and the other backends.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from tests.benchmarks.fleet import Fleet, Process, fleet, server

KEEP_ALIVES = 5
COMMITS = 10

Measured = Callable[[Fleet, Fleet], Awaitable[int]]
"""Does what is profiled, with the members and with one more node; returns how often each member did it."""


async def join(members: Fleet, newcomer: Fleet) -> int:
    await members.ask("join")
    return 1


async def keep_alive(members: Fleet, newcomer: Fleet) -> int:
    await asyncio.sleep(KEEP_ALIVES)
    return KEEP_ALIVES


async def commit(members: Fleet, newcomer: Fleet) -> int:
    await members.ask(f"commit {COMMITS}")
    return COMMITS


async def push(members: Fleet, newcomer: Fleet) -> int:
    newcomer.workers[0].tell("join")
    await members.ask("changed")
    return 1


PATHS: dict[str, tuple[tuple[str, ...], Measured]] = {
    "join": ((), join),
    "rejoin": (("join",), join),
    "keep-alive": (("join",), keep_alive),
    "commit": (("join",), commit),
    "push": (("join", "watch"), push),
}
"""What comes before, and what is profiled."""


async def profile(path: str, count: int, lines: int) -> None:
    """Profile one path, of members that are all in one process."""
    before, act = PATHS[path]
    nodes = f"{count}:{count + 1}"
    async with (
        server("server") as (process, endpoint),
        fleet("ours", count, endpoint, "run", nodes if path == "push" else count, processes=1) as members,
        fleet("ours", 1, endpoint, "run", nodes) as newcomer,
    ):
        await newcomer.ask("enter")
        for command in ("enter", "connect", *before):
            await members.ask(command)
        if path == "push":
            await newcomer.ask("connect")
        if act is not join:
            await asyncio.sleep(1.5)  # what a new world still has to do
        sides: dict[str, Process] = {"server": process, "nodes": members.workers[0]}
        for side in sides.values():
            await side.ask("profile")
        times = await act(members, newcomer)
        for name, side in sides.items():
            answer = await side.ask(f"profiled {lines}")
            calls = answer["calls"] / count / times
            print(f"{path}, {name}: {calls:.0f} calls per node, each time\n{answer['text']}")


async def main(paths: list[str], count: int, lines: int) -> None:
    """Profile what is named."""
    for path in paths or ["join"]:
        await profile(path, count, lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], help="which paths; join if none is named")
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--lines", type=int, default=25)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.paths, arguments.nodes, arguments.lines))
