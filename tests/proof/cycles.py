"""Join and leave, again and again, and count what is left behind: tasks, threads, descriptors, memory.

    python -m tests.proof.cycles --cycles 10000 --backend tcp      # or durable, memory, file, etcd, sync

Two nodes form a round, use its store, and leave; that is one cycle. ``durable`` is tcp with a data directory, a secret
and TLS; ``sync`` is the blocking facade on tcp, in two threads. Every warning is an error (unawaited coroutines,
unclosed sockets). Prints a JSON line for each tenth, and one for the whole; exits 1 if anything has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
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
from statistics import mean

import anyio
import msgspec
from anyio import to_thread

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import serve
from rendezvous_async.sync import RendezvousParameters, create_handler
from rendezvous_async.testing.etcd import start_etcd
from tests.backends.tcp.support import Certificates

__all__ = ["BACKENDS", "Left", "cycle", "growth", "heap", "look", "meeting_place"]

BACKENDS = ("tcp", "durable", "memory", "file", "etcd", "sync")
PARTS = 10
SOME_OBJECTS, OBJECTS_PER_CYCLE = 500, 0.05
"""What may vary, and what a cycle may cost in the long run: less than anything that was left behind would."""
FULL_AFTER = 5000
"""Cycles after which what is kept on purpose (4,096 deleted keys, 4,096 names) is full: blocks and memory count from
there. Before that, a cycle adds dozens of small blocks, as it must."""
SOME_THREADS = 2
"""Worker threads come when calls happen to meet, and go when they were idle for a while."""
SOME_KIB, KIB_PER_CYCLE = 4096, 0.3
"""Memory is judged by the means of the looks in both halves. It comes and goes by some MiB, with the length of the log
that a new client of ``file`` reads; blocks are what is exact."""
TIMEOUTS = rdzv.Timeouts(join=60, last_call=5, close=10)


class Left(msgspec.Struct, frozen=True):
    """What is there at one moment.

    Attributes:
        objects: That the garbage collector knows.
        blocks: Of memory that Python has given out, to whatever is small: text and bytes, too.
        rss_kib: All memory of the process.
        heap_kib: Of that, what malloc has given out, to whatever is large, and to gRPC; 0 where malloc does not tell.
    """

    tasks: int
    threads: int
    descriptors: int
    objects: int
    blocks: int
    rss_kib: int
    heap_kib: int = 0


class _Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        ("before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("after", ctypes.c_size_t * 2),
    ]


def heap() -> int:
    """Return how many bytes malloc has given out, in all arenas and as mappings of their own; 0 if it cannot tell."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # not glibc, or one before 2.33
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks) + int(info.hblkhd)


def look() -> Left:
    """Count what is there, once the garbage is gone."""
    gc.collect()
    tasks = len(asyncio.all_tasks())
    with open("/proc/self/statm", encoding="ascii") as statm:
        rss = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024
    descriptors = len(os.listdir("/proc/self/fd"))
    threads, objects, blocks = len(threading.enumerate()), len(gc.get_objects()), sys.getallocatedblocks()
    return Left(tasks, threads, descriptors, objects, blocks, rss, heap() // 1024)


@asynccontextmanager
async def meeting_place(backend: str) -> AsyncIterator[str]:
    """Yield an endpoint that outlives every cycle: a server of its own, a directory, or a name in memory."""
    with tempfile.TemporaryDirectory(prefix="rendezvous-cycles-") as folder:
        place = Path(folder)
        if backend in ("tcp", "sync"):
            async with serve(port=0) as server:
                yield server.endpoint
        elif backend == "durable":
            certificates = Certificates(place)
            async with serve(port=0, data_dir=place / "data", secret="secret", tls_cert=certificates.cert) as server:
                yield f"{server.endpoint}?secret=secret&tls_ca={certificates.ca}"
        elif backend == "etcd":
            async with start_etcd() as etcd:
                yield etcd.endpoint
        elif backend == "file":
            yield f"file://{place / 'place'}?fsync=false"
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


async def sync_cycle(endpoint: str, run_id: str) -> None:
    """Do the same through the blocking facade, a thread for each node."""

    def node() -> None:
        address = endpoint.removeprefix("tcp://")
        params = RendezvousParameters("tcp", address, run_id, min_nodes=2, max_nodes=2, join_timeout=60, is_host=False)
        handler = create_handler(params)
        try:
            info = handler.next_rendezvous()
            info.store.set(f"key {info.rank}", b"value")
            info.store.wait([f"key {1 - info.rank}"])
            raise InterruptedError  # While an exception is under way, shutting down is leaving, and closes nothing.
        except InterruptedError:
            handler.shutdown()

    async with anyio.create_task_group() as group:
        group.start_soon(to_thread.run_sync, node)
        group.start_soon(to_thread.run_sync, node)


def growth(looks: list[Left], cycles: int) -> list[str]:
    """Return what has grown from the first look, which comes after some cycles, to the last.

    A thread may be on its way out at the moment of a look; what is left behind is there in each later look.
    """
    half = len(looks) // 2
    full = [seen for number, seen in enumerate(looks, 1) if number * cycles // len(looks) >= FULL_AFTER]
    found = []
    for name in ("tasks", "threads", "descriptors"):
        before = max(getattr(seen, name) for seen in looks[:half])
        after = min(getattr(seen, name) for seen in looks[half:])
        if after > before + (SOME_THREADS if name == "threads" else 0):
            found.append(f"{name}: {before} before, {after} after {cycles} cycles")
    for name, seen in (("objects", looks), ("blocks", full)):
        before, after = (getattr(seen[0], name), getattr(seen[-1], name)) if seen else (0, 0)
        if after > before + SOME_OBJECTS + OBJECTS_PER_CYCLE * cycles:
            found.append(f"{name}: {before} before, {after} after {cycles} cycles")
    if len(full) > half:
        was, now = (int(mean(seen.rss_kib for seen in part)) for part in (looks[:half], looks[half:]))
        if now > was + SOME_KIB + KIB_PER_CYCLE * cycles / 2:
            found.append(f"rss_kib: {was} in the first half, {now} in the second of {cycles} cycles")
    return found


async def run_cycles(backend: str, endpoint: str, cycles: int, parts: int) -> list[Left]:
    """Do this many cycles of one run, and measure after each part; the first part is a warm-up."""
    looks = []
    one = sync_cycle if backend == "sync" else cycle
    for part in range(parts):
        begin = time.perf_counter()
        for _ in range(cycles // parts):
            await one(endpoint, "cycles")
        looks.append(look())
        seconds = time.perf_counter() - begin
        print(json.dumps({"cycles": (part + 1) * (cycles // parts), **msgspec.structs.asdict(looks[-1]),
                          "seconds": round(seconds, 1)}), flush=True)  # fmt: skip
    return looks


async def all_of_it(backend: str, cycles: int) -> int:
    async with meeting_place(backend) as endpoint:
        looks = await run_cycles(backend, endpoint, cycles, PARTS)
    grown = growth(looks, cycles)
    print(json.dumps({"backend": backend, "cycles": cycles, "grown": grown}))
    return 1 if grown else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--backend", choices=BACKENDS, default="tcp")
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
