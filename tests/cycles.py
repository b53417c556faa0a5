"""Join and leave, again and again, and count what is left behind: tasks, threads, descriptors, memory.

    python -m tests.cycles --cycles 10000 --backend tcp      # or durable, memory, file, etcd, sync

Two nodes form a round, use its store, and leave; that is one cycle. ``durable`` is tcp with a data directory, a secret
and TLS; ``sync`` is the blocking facade on tcp, in two threads. Every warning is an error (unawaited coroutines, unclosed
sockets). Prints a JSON line for each tenth, and one for the whole; exits 1 if anything has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import serve

__all__ = ["Left", "cycle", "growth", "look", "meeting_place"]

PARTS = 10
SOME_OBJECTS, OBJECTS_PER_CYCLE = 500, 0.05
SOME_KIB, KIB_PER_CYCLE = 2048, 0.1
"""What may come and go, and what a cycle may cost in the long run: less than anything that was forgotten would."""
TIMEOUTS = rdzv.Timeouts(join=60, last_call=5, close=10)


class Left(msgspec.Struct, frozen=True):
    """What is there at one moment."""

    tasks: int
    threads: int
    descriptors: int
    objects: int
    rss_kib: int


def look() -> Left:
    """Count what is there, once the garbage is gone."""
    gc.collect()
    tasks = len(asyncio.all_tasks())
    with open("/proc/self/statm", encoding="ascii") as statm:
        rss = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024
    return Left(tasks, len(threading.enumerate()), len(os.listdir("/proc/self/fd")), len(gc.get_objects()), rss)


@asynccontextmanager
async def meeting_place(backend: str) -> AsyncIterator[str]:
    """Yield an endpoint that outlives every cycle: a server of its own, a directory, or a name in memory."""
    if backend == "tcp":
        async with serve(port=0) as server:
            yield server.endpoint
    elif backend == "file":
        with tempfile.TemporaryDirectory(prefix="rendezvous-cycles-") as place:
            yield f"file://{Path(place) / 'place'}?fsync=false"
    else:
        yield "memory://cycles"


async def cycle(endpoint: str, run_id: str) -> None:
    """Let two nodes meet, use the round's store, and leave."""

    async def node() -> None:
        async with rdzv.connect(endpoint, run_id=run_id, nodes=2, timeouts=TIMEOUTS) as rendezvous:
            world = await rendezvous.join()
            await world.store.set(f"key {world.rank}", "value")
            await world.store.barrier("done", timeout=60)

    async with anyio.create_task_group() as group:
        group.start_soon(node)
        group.start_soon(node)


def growth(looks: list[Left], cycles: int) -> list[str]:
    """Return what has grown from the first look, which comes after some cycles, to the last.

    A thread may be on its way out at the moment of a look; what is left behind is there in each later look.
    """
    first, last = looks[0], looks[-1]
    half = len(looks) // 2
    found = []
    for name in ("tasks", "threads", "descriptors"):
        before = max(getattr(seen, name) for seen in looks[:half])
        after = min(getattr(seen, name) for seen in looks[half:])
        if after > before:
            found.append(f"{name}: {before} before, {after} after {cycles} cycles")
    if last.objects > first.objects + SOME_OBJECTS + OBJECTS_PER_CYCLE * cycles:
        found.append(f"objects: {first.objects} before, {last.objects} after {cycles} cycles")
    if last.rss_kib > first.rss_kib + SOME_KIB + KIB_PER_CYCLE * cycles:
        found.append(f"rss_kib: {first.rss_kib} before, {last.rss_kib} after {cycles} cycles")
    return found


async def run_cycles(endpoint: str, cycles: int, parts: int) -> list[Left]:
    """Do so many cycles of one run, and look after each part; the first part is for everything to find its place."""
    looks = []
    for part in range(parts):
        begin = time.perf_counter()
        for _ in range(cycles // parts):
            await cycle(endpoint, "cycles")
        looks.append(look())
        seconds = time.perf_counter() - begin
        print(json.dumps({"cycles": (part + 1) * (cycles // parts), **msgspec.structs.asdict(looks[-1]),
                          "seconds": round(seconds, 1)}), flush=True)  # fmt: skip
    return looks


async def all_of_it(backend: str, cycles: int) -> int:
    async with meeting_place(backend) as endpoint:
        looks = await run_cycles(endpoint, cycles, PARTS)
    grown = growth(looks, cycles)
    print(json.dumps({"backend": backend, "cycles": cycles, "grown": grown}))
    return 1 if grown else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--backend", choices=("tcp", "memory", "file"), default="tcp")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error")
    failures: list[str] = []
    sys.unraisablehook = lambda failure: failures.append(f"{failure.exc_value!r} in {failure.object!r}")
    logging.disable(logging.WARNING)
    code = asyncio.run(all_of_it(options.backend, options.cycles))
    gc.collect()
    for failure in failures:
        print(f"a warning: {failure}", file=sys.stderr)
    return 1 if failures else code


if __name__ == "__main__":
    sys.exit(main())
