"""The command: plant mutants, and print the share that is killed for each module, and those that survive."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.proof import mutants
from tests.proof.mutants.equivalent import key_of, reasons
from tests.proof.mutants.generate import Mutant, mutants_of
from tests.proof.mutants.running import Reach, reach_of, verdict_of, warm_up
from tests.proof.mutations import ROOT, copy_to

PACKAGE = ROOT / "rendezvous_async"
MODULES = (
    "admin.py", "aio/", "backends/names.py", "backends/values.py", "backends/table/", "backends/tcp/", "core/", "node/",
    "settings.py",
)  # fmt: skip
GOAL = 0.95


class Worker:
    """A process with a copy of the package to plant mutants in."""

    reach: Reach
    place: Path

    @classmethod
    def start(cls, reach: Reach, directory: str) -> None:
        warm_up()
        cls.reach = reach
        cls.place = Path(tempfile.mkdtemp(dir=directory))
        copy_to(cls.place)

    @classmethod
    def judge(cls, mutant: Mutant) -> tuple[Mutant, str]:
        return mutant, verdict_of(mutant, cls.reach, cls.place)


def all_mutants(modules: tuple[str, ...]) -> Iterator[Mutant]:
    """Yield every mutant of the modules, in the order of the files and lines."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(modules):
            yield from mutants_of(file, path.read_text())


def report(verdicts: dict[str, Counter[str]]) -> float:
    """Print a line for each module; return the share of all that is killed."""
    width = max(map(len, verdicts), default=0)
    everything: Counter[str] = Counter()
    for file, counts in [*sorted(verdicts.items()), ("all", everything)]:
        if file != "all":
            everything.update(counts)
        killed, alive = counts["killed"] + counts["late"], counts["survived"] + counts["unreached"]
        share = killed / (killed + alive) if killed + alive else 1.0
        rest = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print(f"{file:{width}}  {share:6.1%}  {rest}")
    return share


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutants", description=mutants.__doc__)
    parser.add_argument("--module", action="append", help="a file of the package, or the beginning of its path")
    parser.add_argument("--sample", type=int, help="only this many, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument(
        "--tests", action="append", help="only the tests of this file or folder; all fast ones by default"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    chosen = list(all_mutants(tuple(options.module or MODULES)))
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    equivalent = reasons()
    verdicts: dict[str, Counter[str]] = {}
    for mutant in chosen:
        if key_of(mutant) in equivalent:
            verdicts.setdefault(mutant.file, Counter())["equivalent"] += 1
    chosen = [mutant for mutant in chosen if key_of(mutant) not in equivalent]
    with tempfile.TemporaryDirectory(prefix="rendezvous-mutants-") as directory:
        first = Path(directory, "first")
        copy_to(first)
        print(f"{len(chosen)} mutants; looking which tests reach which lines", flush=True)
        reach = reach_of(first, options.tests or [])
        for mutant in chosen[:1]:
            sound = mutant._replace(source=(PACKAGE / mutant.file).read_text())
            if verdict_of(sound, reach, first) != "survived":
                raise RuntimeError("the tests fail without any mutant")
        context = multiprocessing.get_context("fork")
        with context.Pool(options.workers, Worker.start, (reach, directory)) as pool:
            for mutant, verdict in pool.imap_unordered(Worker.judge, chosen):
                verdicts.setdefault(mutant.file, Counter())[verdict] += 1
                if verdict in ("survived", "unreached"):
                    print(f"{verdict}: {mutant}", flush=True)
    print()
    return 0 if report(verdicts) >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
