"""``python -m rendezvous_async.testing``: ``simulate`` scenarios, ``endure`` a million rounds, play a ``campaign``.

The first two run in virtual time and print a line for every seed that fails; a campaign runs real processes on a
real backend and stops at the first breach. All check every guarantee, print the command that repeats a failure, and
exit 1 then.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from rendezvous_async.testing import endurance
from rendezvous_async.testing.campaign import command as campaign
from rendezvous_async.testing.scenarios import scenario_of, simulate
from rendezvous_async.texts import counted

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
        except Exception as error:  # A broken guarantee, or whatever a node failed with.
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
    return rounds, faults, failures


class Progress(msgspec.Struct, frozen=True):
    """How far many seeds have been played, and the seeds that have failed since the last time, each with a line."""

    played: int = 0
    rounds: int = 0
    faults: int = 0
    failed: int = 0
    failures: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return (
            f"{counted(self.played, 'scenario')}, {counted(self.rounds, 'round')} formed, "
            f"{counted(self.faults, 'fault')} put in, {self.failed} failed"
        )


def play_all(seeds: range, nodes: int | None = None, processes: int = 1) -> Iterator[Progress]:
    """Play many seeds in some processes; yields how far it got, again and again."""
    size = max(1, min(CHUNK, len(seeds) // (4 * processes)))  # So that there is something to tell soon.
    chunks = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    done = Progress()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_silence) as pool:
        for chunk, result in zip(chunks, pool.map(play, chunks, [nodes] * len(chunks)), strict=True):
            rounds, faults, failures = result
            done = Progress(
                done.played + len(chunk),
                done.rounds + rounds,
                done.faults + faults,
                done.failed + len(failures),
                tuple((int(line.partition(":")[0].removeprefix("seed ")), line) for line in failures),
            )
            yield done


def _silence() -> None:
    logging.disable(logging.CRITICAL)  # Nodes complain of every fault that the scenario puts in.


def report(options: argparse.Namespace, command: str, show: Callable[[Progress], None]) -> int:
    """Play what the options ask for; print each failure with the command that repeats it, and show how far it is."""
    seeds = range(options.first, options.first + options.seeds)
    done = Progress()
    show(done)
    for done in play_all(seeds, options.nodes, options.processes):
        for seed, failure in done.failures:
            print(failure)
            nodes = "" if options.nodes is None else f" --nodes {options.nodes}"
            print(f"  repeat it: {command} --first {seed} --seeds 1{nodes}", flush=True)
        show(done)
    print(done)
    return 1 if done.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rendezvous_async.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("simulate", help="play random scenarios")
    command.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    command.add_argument("--seeds", type=int, default=1000, help="how many seeds (default 1000)")
    command.add_argument("--nodes", type=int, default=None, help="nodes in each scenario (default: 2 to 6, by seed)")
    command.add_argument("--processes", type=int, default=1, help="how many to play at once (default 1)")
    endurance.configure(commands.add_parser("endure", help="play sagas until a million rounds have formed"))
    campaign.add_options(commands.add_parser("campaign", help="real processes, a real backend, real faults"))
    options = parser.parse_args(arguments)

    def show(what: object) -> None:
        print(what, file=sys.stderr, flush=True)

    if options.command == "campaign":
        return campaign.run(options)
    if options.command == "endure":
        return endurance.run(options, show)
    return report(options, "python -m rendezvous_async.testing simulate", show)
