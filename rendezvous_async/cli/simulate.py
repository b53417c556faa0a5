"""Run random scenarios in virtual time and check every guarantee.

Each seed determines a cluster, a network and a schedule of faults: crashes, freezes, partitions, a server that loses
its state. A failing seed is printed with the command that reproduces it, and the exit code is 1.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence

from rendezvous_async.cli.exits import Exit
from rendezvous_async.cli.parsing import Parser, count, number
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.texts import counted

EXAMPLE = """  rdzv simulate --seeds 200
  rdzv simulate --first 4711 --seeds 1 --nodes 5"""
CHUNK = 50

Outcome = tuple[int, int, list[tuple[int, str]]]
"""Rounds formed, faults injected, and the failed seeds with their errors."""


def configure(parser: Parser) -> None:
    parser.add_argument("--first", type=number, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--seeds", type=count, default=100, metavar="N", help="how many seeds (100)")
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes in each scenario (2 to 6, by seed)")
    parser.add_argument("--processes", type=count, default=1, metavar="N", help="processes to run them in (1)")


def run(options: Namespace) -> int:
    terminal = Terminal(quiet=options.quiet)
    repeat = "" if options.nodes is None else f" --nodes {options.nodes}"
    played = rounds = faults = failed = 0
    summary = "0 scenarios"
    with terminal.progress(options.seeds) as advance:
        advance(0, summary)
        for seeds, (more_rounds, more_faults, failures) in _play_all(options):
            played, rounds, faults = played + len(seeds), rounds + more_rounds, faults + more_faults
            failed += len(failures)
            for seed, error in failures:
                terminal.print(f"seed {seed}: {error}")
                terminal.print(f"  reproduce: rdzv simulate --first {seed} --seeds 1{repeat}")
            summary = (
                f"{counted(played, 'scenario')}, {counted(rounds, 'round')} formed, "
                f"{counted(faults, 'fault')} injected, {failed} failed"
            )
            advance(played, summary)
    terminal.print(summary)
    return Exit.FAILED if failed else Exit.OK


def _play_all(options: Namespace) -> Iterator[tuple[Sequence[int], Outcome]]:
    """Run all seeds in a pool of processes; yield the outcome of each chunk."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    seeds = range(options.first, options.first + options.seeds)
    size = max(1, min(CHUNK, len(seeds) // (4 * options.processes)))  # Small enough to show progress early.
    chunks = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), initializer=_silence) as pool:
        yield from zip(chunks, pool.map(play, chunks, [options.nodes] * len(chunks)), strict=True)


def play(seeds: Sequence[int], nodes: int | None = None) -> Outcome:
    """Run a chunk of seeds in a process of the pool."""
    from rendezvous_async.testing.scenarios import scenario_of, simulate

    rounds = faults = 0
    failures = []
    for seed in seeds:
        try:
            report = simulate(scenario_of(seed, nodes))
            rounds += report.rounds
            faults += report.faults
        except Exception as error:  # A broken guarantee, or any error of a node.
            failures.append((seed, f"{type(error).__name__}: {error}"))
    return rounds, faults, failures


def _silence() -> None:
    logging.disable(logging.CRITICAL)  # Nodes log every injected fault.
