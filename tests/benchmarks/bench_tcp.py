"""How fast the TCP backend is, next to a bare asyncio echo on the same kind of transports in the same run.

    python -m tests.benchmarks.bench_tcp [requests|durable|held|keepalive|kill ...] [--quick]

Prints JSON lines, one for each measurement; every figure is the median of several runs. The server always has a
process of its own, so that its CPU time can be told from the clients'. Clients share this process: with two cores they
are the limit as often as the server is, so the server's CPU time per operation is given as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from rendezvous_async.backends.base import Put, Session
from rendezvous_async.backends.tcp import TcpBackend
from rendezvous_async.backends.tcp.options import open_tcp
from rendezvous_async.settings import parse_endpoint

SERVER = """
import asyncio, sys
from rendezvous_async.backends.tcp import serve
async def main():
    async with serve("127.0.0.1", 0, data_dir=(sys.argv[1] or None)) as server:
        print(server.endpoint, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""

ECHO = """
import asyncio, sys
class Echo(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(data)
async def main():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=4096)
    print("tcp://127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""


class Server:
    """A server in its own process; ``cpu()`` is the CPU time that it has used."""

    def __init__(self, code: str = SERVER, data_dir: str = "") -> None:
        self._code = code
        self._data_dir = data_dir
        self._process: asyncio.subprocess.Process | None = None
        self.endpoint = ""

    async def __aenter__(self) -> Server:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            self._code,
            self._data_dir,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.endpoint = (await self._process.stdout.readline()).decode().strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.communicate()

    def cpu(self) -> float:
        assert self._process is not None
        total = 0
        for task in os.listdir(f"/proc/{self._process.pid}/task"):
            with open(f"/proc/{self._process.pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def memory(self) -> int:
        assert self._process is not None
        with open(f"/proc/{self._process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class EchoClient(asyncio.Protocol):
    """Sends 64 bytes and waits for them, as cheaply as asyncio can."""

    def __init__(self) -> None:
        self._left = 0
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left <= 0 and self._waiter is not None:
            self._waiter.set_result(None)

    async def ask(self) -> None:
        assert self._transport is not None
        self._left = 64
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(struct.pack(">I60x", 60))
        await self._waiter


def report(what: str, **figures: Any) -> None:
    print(json.dumps({"benchmark": "tcp", "what": what, **figures}), flush=True)


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


async def connect(endpoint: str, **options: Any) -> TcpBackend:
    return await open_tcp(parse_endpoint(endpoint), "bench", is_host=False, **options)


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


async def measure(cases: dict[str, tuple[Server, list[Ask]]], runs: int, seconds: float, **extra: Any) -> None:
    """Drive the cases in turn, several times, and report the medians, each next to the first case of the same turn."""
    results: dict[str, list[tuple[float, float, float, float]]] = {what: [] for what in cases}
    for turn in range(runs + 1):
        for what, (server, asks) in cases.items():
            cpu = server.cpu()
            rate, latencies = await drive(asks, seconds)
            cpu = (server.cpu() - cpu) / len(latencies)
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
            requests_per_second=round(statistics.median(rates)),
            p50_us=rounded(statistics.median(p50s) * 1e6),
            p99_us=rounded(statistics.median(p99s) * 1e6),
            server_cpu_us_per_request=rounded(statistics.median(cpus) * 1e6),
            rate_next_to_first=rounded(statistics.median(r[0] / f[0] for r, f in zip(result, first, strict=True))),
        )


async def bench_requests(quick: bool) -> None:
    """Requests per second over 1 and 64 connections, and over one connection with 64 callers, next to a bare echo."""
    runs, seconds = (5, 0.2) if quick else (9, 0.5)
    loop = asyncio.get_running_loop()
    for connections, callers in ((1, 1), (64, 1), (1, 64)):
        async with Server(ECHO) as echo, Server() as server:
            host, port = parse_endpoint(echo.endpoint).hosts[0]
            echoes = [(await loop.create_connection(EchoClient, host, port))[1] for _ in range(connections * callers)]
            backends = [await connect(server.endpoint) for _ in range(connections)]
            users = [backends[number % connections] for number in range(connections * callers)]
            sessions = [await backend.open_session(60) for backend in users]
            await backends[0].commit(Put("key", b"x" * 32))
            cases: dict[str, tuple[Server, list[Ask]]] = {
                "echo": (echo, [client.ask for client in echoes]),
                "get": (server, [partial(backend.get, "key") for backend in users]),
                "commit": (server, [partial(user.commit, Put(f"own/{n}", b"x" * 32)) for n, user in enumerate(users)]),
                "keep_alive": (server, [session.keep_alive for session in sessions]),
            }
            await measure(cases, runs, seconds, connections=connections, callers_each=callers)
            for backend in backends:
                await backend.aclose()


async def bench_durable(quick: bool) -> None:
    """Commits per second that are on disk when they are acknowledged, next to those in memory."""
    runs, seconds = (5, 0.2) if quick else (9, 0.5)
    for connections in (1, 64):
        with tempfile.TemporaryDirectory() as directory:
            async with Server() as memory, Server(data_dir=directory) as disk:
                cases: dict[str, tuple[Server, list[Ask]]] = {}
                backends: list[TcpBackend] = []
                for what, server in (("commit in memory", memory), ("commit on disk", disk)):
                    users = [await connect(server.endpoint) for _ in range(connections)]
                    asks: list[Ask] = [partial(user.commit, Put(f"own/{n}", b"x" * 32)) for n, user in enumerate(users)]
                    cases[what] = server, asks
                    backends += users
                await measure(cases, runs, seconds, connections=connections)
                for backend in backends:
                    await backend.aclose()


async def connect_many(endpoint: str, count: int) -> list[TcpBackend]:
    """Open so many clients, some at a time."""
    limiter = anyio.Semaphore(256)
    backends: list[TcpBackend] = []

    async def one() -> None:
        async with limiter:
            backends.append(await connect(endpoint, stall_timeout=60.0))

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
    return backends


async def close_all(backends: list[TcpBackend]) -> None:
    async with anyio.create_task_group() as group:
        for backend in backends:
            group.start_soon(backend.aclose)


async def bench_held(quick: bool) -> None:
    """Connections held, each with two watches: how long to open, what memory, and one push to all of them."""
    count, runs = (2_000, 3) if quick else (10_000, 5)
    async with Server() as server:
        async with Server() as warm:  # imports and first allocations of this process
            await close_all(await connect_many(warm.endpoint, 64))
        before, cpu, begin = server.memory(), server.cpu(), time.perf_counter()
        backends = await connect_many(server.endpoint, count)
        opened, opened_cpu = time.perf_counter() - begin, server.cpu() - cpu
        watches = []
        begin, cpu = time.perf_counter(), server.cpu()
        for number, backend in enumerate(backends):
            watches.append(backend.watch("state"))
            watches.append(backend.watch(f"seats/{number}"))
        async with anyio.create_task_group() as group:
            for watch in watches:
                group.start_soon(anext, watch)
        watched, watched_cpu = time.perf_counter() - begin, server.cpu() - cpu
        report(
            "held connections",
            connections=count,
            watches=len(watches),
            open_seconds=rounded(opened),
            watch_seconds=rounded(watched),
            server_cpu_us_per_connection=rounded((opened_cpu + watched_cpu) / count * 1e6),
            server_bytes_per_connection=round((server.memory() - before) / count),
        )
        pushes, cpus = [], []
        for number in range(runs):
            cpu, begin = server.cpu(), time.perf_counter()
            async with anyio.create_task_group() as group:
                for watch in watches[::2]:
                    group.start_soon(anext, watch)
                await backends[0].commit(Put("state", b"%03d" % number + b"x" * 200))
            pushes.append(time.perf_counter() - begin)
            cpus.append((server.cpu() - cpu) / count)
        report(
            "push of one value to all",
            watchers=count,
            seconds=rounded(statistics.median(pushes)),
            server_cpu_us_per_watcher=rounded(statistics.median(cpus) * 1e6),
        )
        await close_all(backends)


async def bench_keepalive(quick: bool) -> None:
    """Nodes that each send a keep-alive every second: what part of a core the server needs."""
    count, seconds, runs = (1_024, 2, 3) if quick else (4_096, 3, 5)
    async with Server() as server:
        backends = await connect_many(server.endpoint, count)
        sessions = [await backend.open_session(10) for backend in backends]
        late: list[float] = []
        shares = []

        async def keep(session: Session, offset: float, end: float) -> None:
            at = anyio.current_time() + offset
            while at < end:
                await anyio.sleep_until(at)
                await session.keep_alive()
                late.append(anyio.current_time() - at)
                at += 1.0

        for _ in range(runs):
            cpu, begin = server.cpu(), time.perf_counter()
            async with anyio.create_task_group() as group:
                end = anyio.current_time() + seconds
                for number, session in enumerate(sessions):
                    group.start_soon(keep, session, number / count, end)
            shares.append((server.cpu() - cpu) / (time.perf_counter() - begin))
        late.sort()
        report(
            "keep-alives",
            nodes=count,
            per_second=count,
            server_share_of_a_core=rounded(statistics.median(shares)),
            p99_ms=rounded(late[len(late) * 99 // 100] * 1e3),
        )
        await close_all(backends)


VICTIM = """
import sys
import anyio
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
async def main(endpoint):
    async with open_backend(endpoint, run_id="bench", is_host=False) as backend:
        session = await backend.open_session(5)
        await backend.commit(Put("nodes/victim", b"", session.id))
        print("in", flush=True)
        await anyio.sleep_forever()
anyio.run(main, sys.argv[1])
"""


async def bench_kill(quick: bool) -> None:
    """A member is killed with SIGKILL: until all others know, of which one second is the grace."""
    count, runs = (64, 3) if quick else (64, 7)
    async with Server() as server:
        backends = await connect_many(server.endpoint, count)
        firsts, lasts = [], []
        for _ in range(runs):
            victim = await asyncio.create_subprocess_exec(
                sys.executable, "-c", VICTIM, server.endpoint, stdout=asyncio.subprocess.PIPE
            )
            assert victim.stdout is not None
            await victim.stdout.readline()
            seen: list[float] = []

            async def observe(backend: TcpBackend, seen: list[float] = seen) -> None:
                async with backend.watch("nodes/") as watch:
                    async for listing in watch:
                        if any(entry.value is None for entry in listing.entries):
                            seen.append(time.perf_counter())
                            return

            async with anyio.create_task_group() as group:
                for backend in backends:
                    group.start_soon(observe, backend)
                await anyio.sleep(0.2)
                victim.kill()
                killed = time.perf_counter()
            await victim.communicate()
            firsts.append(seen[0] - killed)
            lasts.append(seen[-1] - killed)
        report(
            "a member killed -9 is known",
            nodes=count,
            first_seconds=rounded(statistics.median(firsts)),
            last_seconds=rounded(statistics.median(lasts)),
        )
        await close_all(backends)


BENCHMARKS: dict[str, Callable[[bool], Awaitable[None]]] = {
    "requests": bench_requests,
    "durable": bench_durable,
    "held": bench_held,
    "keepalive": bench_keepalive,
    "kill": bench_kill,
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
