"""What it costs to have us in the house: traffic, CPU time, memory, imports, the user's event loop, the round's store.

    python -m tests.benchmarks.bench_footprint [steady|imports|loop|store ...] [--quick] [--runs 5]

Bytes and segments are what the kernel counted on the nodes' TCP connections, the same way for every contender.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.benchmarks.bench_meeting import HAS_TORCH, SHIPPED_UP_TO, TORCH
from tests.benchmarks.figures import Figures, run_parts
from tests.benchmarks.fleet import Fleet, Process, check_world, fleet, server

SLOW_RUNS = 3
"""How often, at most, what waits for seconds is done."""

IMPORTS = {
    "ours": "import rendezvous_async as rdzv; rdzv.connect; rdzv.World",
    "ours, with the TCP backend": "import rendezvous_async as rdzv; rdzv.connect; import rendezvous_async.backends.tcp",
    "torch's rendezvous": "import torch.distributed.elastic.rendezvous.registry",
}


async def total(nodes: Fleet) -> dict[str, int]:
    """Return the traffic of all nodes so far."""
    answers = await nodes.ask("traffic")
    return {name: sum(answer[name] for answer in answers) for name in answers[0]}


async def steady(figures: Figures, runs: int, quick: bool) -> None:
    """A formed world in which nothing happens: what each node sends and receives, and what it costs."""
    seconds = 5.0 if quick else 10.0
    for count in (8, 64) if quick else (8, 64, 256):
        found: dict[tuple[str, str, str], list[float | None]] = {}
        for number in range(min(runs, SLOW_RUNS)):
            async with server("server") as (process, endpoint), fleet("ours", count, endpoint, "run", count) as nodes:
                await nodes.ask("enter")
                await idle(found, "ours", nodes, process, count, seconds)
            if not HAS_TORCH:
                continue
            for kind in ["best"] + ["shipped"] * (count <= SHIPPED_UP_TO and number == 0):
                async with (
                    server("torch_store") as (process, port),
                    fleet("torch_c10d", count, port, "run", count, kind) as nodes,
                ):
                    await nodes.ask("connect")
                    await idle(found, TORCH[kind], nodes, process, count, seconds)
        for (what, who, unit), values in found.items():
            figures.add("steady state", what, who, values, unit, count)


async def idle(
    found: dict[tuple[str, str, str], list[float | None]],
    who: str,
    nodes: Fleet,
    process: Process,
    count: int,
    seconds: float,
) -> None:
    """Let a world form and rest; what it took is added to what was found."""
    assert await nodes.form(count) is not None
    await asyncio.sleep(1.5)
    before, node_cpu, server_cpu = await total(nodes), sum(w.cpu() for w in nodes.workers), process.cpu()
    await asyncio.sleep(seconds)
    after = await total(nodes)
    used = sum(w.cpu() for w in nodes.workers) - node_cpu
    each = {name: (after[name] - before[name]) / count / seconds for name in after}
    for what, value, unit in (
        ("bytes per node and second", each["bytes_in"] + each["bytes_out"], "B/s"),
        ("segments out per node and second", each["segments_out"], "/s"),
        ("segments in per node and second", each["segments_in"], "/s"),
        ("CPU of a node", 100 * used / seconds / count, "% of a core"),
        ("CPU of the server", 100 * (process.cpu() - server_cpu) / seconds, "% of a core"),
    ):
        found.setdefault((what, who, unit), []).append(value)


async def imports(figures: Figures, runs: int, quick: bool) -> None:
    """What an import takes beyond a bare interpreter, each in a process of its own: time and memory, at its peak."""
    with tempfile.TemporaryDirectory() as cache:
        bare = several("pass", runs, cache)
        found = {who: several(code, runs, cache) for who, code in IMPORTS.items() if HAS_TORCH or "torch" not in who}
    bare_seconds, bare_memory = zip(*bare, strict=True)
    for who, results in found.items():
        seconds, memory = zip(*results, strict=True)
        figures.add("import", "time", who, [1e3 * (value - min(bare_seconds)) for value in seconds], "ms")
        figures.add("import", "peak memory", who, [value - min(bare_memory) for value in memory], "MiB")


def several(code: str, runs: int, cache: str) -> list[tuple[float, float]]:
    """Measure several times, after once for what is cached then: files, and bytecode as pip would have compiled it."""
    return [measure(code, cache) for _ in range(runs + 1)][1:]


def measure(code: str, cache: str) -> tuple[float, float]:
    """Return the seconds and, at its peak, the MiB that a new interpreter takes for ``code``."""
    # The kernel's mark for this program: getrusage() would count the process that started it as well.
    script = (
        "import time; begin = time.perf_counter()\n"
        f"{code}\n"
        "end = time.perf_counter()\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM:'))\n"
        "print(end - begin, int(peak.split()[1]) / 1024)"
    )
    # Whoever runs this may have switched bytecode off; an import would then be measured that compiles everything.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


async def loop(figures: Figures, runs: int, quick: bool) -> None:
    """How late the user's own callbacks run because of us: a timer each 2 ms, in processes with one node of 64 each.

    The first to come coordinates. A process with a bare loop runs beside them: what it sees is the machine's doing.
    """
    seconds, rounds = (3, 20) if quick else (10, 50)
    late: dict[tuple[str, str], list[float | None]] = {}
    for _ in range(min(runs, SLOW_RUNS)):
        async with (
            server("server") as (_, endpoint),
            fleet("ours", 1, endpoint, "alone", 1) as bare,  # entered by nobody
            fleet("ours", 1, endpoint, "run", 64) as first,
            fleet("ours", 1, endpoint, "run", 64) as other,
            fleet("ours", 62, endpoint, "run", 64, processes=2) as rest,
        ):
            world = Fleet([*first.workers, *other.workers, *rest.workers])
            loops = {"a bare loop beside it": bare, "the coordinator's loop": first, "another member's loop": other}

            @asynccontextmanager
            async def timers(when: str, loops: dict[str, Fleet] = loops) -> AsyncIterator[None]:
                """Have timers run in all loops meanwhile."""
                for one in loops.values():
                    await one.ask("timers")
                yield
                for who, one in loops.items():
                    for what, value in (await one.workers[0].ask("lateness")).items():
                        late.setdefault((f"lateness {when}, {what}", who), []).append(1e3 * value)

            await world.ask("enter")
            async with timers("while 64 join"):
                first.workers[0].tell("join")
                await asyncio.sleep(0.05)
                answers = await Fleet([*other.workers, *rest.workers]).ask("join")
                check_world([*answers, await first.workers[0].answer()], 64)
            async with timers("while 64 re-form again and again"):
                for _ in range(rounds):
                    await world.form(64)
            async with timers("at rest"):
                await asyncio.sleep(seconds)
    for (what, who), values in late.items():
        figures.add("loop", what, who, values, "ms")


async def store(figures: Figures, runs: int, quick: bool) -> None:
    """Operations on a round's store, one after the other."""
    seconds = 0.5 if quick else 1.0
    rates: dict[tuple[str, str], list[float | None]] = {}
    for _ in range(runs):
        async with server("server") as (_, endpoint), fleet("ours", 1, endpoint, "run", 1) as nodes:
            await nodes.ask("enter")
            await nodes.ask("join")
            for name, rate in (await nodes.workers[0].ask(f"store {seconds}")).items():
                rates.setdefault((name, "ours, asyncio"), []).append(rate)
        if HAS_TORCH:
            async with server("torch_store") as (_, port), fleet("torch_c10d", 1, port, "run", 1, "best") as nodes:
                for name, rate in (await nodes.workers[0].ask(f"store {seconds}")).items():
                    rates.setdefault((name, "TCPStore, blocking"), []).append(rate)
    for (name, who), values in rates.items():
        note = "not acknowledged" if name == "set" and "TCPStore" in who else ""
        figures.add("store", f"{name}, one after the other", who, values, "/s", note=note)


PARTS = {"steady": steady, "imports": imports, "loop": loop, "store": store}


if __name__ == "__main__":
    run_parts(PARTS, __doc__)
