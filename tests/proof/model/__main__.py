"""``python -m tests.proof.model``: explore everything, and print how many states there are."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.proof.model import QUICK, THOROUGH, explore


def main() -> int:
    """Explore each configuration; the exit code tells whether every check holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.model", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what the tests explore each time")
    parser.add_argument("--processes", type=int, default=1, help="how many to explore at once (default 1)")
    options = parser.parse_args()
    results = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for result in pool.map(explore, QUICK if options.quick else THOROUGH):
            results.append(result)
            print(result, flush=True)
    states, seconds = sum(result.states for result in results), sum(result.seconds for result in results)
    broken = sum(result.broken is not None for result in results)
    print(f"{len(results)} configurations, {states:,} states, {seconds:.0f} s of work, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
