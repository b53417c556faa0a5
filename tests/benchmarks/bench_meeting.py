"""How fast nodes meet, learn of each other and meet again: ours next to torch's c10d rendezvous and to a floor.

    python -m tests.benchmarks.bench_meeting [formation|large|late|kill ...] [--quick] [--runs 5]

All contenders have the same shape: a server in its own process, the nodes in up to four others, all told to start at
once; a figure is the time until the last node is done. ``ours`` starts with a connection open, as torch's handlers do;
``ours, rejoin`` is the second round of the same nodes, with sessions and watches in place; ``ours, cold`` connects as
well. The floor is what asyncio needs for as many bare messages: four round trips, and for each node two echoes and one
message to it, over as many connections in as many processes, read in the same way. Every world that is timed is checked
to be one, with all ranks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from contextlib import suppress

from tests.benchmarks.figures import Figure, Figures, run_parts
from tests.benchmarks.fleet import PATIENCE, Fleet, check_world, fleet, server

HAS_TORCH = importlib.util.find_spec("torch") is not None
TORCH_SIZES = (2, 8, 64, 128, 256)
OUR_SIZES = (2, 8, 64, 128, 256, 1_024)
LARGE_SIZES = (256, 1_024, 4_096, 10_000)
LARGE_INTERVAL = 5
"""Seconds between keep-alives in large worlds, as torch's: thousands of nodes share this machine's few cores."""
SHIPPED_UP_TO = 128
"""Torch as shipped does not form larger worlds here within minutes."""
TORCH_PATIENCE = 60.0
TORCH_KILL_PATIENCE = 30.0
"""It drops a node after 15 s without a heartbeat."""
MEMBERS = 64
RE_FORMED = "re-formed without it"
TORCH = {"best": "c10d at its best", "shipped": "c10d as shipped"}


async def floor(count: int, processes: int = 4) -> float:
    """Return the floor in seconds."""
    async with server("echo_server") as (_, port), fleet("echo", count, port, processes=processes) as clients:
        await clients.ask("connect")
        trip = (await clients.workers[0].ask("trip"))["seconds"]
        echoes = sorted([await clients.time("echo") or 0.0 for _ in range(5)])[2]
        sends = []
        for _ in range(5):
            await clients.ask("expect")
            begin = time.monotonic()
            for worker in clients.workers[1:]:
                worker.tell("hear")
            clients.workers[0].tell("cry")
            sends.append(max([(await worker.answer())["done"] for worker in clients.workers]) - begin)
        return float(4 * trip + 2 * echoes + sorted(sends)[2])


async def formation(figures: Figures, runs: int, quick: bool) -> None:
    """Formation against N, ours, torch's and the floor, in turns."""
    sizes = (2, 8, 64) if quick else OUR_SIZES
    for count in sizes:
        times: dict[str, list[float | None]] = {}
        for number in range(runs):
            async with server("server") as (_, endpoint), fleet("ours", count, endpoint, "cold", count) as nodes:
                await nodes.ask("enter")
                times.setdefault("ours, cold", []).append(await nodes.form(count))
            # A server of its own: the last one still has to do with the nodes that were killed when they had joined.
            async with server("server") as (process, endpoint), fleet("ours", count, endpoint, "warm", count) as nodes:
                await nodes.ask("enter")
                await nodes.ask("connect")
                cpu = process.cpu()
                times.setdefault("ours", []).append(await nodes.form(count))
                times.setdefault("server CPU", []).append((process.cpu() - cpu) / count * 1e6)
                times.setdefault("ours, rejoin", []).append(await nodes.form(count))
            times.setdefault("floor", []).append(await floor(count))
            if HAS_TORCH and count in TORCH_SIZES:
                for kind in ["best"] + ["shipped"] * (count <= SHIPPED_UP_TO and number < 3):
                    times.setdefault(TORCH[kind], []).append(await torch_formation(count, kind))
        found: dict[str, Figure] = {}
        for who, values in times.items():
            unit, what = ("us/node", "server CPU per node") if who == "server CPU" else ("s", "formation")
            name = "ours" if who == "server CPU" else who
            found[who] = figures.add("meeting", what, name, values, unit, count)
        if TORCH["best"] in found:
            figures.ratio("meeting", "how many times faster", found[TORCH["best"]], found["ours"])
        figures.ratio("meeting", "above the floor", found["ours"], found["floor"])
        figures.ratio("meeting", "above the floor", found["ours, rejoin"], found["floor"])


async def torch_formation(count: int, kind: str) -> float | None:
    async with server("torch_store") as (_, port), fleet("torch_c10d", count, port, "run", count, kind) as nodes:
        await nodes.ask("connect")
        return await nodes.form(count, TORCH_PATIENCE)


async def large(figures: Figures, runs: int, quick: bool) -> None:
    """Large worlds on tcp://, connecting first or connected, what each node costs the server, and how that grows."""
    costs: dict[str, list[Figure]] = {}
    for count in (256, 1_024) if quick else LARGE_SIZES:
        cold: list[float | None] = []
        warm: list[float | None] = []
        cpu_cold: list[float | None] = []
        cpu_warm: list[float | None] = []
        for _ in range(min(runs, 3)):
            for into, cpus, commands in ((cold, cpu_cold, ["enter"]), (warm, cpu_warm, ["enter", "connect"])):
                async with (
                    server("server") as (process, endpoint),
                    fleet("ours", count, endpoint, "large", count, LARGE_INTERVAL) as nodes,
                ):
                    for command in commands:
                        await nodes.ask(command)
                    used = process.cpu()
                    into.append(await nodes.form(count))
                    cpus.append((process.cpu() - used) / count * 1e6)
        for what, values, cpus in (("ours, cold", cold, cpu_cold), ("ours", warm, cpu_warm)):
            figures.add("large", "formation", what, values, nodes=count)
            cost = figures.add("large", "server CPU per node", what, cpus, "us/node", count)
            costs.setdefault(what, []).append(cost)
    for first, *_, last in costs.values():
        figures.ratio("large", f"growth: server CPU per node, next to that of {first.nodes}", last, first)


Times = dict[str, list[float | None]]


async def late(figures: Figures, runs: int, quick: bool) -> None:
    """A late joiner: when all members know, and how long the new world takes."""
    nodes = f"{MEMBERS}:{MEMBERS + 1}"
    known: Times = {}
    formed: Times = {}
    for number in range(runs):
        async with (
            server("server") as (_, endpoint),
            fleet("ours", MEMBERS, endpoint, "late", nodes) as members,
            fleet("ours", 1, endpoint, "late", nodes) as newcomer,
        ):
            await members.ask("enter")
            await newcomer.ask("enter")
            await newcomer.ask("connect")
            await one_late(members, newcomer, known.setdefault("ours", []), formed.setdefault("ours", []))
        if not HAS_TORCH:
            continue
        for kind in ["best"] * (number < (1 if quick else 3)) + ["shipped"] * (number == 0):
            async with (
                server("torch_store") as (_, port),
                fleet("torch_c10d", MEMBERS, port, "late", nodes, kind) as members,
                fleet("torch_c10d", 1, port, "late", nodes, kind) as newcomer,
            ):
                await members.ask("connect")
                await newcomer.ask("connect")
                who = TORCH[kind]
                into = known.setdefault(who, []), formed.setdefault(who, [])
                await one_late(members, newcomer, *into, patience=TORCH_PATIENCE)
    for who, values in known.items():
        figures.add("late", "a late joiner is known to all", who, values, nodes=MEMBERS)
    for who, values in formed.items():
        note = "the newcomer waits for a key that nobody writes, and dies" if who == TORCH["shipped"] else ""
        figures.add("late", "re-forming with it", who, values, nodes=MEMBERS, note=note if None in values else "")


async def one_late(
    members: Fleet,
    newcomer: Fleet,
    known: list[float | None],
    formed: list[float | None],
    patience: float = PATIENCE,
) -> None:
    """Let one join late; what is not known, does not stand in time, or makes a worker die counts as never."""
    assert await members.form(MEMBERS) is not None
    await members.ask("watch")
    await asyncio.sleep(0.5)
    seen = took = None
    begin = time.monotonic()
    newcomer.workers[0].tell("join")
    with suppress(TimeoutError, ConnectionError):
        answers = await members.ask("changed", patience)
        seen = max(answer["done"] for answer in answers) - begin
        begin = time.monotonic()
        answers = [*await members.ask("join", patience), await newcomer.workers[0].answer(patience)]
        check_world(answers, MEMBERS + 1)
        took = max(answer["done"] for answer in answers) - begin
    known.append(seen)
    formed.append(took)


async def kill(figures: Figures, runs: int, quick: bool) -> None:
    """SIGKILL of a member: when all others know, and when they have formed again."""
    nodes = f"{MEMBERS - 1}:{MEMBERS}"
    patient = 1.0, 60.0  # keep-alive interval and last call: the first world is to have all
    ours: Times = {}
    c10d: Times = {}
    for number in range(runs):
        async with (
            server("server") as (_, endpoint),
            fleet("ours", MEMBERS - 1, endpoint, "kill", nodes, *patient) as members,
            fleet("ours", 1, endpoint, "kill", nodes, *patient) as victim,
        ):
            await members.ask("enter")
            await victim.ask("enter")
            await one_kill(members, victim, "watch", ours)
        if HAS_TORCH and number == 0:
            async with (
                server("torch_store") as (_, port),
                fleet("torch_c10d", MEMBERS - 1, port, "kill", nodes, "best") as members,
                fleet("torch_c10d", 1, port, "kill", nodes, "best") as victim,
            ):
                await members.ask("connect")
                await victim.ask("connect")
                await one_kill(members, victim, "miss", c10d, TORCH_KILL_PATIENCE)
    for what, values in ours.items():
        figures.add("kill", what, "ours", values, nodes=MEMBERS, note="disconnect_grace is 1 s")
    for what, values in c10d.items():
        note = "only if told to" if what == RE_FORMED else "gone from its view, which no agent looks at"
        figures.add("kill", what, TORCH["best"], values, nodes=MEMBERS, note=note)


async def one_kill(members: Fleet, victim: Fleet, watch: str, times: Times, patience: float = PATIENCE) -> None:
    """Kill one; what is not known, or does not stand in time, counts as never."""
    victim.workers[0].tell("join")
    answers = await members.ask("join")
    check_world([*answers, await victim.workers[0].answer()], MEMBERS)
    await members.ask(watch)
    await asyncio.sleep(0.5)
    first = last = formed = None
    begin = time.monotonic()
    await victim.workers[0].kill()
    with suppress(TimeoutError):
        answers = await members.ask("changed", patience)
        first = min(answer["first"] for answer in answers) - begin
        last = max(answer["done"] for answer in answers) - begin
        answers = await members.ask("join", patience)
        check_world(answers, MEMBERS - 1)
        formed = max(answer["done"] for answer in answers) - begin
    for what, value in (("SIGKILL known to the first", first), ("SIGKILL known to all", last), (RE_FORMED, formed)):
        times.setdefault(what, []).append(value)


PARTS = {"formation": formation, "large": large, "late": late, "kill": kill}


if __name__ == "__main__":
    run_parts(PARTS, __doc__)
