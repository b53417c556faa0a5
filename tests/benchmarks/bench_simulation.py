"""How fast the simulator is: node-seconds of idle, formed nodes per real second, and whole random scenarios.

    python -m tests.benchmarks.bench_simulation

Prints JSON lines; medians of several runs.
"""

from __future__ import annotations

import json
import logging
import time

import anyio

from rendezvous_async.testing import Cluster, run, scenario_of, simulate
from tests.benchmarks.figures import summary

RUNS = 5
NODES = 100
SECONDS = 60
SEEDS = 40


async def idle() -> float:
    """Let a formed world of 100 nodes keep itself alive; returns node-seconds per real second."""
    async with Cluster(nodes=NODES, min_nodes=NODES) as cluster:
        await cluster.join_all()
        begin = time.perf_counter()
        await anyio.sleep(SECONDS)
        return NODES * SECONDS / (time.perf_counter() - begin)


def scenarios(first: int) -> float:
    """Play random scenarios; returns how many per real second."""
    begin = time.perf_counter()
    for seed in range(first, first + SEEDS):
        simulate(scenario_of(seed))
    return SEEDS / (time.perf_counter() - begin)


def report(what: str, figures: list[float]) -> None:
    print(json.dumps({"what": what, "per_second": summary(figures)}), flush=True)


def main() -> None:
    logging.disable(logging.CRITICAL)
    report(f"node-seconds, {NODES} idle nodes", [run(idle, seed=number) for number in range(RUNS)])
    report("random scenarios", [scenarios(1000 * number) for number in range(RUNS)])


if __name__ == "__main__":
    main()
