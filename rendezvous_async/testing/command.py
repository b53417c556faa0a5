"""``python -m rendezvous_async.testing simulate``: play random scenarios and check every guarantee.

Prints a line for every seed that fails, with the command that repeats it, and exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.clock import VirtualTimeError
from rendezvous_async.testing.cluster import NotSettledError
from rendezvous_async.testing.scenarios import scenario_of, simulate

CHUNK = 50


def play(seeds: Sequence[int], nodes: int | None = None) -> tuple[int, int, list[str]]:
    """Play some seeds; returns rounds formed, faults put in, and a line for each failure."""
    rounds = faults = 0
    failures = []
    for seed in seeds:
        try:
            report = simulate(scenario_of(seed, nodes))
            rounds += report.rounds
            faults += report.faults
        except (BrokenGuaranteeError, NotSettledError, VirtualTimeError) as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
    return rounds, faults, failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rendezvous_async.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("simulate", help="play random scenarios")
    command.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    command.add_argument("--seeds", type=int, default=1000, help="how many seeds (default 1000)")
    command.add_argument("--nodes", type=int, default=None, help="nodes in each scenario (default: 2 to 6, by seed)")
    command.add_argument("--processes", type=int, default=1, help="how many to play at once (default 1)")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # Nodes complain of every fault that the scenario puts in.
    seeds = range(options.first, options.first + options.seeds)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    rounds = faults = played = failed = 0
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for chunk, result in zip(chunks, pool.map(play, chunks, [options.nodes] * len(chunks)), strict=True):
            rounds, faults, played = rounds + result[0], faults + result[1], played + len(chunk)
            for failure in result[2]:
                failed += 1
                print(failure)
                again = failure.partition(":")[0].removeprefix("seed ")
                print(f"  repeat it: python -m rendezvous_async.testing simulate --first {again} --seeds 1", flush=True)
            print(f"{played} scenarios, {rounds} rounds, {faults} faults, {failed} failed", file=sys.stderr, flush=True)
    print(f"{played} scenarios, {rounds} rounds formed, {faults} faults put in, {failed} failed")
    return 1 if failed else 0
