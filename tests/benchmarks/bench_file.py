"""How fast the file backend is, next to sqlite in WAL mode in the same run, and what it costs when nothing happens.

    python -m tests.benchmarks.bench_file [commits] [latency] [kill] [world] [idle] [--directory DIR] [--quick]

Prints JSON lines, one for each measurement: median, least and most of several runs; an idle node is looked at once. All
clients are processes of their own. System calls are counted with strace, where it is there and may attach. Compare
figures of one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from rendezvous_async import Timeouts, connect
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from tests.benchmarks.figures import summary

VALUE = b"v" * 100


def say(*what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


async def hear() -> None:
    await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


# What the processes do


async def commits(path: str, name: str, seconds: float, tasks: int, fsync: bool) -> None:
    """Commit as fast as it goes, in so many tasks at once."""
    async with open_backend(f"file://{path}", run_id="bench", fsync=fsync) as backend:
        done = 0

        async def loop(task: int, until: float) -> None:
            nonlocal done
            while anyio.current_time() < until:
                await backend.commit(Put(f"{name}/{task}", VALUE))
                done += 1

        say("ready")
        await hear()
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for task in range(tasks):
                group.start_soon(loop, task, began + seconds)
        say(done / (anyio.current_time() - began))


async def sqlite(path: str, name: str, seconds: float, tasks: int, fsync: bool) -> None:
    """The same with sqlite, which has no tasks."""
    connection = sqlite3.connect(f"{path}/bench.sqlite", timeout=60, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if fsync else 'NORMAL'}")
    connection.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB, revision INTEGER)")
    say("ready")
    await hear()
    began = time.monotonic()
    done = 0
    while time.monotonic() < began + seconds:
        connection.execute("BEGIN IMMEDIATE")
        (newest,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM entries").fetchone()
        connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (name, VALUE, newest))
        connection.execute("COMMIT")
        done += 1
    say(done / (time.monotonic() - began))
    connection.close()


async def write(path: str, count: int, pause: float, options: dict[str, Any]) -> None:
    """Put the time, again and again."""
    async with open_backend(f"file://{path}", run_id="bench", **options) as backend:
        say("ready")
        await hear()
        for number in range(1, count + 1):
            await anyio.sleep(pause)
            await backend.commit(Put("now", f"{number} {time.monotonic()}".encode()))


async def node(path: str, options: dict[str, Any]) -> None:
    """What a node does while nothing happens: a session, kept alive each second, and a watch."""
    async with open_backend(f"file://{path}", run_id="bench", **options) as backend:
        session = await backend.open_session(5)
        await backend.commit(Put(f"nodes/{os.getpid()}", VALUE, session.id))
        say("ready", os.getpid())
        async with backend.watch("nodes/") as watch, anyio.create_task_group() as group:

            async def follow() -> None:
                async for _ in watch:
                    pass

            group.start_soon(follow)
            while True:
                await anyio.sleep(1)
                await session.keep_alive()


async def member(path: str, size: int, options: dict[str, Any]) -> None:
    """Form a world with others."""
    timeouts = Timeouts(join=120, last_call=120)
    async with connect(f"file://{path}", run_id="bench", nodes=size, timeouts=timeouts, **options) as rendezvous:
        await rendezvous.status()
        say("ready")
        await hear()
        world = await rendezvous.join()
        say(world.rank, time.monotonic())
        await hear()


# What is measured


@asynccontextmanager
async def process(role: str, **arguments: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.bench_file",
        "--role",
        role,
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def line(child: asyncio.subprocess.Process) -> list[Any]:
    assert child.stdout is not None
    said: list[Any] = json.loads(await child.stdout.readline())
    return said


def go(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")


async def rate(role: str, path: Path, processes: int, tasks: int, fsync: bool, seconds: float) -> float:
    os.mkdir(path, 0o700)
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(
                process(role, path=str(path), name=f"n{number}", seconds=seconds, tasks=tasks, fsync=fsync)
            )
            for number in range(processes)
        ]
        for child in children:
            await line(child)
        for child in children:
            go(child)
        rates = [(await line(child))[0] for child in children]
    shutil.rmtree(path)
    return float(sum(rates))


async def measure_commits(root: Path, quick: bool) -> None:
    for processes, tasks in ((1, 1), (1, 64), (8, 1), (8, 16)):
        for fsync in (True, False):
            figures: dict[str, list[float]] = {"file": [], "sqlite": []}
            for _ in range(1 if quick else 3):
                for name, role in (("file", "commits"), ("sqlite", "sqlite")):
                    if name == "sqlite" and tasks > 1:
                        continue
                    figures[name].append(
                        await rate(role, root / f"{name}", processes, tasks, fsync, 0.5 if quick else 2.0)
                    )
            report(
                what="commits per second",
                processes=processes,
                tasks_each=tasks,
                fsync=fsync,
                **{name: summary(rates) for name, rates in figures.items() if rates},
            )


async def measure_latency(root: Path, quick: bool) -> None:
    for inotify in (True, False):
        for pause in (0.02, 1.0):
            path = root / f"latency-{inotify}-{pause}"
            count = 5 if quick else (100 if pause < 1 else 10)
            options = {"inotify": inotify, "fsync": False}
            late: list[float] = []
            async with (
                open_backend(f"file://{path}", run_id="bench", **options) as backend,
                process("write", path=str(path), count=count, pause=pause, options=options) as child,
                backend.watch("now") as watch,
            ):
                await line(child)
                await watch.__anext__()
                go(child)
                number = 0
                while number < count:
                    for entry in (await watch.__anext__()).entries:
                        number, sent_at = int((entry.value or b"").split()[0]), float((entry.value or b"").split()[1])
                        late.append(time.monotonic() - sent_at)
            report(
                what="until a change is seen",
                inotify=inotify,
                seconds_between_changes=pause,
                milliseconds=summary(late, 1000),
            )


async def measure_kill(root: Path, quick: bool) -> None:
    for inotify in (True, False):
        path = root / f"kill-{inotify}"
        options = {"inotify": inotify}
        times = []
        async with (
            open_backend(f"file://{path}", run_id="bench", **options) as backend,
            backend.watch("nodes/") as watch,
        ):
            for _ in range(2 if quick else 7):
                async with process("node", path=str(path), options=options) as child:
                    await line(child)
                    while not any(entry.value for entry in (await watch.__anext__()).entries):
                        pass
                    child.kill()
                    began = time.monotonic()
                    while all(entry.value for entry in (await watch.__anext__()).entries):
                        pass
                    times.append(time.monotonic() - began)
        report(
            what="until a node killed -9 is gone, TTL 5 s",
            inotify=inotify,
            milliseconds=summary(times, 1000),
        )


async def measure_world(root: Path, quick: bool) -> None:
    for size in (8, 64):
        for fsync in (True, False):
            times = []
            for attempt in range(1 if quick else 3):
                path = root / f"world-{size}-{fsync}-{attempt}"
                async with AsyncExitStack() as stack:
                    children = [
                        await stack.enter_async_context(
                            process("member", path=str(path), size=size, options={"fsync": fsync})
                        )
                        for _ in range(size)
                    ]
                    for child in children:
                        await line(child)
                    began = time.monotonic()
                    for child in children:
                        go(child)
                    times.append(max([(await line(child))[1] for child in children]) - began)
            report(
                what="until all have joined, from open backends",
                processes=size,
                fsync=fsync,
                seconds=summary(times),
            )


async def measure_idle(root: Path, quick: bool) -> None:
    seconds = 3.0 if quick else 10.0
    for nodes in (1, 8):
        for inotify in (True, False):
            path = root / f"idle-{nodes}-{inotify}"
            async with AsyncExitStack() as stack:
                children = [
                    await stack.enter_async_context(process("node", path=str(path), options={"inotify": inotify}))
                    for _ in range(nodes)
                ]
                pids = [(await line(child))[1] for child in children]
                await anyio.sleep(2)
                before = cpu(pids[0])
                await anyio.sleep(seconds)
                used = cpu(pids[0]) - before
                calls = await system_calls(pids[0], seconds)
            report(
                what="idle node: a session kept alive each second and a watch",
                nodes=nodes,
                inotify=inotify,
                cpu_percent=round(100 * used / seconds, 2),
                system_calls_per_second=calls,
            )


def cpu(pid: int) -> float:
    """CPU seconds that a process has used, to the nanosecond where the kernel tells."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as stat:
            total += int(stat.read().split()[0])
    return total / 1e9


async def system_calls(pid: int, seconds: float) -> float | None:
    if shutil.which("strace") is None:
        return None
    tracer = await asyncio.create_subprocess_exec(
        "strace", "-f", "-c", "-qq", "-p", str(pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    await anyio.sleep(seconds)
    if tracer.returncode is None:
        tracer.terminate()
    out, _ = await tracer.communicate()
    total = re.search(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s.*total$", out.decode(), re.MULTILINE)
    return None if total is None else round(int(total[1]) / seconds, 1)


def report(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


MEASUREMENTS: dict[str, Callable[[Path, bool], Awaitable[None]]] = {
    "commits": measure_commits,
    "latency": measure_latency,
    "kill": measure_kill,
    "world": measure_world,
    "idle": measure_idle,
}
ROLES: dict[str, Callable[..., Awaitable[None]]] = {
    role.__name__: role for role in (commits, sqlite, write, node, member)
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], default=[])
    parser.add_argument("--directory", help="where to measure; by default the system's temporary directory")
    parser.add_argument("--quick", action="store_true", help="once each, to see that it works")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role, values = arguments.role
        await ROLES[role](**json.loads(values))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
        for what in arguments.what or MEASUREMENTS:
            await MEASUREMENTS[what](Path(root), arguments.quick)


if __name__ == "__main__":
    asyncio.run(main())
