"""Throw spoiled input at every decoder and at a real TCP port, for as long as wanted.

    python -m tests.hostile.fuzz --minutes 60 --seed 1

Prints one JSON line for each target: how many inputs, and how many of them were refused. Anything but the target's own
errors is printed with the input that did it, and the exit code is 1. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Callable

import msgspec

from tests.hostile.decoders import Target, targets
from tests.hostile.mangling import mangle
from tests.hostile.port import attack

__all__ = ["Tally", "fuzz_decoder", "main"]

BATCH = 500
TAKES_TOO_LONG = 30.0


class Tally(msgspec.Struct):
    """What came of the inputs of one target."""

    inputs: int = 0
    refused: int = 0
    broken: list[str] = []


def fuzz_decoder(target: Target, rng: random.Random, inputs: int, tally: Tally) -> None:
    """Give a target some spoiled inputs."""
    for _ in range(inputs):
        data = mangle(rng, target.corpus)
        tally.inputs += 1
        begin = time.perf_counter()
        try:
            target.read(data)
        except target.allowed:
            tally.refused += 1
        except Exception as error:
            tally.broken.append(f"{target.name}: {error!r} for {data!r:.400}")
        if time.perf_counter() - begin > TAKES_TOO_LONG:
            tally.broken.append(f"{target.name}: took {time.perf_counter() - begin:.1f} s for {data!r:.400}")


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of everything (default 0)")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # Servers and logs complain of what is done to them here.
    ends = time.monotonic() + 60 * options.minutes
    with targets() as found:
        tallies = {target.name: Tally() for target in found}
        port = Tally()
        turn = 0
        while time.monotonic() < ends:
            for target in found:
                rng = random.Random(f"{options.seed} {target.name} {turn}")
                fuzz_decoder(target, rng, BATCH, tallies[target.name])
            port.broken += asyncio.run(attack(random.Random(f"{options.seed} port {turn}"), BATCH // 10))
            port.inputs += BATCH // 10
            turn += 1
            if sum(len(tally.broken) for tally in tallies.values()) + len(port.broken) > 20:
                break
    failed = 0
    for name, tally in {**tallies, "tcp port": port}.items():
        say(json.dumps({"target": name, "inputs": tally.inputs, "refused": tally.refused, "broken": len(tally.broken)}))
        for line in tally.broken[:5]:
            print(line, file=sys.stderr)
        failed += len(tally.broken)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
