"""Explore everything, and print how many states there are: ``python -m rendezvous_async.testing.model [quick]``."""

from __future__ import annotations

import sys

from rendezvous_async.testing.model import QUICK, THOROUGH, explore


def main() -> int:
    """Explore each configuration; the exit code tells whether every check holds."""
    results = []
    for config in QUICK if sys.argv[1:] == ["quick"] else THOROUGH:
        results.append(explore(config))
        print(results[-1], flush=True)
    states, seconds = sum(result.states for result in results), sum(result.seconds for result in results)
    broken = sum(result.broken is not None for result in results)
    print(f"{len(results)} configurations, {states:,} states, {seconds:.0f} s, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
