"""Run random scenarios in virtual time and check every guarantee.

Each seed determines a cluster, a network and a schedule of faults: crashes, freezes, partitions, a server that loses
its state. A failing seed is printed with the command that reproduces it, and the exit code is 1. The first one is also
reduced to the smallest scenario that still fails, and printed as a test. --html draws one seed as a page.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, count, number, simulated
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.texts import counted

EXAMPLE = """  rdzv simulate --seeds 200
  rdzv simulate --seed 4711 --nodes 5 --html 4711.html"""
CHUNK = 50

Outcome = tuple[int, int, list[tuple[int, str]]]
"""Rounds formed, faults injected, and the failed seeds with their errors."""


def configure(parser: Parser) -> None:
    parser.add_argument("--first", type=number, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--seeds", type=count, metavar="N", help="how many seeds (100)")
    parser.add_argument("--seed", type=number, metavar="SEED", help="only this seed")
    parser.add_argument("--html", type=Path, metavar="FILE", help="draw what happens with --seed as a page")
    parser.add_argument("--nodes", type=simulated, metavar="N", help="nodes in each scenario (2 to 6, by seed)")
    parser.add_argument("--processes", type=count, default=1, metavar="N", help="processes to run them in (1)")


def run(options: Namespace) -> int:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    if options.html is not None and options.seed is None:
        raise ValueError("--html draws one seed: say which with --seed")
    if options.seed is not None and (options.seeds, options.first) != (None, None):
        raise ValueError("--seed runs one seed: leave out --seeds and --first")
    if options.html is not None:
        _check_writable(options.html)
    terminal = Terminal(quiet=options.quiet)
    first, number_of_seeds = (options.first or 0, options.seeds or 100) if options.seed is None else (options.seed, 1)
    seeds = range(first, first + number_of_seeds)
    repeat = "" if options.nodes is None else f" --nodes {options.nodes}"
    played = rounds = faults = 0
    failed: list[int] = []
    summary = "0 scenarios"
    context = get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context, initializer=_silence) as pool:
        with terminal.progress(len(seeds)) as advance:
            advance(0, summary)
            for chunk, (more_rounds, more_faults, failures) in _play_all(pool, seeds, options):
                played, rounds, faults = played + len(chunk), rounds + more_rounds, faults + more_faults
                for seed, error in failures:
                    failed.append(seed)
                    terminal.print(f"seed {seed}: {error}")
                    terminal.print(f"  reproduce: rdzv simulate --seed {seed}{repeat}")
                summary = (
                    f"{counted(played, 'scenario')}, {counted(rounds, 'round')} formed, "
                    f"{counted(faults, 'fault')} injected, {len(failed)} failed"
                )
                advance(played, summary)
        if options.html is not None:
            pool.submit(draw_seed, options.seed, options.nodes, options.html).result()
            terminal.print(f"drawn: {options.html}")
        if failed:
            terminal.say(f"looking for the smallest scenario that fails as seed {failed[0]} does")
            test = pool.submit(shrink_seed, failed[0], options.nodes).result()
            if test:
                terminal.print(f"\nthe smallest scenario found that fails as seed {failed[0]} does, as a test:\n")
                for line in test.splitlines():
                    terminal.print(line)
            else:
                terminal.print(f"seed {failed[0]} did not fail again: what it failed of depends on what ran before it")
    terminal.print(summary)
    return Exit.FAILED if failed else Exit.OK


def _check_writable(path: Path) -> None:
    """Raise Failure unless a file can be written; leave the file system as it was."""
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise Failure(Exit.USAGE, f"--html: cannot write {path}: {error.strerror}") from None


def _play_all(pool: Executor, seeds: range, options: Namespace) -> Iterator[tuple[Sequence[int], Outcome]]:
    """Run all seeds in a pool of processes; yield the outcome of each chunk."""
    size = max(1, min(CHUNK, len(seeds) // (4 * options.processes)))  # Small enough to show progress early.
    chunks = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    yield from zip(chunks, pool.map(play_seeds, chunks, [options.nodes] * len(chunks)), strict=True)


def play_seeds(seeds: Sequence[int], nodes: int | None = None) -> Outcome:
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


def shrink_seed(seed: int, nodes: int | None) -> str:
    """Return the smallest scenario found that fails as this seed does, as a test; empty if it does not fail here."""
    from rendezvous_async.cli.pasting import as_test
    from rendezvous_async.testing import scenario_of, shrink, simulate

    try:
        return as_test(shrink(scenario_of(seed, nodes), simulate), simulate)
    except ValueError:
        return ""


def draw_seed(seed: int, nodes: int | None, path: Path) -> None:
    """Draw what happens with a seed."""
    from rendezvous_async.testing.picture import draw
    from rendezvous_async.testing.scenarios import play, scenario_of

    history, error = play(scenario_of(seed, nodes))
    draw(history, path, error)


def _silence() -> None:
    logging.disable(logging.CRITICAL)  # Nodes log every injected fault.
