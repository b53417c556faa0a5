"""How fast the TCP backend is, next to a bare asyncio echo on the same kind of transports in the same run.

    python -m tests.benchmarks.bench_tcp [requests|durable|held|keepalive|hostile ...] [--quick]

Prints JSON lines, one for each measurement; every figure has the median, the least and the most of several runs. The
bare echo reads as our client and server do (backends/tcp/reading.py). The server always has a process of its own, so
that its CPU time can be told from the clients'. Clients share this process: with two cores they are the limit as often
as the server is, so the server's CPU time per operation is given as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend, Put, Session
from rendezvous_async.backends.tcp import restrict
from tests.backends.tcp.support import ServerProcess
from tests.benchmarks.figures import summary
from tests.benchmarks.fleet import Process, server
from tests.benchmarks.workers.echo import Client
from tests.hostile import hogs


def report(what: str, **figures: Any) -> None:
    print(json.dumps({"benchmark": "tcp", "what": what, **figures}), flush=True)


async def connect(endpoint: str, **options: Any) -> Backend:
    return await start_backend(endpoint, "bench", is_host=False, **options)


async def drive(asks: list[Callable[[], Awaitable[Any]]], seconds: float) -> tuple[float, list[float]]:
    """Have every asker ask again and again; returns requests per second and all latencies."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def one(ask: Callable[[], Awaitable[Any]]) -> None:
        now = time.perf_counter()
        while now < end:
            await ask()
            after = time.perf_counter()
            latencies.append(after - now)
            now = after

    begin = time.perf_counter()
    async with anyio.create_task_group() as group:
        for ask in asks:
            group.start_soon(one, ask)
    return len(latencies) / (time.perf_counter() - begin), latencies


Ask = Callable[[], Awaitable[Any]]


async def measure(cases: dict[str, tuple[Process, list[Ask]]], runs: int, seconds: float, **extra: Any) -> None:
    """Drive the cases in turn, several times, and report each next to the first case of the same turn."""
    results: dict[str, list[tuple[float, float, float, float]]] = {what: [] for what in cases}
    for turn in range(runs + 1):
        for what, (process, asks) in cases.items():
            cpu = process.cpu()
            rate, latencies = await drive(asks, seconds)
            cpu = (process.cpu() - cpu) / len(latencies)
            latencies.sort()
            p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
            if turn:  # the first one is for warming up
                results[what].append((rate, p50, p99, cpu))
    first = next(iter(results.values()))
    for what, result in results.items():
        rates, p50s, p99s, cpus = zip(*result, strict=True)
        report(
            what,
            **extra,
            requests_per_second=summary(rates),
            p50_us=summary(p50s, 1e6),
            p99_us=summary(p99s, 1e6),
            server_cpu_us_per_request=summary(cpus, 1e6),
            rate_next_to_first=summary(r[0] / f[0] for r, f in zip(result, first, strict=True)),
        )


async def bench_requests(quick: bool) -> None:
    """Requests per second over 1 and 64 connections, and over one connection with 64 callers, next to a bare echo."""
    runs, seconds = (5, 0.2) if quick else (9, 0.5)
    loop = asyncio.get_running_loop()
    for connections, callers in ((1, 1), (64, 1), (1, 64)):
        async with server("echo_server") as (echo, port), server("server") as (process, endpoint):
            made = [await loop.create_connection(Client, "127.0.0.1", int(port)) for _ in range(connections * callers)]
            backends = [await connect(endpoint) for _ in range(connections)]
            users = [backends[number % connections] for number in range(connections * callers)]
            sessions = [await backend.open_session(60) for backend in users]
            await backends[0].commit(Put("key", b"x" * 32))
            cases: dict[str, tuple[Process, list[Ask]]] = {
                "echo": (echo, [client.ask for _, client in made]),
                "get": (process, [partial(backend.get, "key") for backend in users]),
                "commit": (process, [partial(user.commit, Put(f"own/{n}", b"x" * 32)) for n, user in enumerate(users)]),
                "keep_alive": (process, [session.keep_alive for session in sessions]),
            }
            await measure(cases, runs, seconds, connections=connections, callers_each=callers)
            for backend in backends:
                await backend.aclose()


async def bench_durable(quick: bool) -> None:
    """Commits per second that are on disk when they are acknowledged, next to those in memory."""
    runs, seconds = (5, 0.2) if quick else (9, 0.5)
    for connections in (1, 64):
        with tempfile.TemporaryDirectory() as directory:
            async with server("server") as memory, server("server", directory) as disk:
                cases: dict[str, tuple[Process, list[Ask]]] = {}
                backends: list[Backend] = []
                for what, (process, endpoint) in (("commit in memory", memory), ("commit on disk", disk)):
                    users = [await connect(endpoint) for _ in range(connections)]
                    asks: list[Ask] = [partial(user.commit, Put(f"own/{n}", b"x" * 32)) for n, user in enumerate(users)]
                    cases[what] = process, asks
                    backends += users
                await measure(cases, runs, seconds, connections=connections)
                for backend in backends:
                    await backend.aclose()


async def connect_many(endpoint: str, count: int) -> list[Backend]:
    """Open so many clients, some at a time."""
    limiter = anyio.Semaphore(256)
    backends: list[Backend] = []

    async def one() -> None:
        async with limiter:
            backends.append(await connect(endpoint, stall_timeout=60.0))

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
    return backends


async def close_all(backends: list[Backend]) -> None:
    async with anyio.create_task_group() as group:
        for backend in backends:
            group.start_soon(backend.aclose)


async def bench_held(quick: bool) -> None:
    """Connections held, each with two watches: how long to open, what memory, and one push to all of them."""
    count, runs, pushes_each = (2_000, 1, 3) if quick else (10_000, 3, 3)
    opened: list[float] = []
    watched: list[float] = []
    opened_cpu: list[float] = []
    memory: list[float] = []
    pushes: list[float] = []
    pushed_cpu: list[float] = []
    async with server("server") as (_, warm):  # imports and first allocations of this process
        await close_all(await connect_many(warm, 64))
    for _ in range(runs):
        async with server("server") as (process, endpoint):
            before, cpu, begin = process.memory(), process.cpu(), time.perf_counter()
            backends = await connect_many(endpoint, count)
            opened.append(time.perf_counter() - begin)
            watches = []
            begin = time.perf_counter()
            for number, backend in enumerate(backends):
                watches.append(backend.watch("state"))
                watches.append(backend.watch(f"seats/{number}"))
            async with anyio.create_task_group() as group:
                for watch in watches:
                    group.start_soon(anext, watch)
            watched.append(time.perf_counter() - begin)
            opened_cpu.append((process.cpu() - cpu) / count)
            memory.append((process.memory() - before) / count)
            for number in range(pushes_each):
                cpu, begin = process.cpu(), time.perf_counter()
                async with anyio.create_task_group() as group:
                    for watch in watches[::2]:
                        group.start_soon(anext, watch)
                    await backends[0].commit(Put("state", b"%03d" % number + b"x" * 200))
                pushes.append(time.perf_counter() - begin)
                pushed_cpu.append((process.cpu() - cpu) / count)
            await close_all(backends)
    report(
        "held connections",
        connections=count,
        watches=2 * count,
        open_seconds=summary(opened),
        watch_seconds=summary(watched),
        server_cpu_us_per_connection=summary(opened_cpu, 1e6),
        server_bytes_per_connection=summary(memory),
    )
    report(
        "push of one value to all",
        watchers=count,
        seconds=summary(pushes),
        server_cpu_us_per_watcher=summary(pushed_cpu, 1e6),
    )


async def bench_keepalive(quick: bool) -> None:
    """Nodes that each send a keep-alive every second: what part of a core the server needs."""
    count, seconds, runs = (1_024, 2, 3) if quick else (4_096, 3, 5)
    async with server("server") as (process, endpoint):
        backends = await connect_many(endpoint, count)
        sessions = [await backend.open_session(10) for backend in backends]
        late: list[float] = []
        shares, p99s = [], []

        async def keep(session: Session, offset: float, end: float) -> None:
            at = anyio.current_time() + offset
            while at < end:
                await anyio.sleep_until(at)
                await session.keep_alive()
                late.append(anyio.current_time() - at)
                at += 1.0

        for _ in range(runs):
            cpu, begin = process.cpu(), time.perf_counter()
            async with anyio.create_task_group() as group:
                end = anyio.current_time() + seconds
                for number, session in enumerate(sessions):
                    group.start_soon(keep, session, number / count, end)
            shares.append((process.cpu() - cpu) / (time.perf_counter() - begin))
            late.sort()
            p99s.append(late[len(late) * 99 // 100])
            late.clear()
        report(
            "keep-alives",
            nodes=count,
            per_second=count,
            server_share_of_a_core=summary(shares),
            p99_ms=summary(p99s, 1e3),
        )
        await close_all(backends)


async def bench_hostile(quick: bool) -> None:
    """How long a ping takes while one other peer asks for as much as it can; the worst over all attacks comes last."""
    cases = {"in memory": (False, restrict(hogs.SECRET, "hog-")), "on disk": (True, restrict(hogs.SECRET, "hog-"))}
    if not quick:
        cases["in memory, whole secret"] = (False, hogs.SECRET)
    for where, (durable, secret) in cases.items():
        longest: dict[str, list[float]] = {}
        for _ in range(1 if quick else 3):
            with tempfile.TemporaryDirectory() as directory:
                data_dir = Path(directory) if durable else None
                async with ServerProcess(data_dir, secret=hogs.SECRET, disconnect_grace=hogs.GRACE) as process:
                    async for wait in hogs.watch_hogs(process.endpoint, process.pid, secret):
                        longest.setdefault(wait.attack, []).append(wait.seconds)
        for attack, seconds in longest.items():
            report("longest ping under attack", attack=attack, server=where, ms=summary(seconds, 1e3))
        worst = max(longest, key=lambda attack: max(longest[attack]))
        report("longest ping of all", attack=worst, server=where, ms=summary(longest[worst], 1e3), goal_ms=100)


BENCHMARKS: dict[str, Callable[[bool], Awaitable[None]]] = {
    "requests": bench_requests,
    "durable": bench_durable,
    "held": bench_held,
    "keepalive": bench_keepalive,
    "hostile": bench_hostile,
}


async def main(names: list[str], quick: bool) -> None:
    for name in names or BENCHMARKS:
        await BENCHMARKS[name](quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="which ones; all if none is named")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.names, arguments.quick))
