"""How fast the simulator is, on the wire and on the stand-in: idle nodes, random scenarios, and rounds of sagas.

    python -m tests.benchmarks.bench_simulation

Prints JSON lines: medians of several runs, per second of CPU.
"""

from __future__ import annotations

import json
import logging
import time

import anyio

from rendezvous_async.testing import Cluster, run, scenario_of, simulate
from rendezvous_async.testing.cluster import NetworkKind
from tests.benchmarks.figures import summary
from tests.proof.sagas import play_saga, saga_of

RUNS = 5
NODES = 100
SECONDS = 60
SEEDS = 40
SAGAS = 3


async def idle(network: NetworkKind) -> float:
    """Let a formed world of 100 nodes keep itself alive; returns node-seconds per second."""
    async with Cluster(nodes=NODES, min_nodes=NODES, network=network) as cluster:
        await cluster.join_all()
        begin = time.process_time()
        await anyio.sleep(SECONDS)
        return NODES * SECONDS / (time.process_time() - begin)


def scenarios(first: int, network: NetworkKind) -> float:
    """Play random scenarios; returns how many per second."""
    begin = time.process_time()
    for seed in range(first, first + SEEDS):
        simulate(scenario_of(seed, network=network))
    return SEEDS / (time.process_time() - begin)


def rounds(first: int, network: NetworkKind) -> float:
    """Play sagas; returns how many rounds form per second."""
    begin = time.process_time()
    formed = sum(play_saga(saga_of(seed, network)).rounds for seed in range(first, first + SAGAS))
    return formed / (time.process_time() - begin)


def report(what: str, network: NetworkKind, figures: list[float]) -> None:
    print(json.dumps({"what": what, "network": network, "per_second": summary(figures)}), flush=True)


def main() -> None:
    logging.disable(logging.CRITICAL)
    networks: tuple[NetworkKind, ...] = ("wire", "stand-in")
    for network in networks:
        idle_nodes = [run(idle, network, seed=number) for number in range(RUNS)]
        report(f"node-seconds, {NODES} idle nodes", network, idle_nodes)
        report("random scenarios", network, [scenarios(1000 * number, network) for number in range(RUNS)])
        report("rounds of sagas", network, [rounds(1000 * number, network) for number in range(RUNS)])


if __name__ == "__main__":
    main()
