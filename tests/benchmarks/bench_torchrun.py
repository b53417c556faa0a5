"""How long torchrun's users wait, with this library and with stock c10d, in the same run.

    python -m tests.benchmarks.bench_torchrun [--repeat 3] [--case start] [--contender async-tcp]

JSON lines, medians in seconds, of two real agents on this machine with one gloo worker each, last call 1 s:

* start: from the second agent's start to the first all_reduce of the two-node world (--nnodes=2)
* node killed: from SIGKILL of the agent that does not host the server, and of its worker, to the next step of the
  re-formed world (--nnodes=1:2)
* agent killed: the same when only the agent is killed, and its worker lives on as an orphan
* host stopped: the same when the agent that hosts the server is stopped with SIGTERM
* end: from the moment the workers end well until both agents have exited with code 0

A trial whose survivor ended, or that was not done within LIMIT seconds, counts as null in ``all_s`` and is told in
``failed``; the median is of the others. ``c10d, own stores`` is stock torch with its sharing of stores between agents
and workers switched off, which helps it with some of these. A whole run takes up to half an hour, most of it stock's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio

from rendezvous_async.sync import get_free_port
from tests.torchrun.job import Agent, Job, start_job

LIMIT = 60.0
SETUPS = 3
OPTIONS = "last_call_timeout=1,join_timeout=120"
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    "async-tcp": ("async-tcp", {}),
    "c10d": ("c10d", {}),
    "c10d, own stores": ("c10d", OWN_STORES),
}


class NoWorldError(Exception):
    """The two agents did not train together at all, so there is nothing to measure."""


async def start(job: Job) -> float | str:
    """The first waits for the second."""
    await job.start("first")
    await anyio.sleep(8)  # by now it waits at the barrier
    second = await job.start("second")
    try:
        return (await job.trains(2, patience=LIMIT)).at - second.started
    except AssertionError:
        return f"not within {LIMIT:g} s"


async def train_together(job: Job) -> tuple[Agent, Agent, str]:
    """Start both at once; returns the agent that hosts the server, the other one, and their round."""
    agents = [await job.start(name) for name in ("first", "second")]
    try:
        before = (await job.trains(2, patience=LIMIT)).round
    except AssertionError:
        raise NoWorldError from None
    host = next(agent for agent in agents if _listens(agent.process.pid, int(job.endpoint.rpartition(":")[2])))
    return host, next(agent for agent in agents if agent is not host), before


async def lose(job: Job, act: Callable[[Job, Agent], None], *, host: bool) -> float | str:
    """Both train, then one is lost."""
    hosting, other, before = await train_together(job)
    lost, stays = (hosting, other) if host else (other, hosting)
    at = asyncio.get_running_loop().time()
    act(job, lost)
    answer: float | str = f"not within {LIMIT:g} s"
    with anyio.move_on_after(LIMIT):
        async with anyio.create_task_group() as group:

            async def see_it_end() -> None:
                nonlocal answer
                code = await stays.process.wait()
                answer = f"the other agent ended with code {code}"
                group.cancel_scope.cancel()

            group.start_soon(see_it_end)
            report = await job.until(lambda step: step.agent == stays.name and step.round != before, 2 * LIMIT)
            answer = report.at - at
            group.cancel_scope.cancel()
    return answer


async def node_killed(job: Job) -> float | str:
    return await lose(job, Job.kill_node, host=False)


async def agent_killed(job: Job) -> float | str:
    return await lose(job, lambda _, agent: agent.send(signal.SIGKILL), host=False)


async def host_stopped(job: Job) -> float | str:
    return await lose(job, lambda _, agent: agent.send(signal.SIGTERM), host=True)


async def end(job: Job) -> float | str:
    """The workers end well, and so do the agents."""
    hosting, other, _ = await train_together(job)
    job.stop()
    at = asyncio.get_running_loop().time()
    with anyio.move_on_after(LIMIT):
        codes = [await agent.process.wait() for agent in (hosting, other)]
        if any(codes):
            return f"the agents ended with codes {codes}"
        return asyncio.get_running_loop().time() - at
    return f"not within {LIMIT:g} s"


CASES: dict[str, tuple[str, Callable[[Job], Awaitable[float | str]]]] = {
    "start": ("2", start),
    "node killed": ("1:2", node_killed),
    "agent killed": ("1:2", agent_killed),
    "host stopped": ("1:2", host_stopped),
    "end": ("2", end),
}


async def measure(case: str, contender: str) -> float | str:
    """Run a case once; a text says why there is no time."""
    nodes, run = CASES[case]
    backend, environment = CONTENDERS[contender]
    for _ in range(SETUPS):
        with tempfile.TemporaryDirectory() as folder:
            async with start_job(Path(folder), backend, f"localhost:{get_free_port()}", nodes) as job:
                job.options = OPTIONS
                job.environment = environment
                with suppress(NoWorldError):
                    return await run(job)
    return f"no world of two in {SETUPS} attempts"


def _listens(pid: int, port: int) -> bool:
    """Tell whether a process listens on a port."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    with suppress(OSError):
        return any(str(file.readlink()) in sockets for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--contender", choices=CONTENDERS, action="append")
    arguments = parser.parse_args()
    contenders = arguments.contender or list(CONTENDERS)
    for case in arguments.case or CASES:
        results: dict[str, list[float | str]] = {contender: [] for contender in contenders}
        for number in range(arguments.repeat):
            for contender in contenders:  # In turn, so that a busy moment of the machine meets them all.
                result = await measure(case, contender)
                results[contender].append(result)
                print(f"{case}, {contender}, {number + 1} of {arguments.repeat}: {result}", file=sys.stderr)
        for contender in contenders:
            print(json.dumps(summary(case, contender, results[contender])), flush=True)


def summary(case: str, contender: str, results: list[float | str]) -> dict[str, object]:
    """Return the figures of one case with one contender."""
    times = [result for result in results if not isinstance(result, str)]
    return {
        "case": case,
        "with": contender,
        "median_s": round(statistics.median(times), 2) if times else None,
        "all_s": [None if isinstance(result, str) else round(result, 2) for result in results],
        "failed": dict(Counter(result for result in results if isinstance(result, str))),
    }


if __name__ == "__main__":
    asyncio.run(main())
