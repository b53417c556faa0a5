"""What it costs to have us in the house: traffic, CPU time, memory, imports, the user's event loop, the round's store.

    python -m tests.benchmarks.bench_footprint [steady|imports|loop|store ...] [--quick] [--runs 5]

Bytes and segments are what the kernel counted on the nodes' TCP connections, the same way for every contender.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from tests.benchmarks.bench_meeting import HAS_TORCH
from tests.benchmarks.figures import Figures, run_parts
from tests.benchmarks.fleet import Fleet, Process, fleet, server

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
        async with server("server") as (process, endpoint), fleet("ours", count, endpoint, "run", count) as nodes:
            await nodes.ask("enter")
            await idle(figures, "ours", nodes, process, count, seconds)
        if HAS_TORCH:
            async with (
                server("torch_store") as (process, port),
                fleet("torch_c10d", count, port, "run", count, "best") as nodes,
            ):
                await nodes.ask("connect")
                await idle(figures, "c10d at its best", nodes, process, count, seconds)


async def idle(figures: Figures, who: str, nodes: Fleet, process: Process, count: int, seconds: float) -> None:
    await nodes.ask("join")
    await asyncio.sleep(1.5)
    before, node_cpu, server_cpu = await total(nodes), sum(w.cpu() for w in nodes.workers), process.cpu()
    await asyncio.sleep(seconds)
    after = await total(nodes)
    used = sum(w.cpu() for w in nodes.workers) - node_cpu
    each = {name: (after[name] - before[name]) / count / seconds for name in after}
    part = "steady state"
    figures.add(part, "bytes per node and second", who, [each["bytes_in"] + each["bytes_out"]], "B/s", count)
    figures.add(part, "segments out per node and second", who, [each["segments_out"]], "/s", count)
    figures.add(part, "segments in per node and second", who, [each["segments_in"]], "/s", count)
    figures.add(part, "CPU of a node", who, [100 * used / seconds / count], "% of a core", count)
    figures.add(part, "CPU of the server", who, [100 * (process.cpu() - server_cpu) / seconds], "% of a core", count)


async def imports(figures: Figures, runs: int, quick: bool) -> None:
    """What an import takes beyond a bare interpreter: time and memory."""
    bare_seconds, bare_memory = zip(*[measure("pass") for _ in range(runs)], strict=True)
    for who, code in IMPORTS.items():
        if "torch" in who and not HAS_TORCH:
            continue
        measure(code)
        seconds, memory = zip(*[measure(code) for _ in range(runs)], strict=True)
        figures.add("import", "time", who, [1e3 * (value - min(bare_seconds)) for value in seconds], "ms")
        figures.add("import", "memory", who, [value - min(bare_memory) for value in memory], "MiB")


def measure(code: str) -> tuple[float, float]:
    """Return the seconds and the MiB that a new interpreter takes for ``code``."""
    script = (
        "import time; begin = time.perf_counter()\n"
        f"{code}\n"
        "end = time.perf_counter()\n"
        "print(end - begin, int(open('/proc/self/statm').read().split()[1]) * 4096 / 2**20)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


async def loop(figures: Figures, runs: int, quick: bool) -> None:
    """How late the user's own callbacks run because of us: a timer each 2 ms, in a process with one node."""
    seconds = 3 if quick else 10
    async with server("server") as (_, endpoint):
        async with fleet("ours", 1, endpoint, "alone", 1) as bystander:  # entered by nobody: a bare loop
            bare = await bystander.workers[0].ask(f"lateness {seconds}")
        async with (
            fleet("ours", 1, endpoint, "run", 64) as one,
            fleet("ours", 63, endpoint, "run", 64) as others,
        ):
            await one.ask("enter")
            await others.ask("enter")
            one.workers[0].tell("join")
            await others.ask("join")
            await one.workers[0].answer()
            member = await one.workers[0].ask(f"lateness {seconds}")
    for who, answer in (("a bare loop", bare), ("a loop with a member of a world of 64", member)):
        for what, value in answer.items():
            figures.add("loop", f"lateness, {what}", who, [1e3 * value], "ms")


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
