"""How long torchrun's users wait, with this library and with stock c10d, in the same run.

    python -m tests.benchmarks.bench_torchrun [--repeat 3] [--case start] [--contender async-tcp]

JSON lines, medians in seconds, of two real agents on this machine with one gloo worker each, last call 1 s:

* start: from the second agent's start to the first all_reduce of the two-node world (--nnodes=2)
* node killed: from SIGKILL of the second agent and its worker to the next step of the re-formed world (--nnodes=1:2)
* agent killed: the same when only the agent is killed, and its worker lives on as an orphan
* host stopped: the same when the agent that hosts the store is stopped with SIGTERM

A case that did not end within LIMIT seconds counts as null. ``c10d, own stores`` is stock torch with its sharing of
stores between agents and workers switched off, which helps it with some of these.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from rendezvous_async.sync import get_free_port
from tests.torchrun.job import Agent, Job, start_job

LIMIT = 90.0
OPTIONS = "last_call_timeout=1,join_timeout=120"
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    "async-tcp": ("async-tcp", {}),
    "c10d": ("c10d", {}),
    "c10d, own stores": ("c10d", OWN_STORES),
}


async def start(job: Job) -> float:
    """The first waits for the second."""
    await job.start("first")
    await anyio.sleep(6)  # by now it waits at the barrier
    second = await job.start("second")
    return (await job.trains(2, patience=LIMIT)).at - second.started


async def lose(job: Job, act: Callable[[Job, Agent], None], victim: str) -> float:
    """Both train, then one is lost."""
    agents = {name: await job.start(name) for name in ("first", "second")}
    before = (await job.trains(2, patience=LIMIT)).round
    stays = "first" if victim == "second" else "second"
    at = asyncio.get_running_loop().time()
    act(job, agents[victim])
    report = await job.until(lambda step: step.agent == stays and step.size == 1 and step.round != before, LIMIT)
    return report.at - at


async def node_killed(job: Job) -> float:
    return await lose(job, Job.kill_node, "second")


async def agent_killed(job: Job) -> float:
    return await lose(job, lambda _, agent: agent.send(signal.SIGKILL), "second")


async def host_stopped(job: Job) -> float:
    """Whoever listens first hosts; the first is given a head start."""
    first = await job.start("first")
    await anyio.sleep(4)
    second = await job.start("second")
    before = (await job.trains(2, patience=LIMIT)).round
    at = asyncio.get_running_loop().time()
    first.send(signal.SIGTERM)
    report = await job.until(lambda step: step.agent == second.name and step.size == 1 and step.round != before, LIMIT)
    return report.at - at


CASES: dict[str, tuple[str, Callable[[Job], Awaitable[float]]]] = {
    "start": ("2", start),
    "node killed": ("1:2", node_killed),
    "agent killed": ("1:2", agent_killed),
    "host stopped": ("1:2", host_stopped),
}


async def measure(case: str, contender: str) -> float | None:
    """Run a case once; None if it did not end in time."""
    nodes, run = CASES[case]
    backend, environment = CONTENDERS[contender]
    with tempfile.TemporaryDirectory() as folder:
        async with start_job(Path(folder), backend, f"localhost:{get_free_port()}", nodes) as job:
            job.options = OPTIONS
            job.environment = environment
            try:
                return await run(job)
            except AssertionError:
                return None


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--contender", choices=CONTENDERS, action="append")
    arguments = parser.parse_args()
    for case in arguments.case or CASES:
        for contender in arguments.contender or CONTENDERS:
            times = [await measure(case, contender) for _ in range(arguments.repeat)]
            done = [time for time in times if time is not None]
            line = {
                "case": case,
                "with": contender,
                "median_s": round(statistics.median(done), 2) if done else None,
                "all_s": [None if time is None else round(time, 2) for time in times],
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
