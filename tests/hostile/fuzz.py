"""Throw spoiled input at every decoder and at a real TCP port, for as long as wanted.

    python -m tests.hostile.fuzz --minutes 60 --seed 1

Prints one JSON line for each target: how many inputs, and how many of them were refused. Anything but the target's own
errors is printed with the input that did it, and the exit code is 1. The same seed gives the same inputs. Two servers,
one with a secret and one without, live through all of it, are attacked in turn, and may not grow
(``tests.hostile.port``).
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import random
import sys
import time
from collections.abc import Callable

import msgspec

from tests.hostile.decoders import Target, targets
from tests.hostile.mangling import mangle
from tests.hostile.port import Port

__all__ = ["Tally", "fuzz_decoder", "main"]

BATCH = 500
TAKES_TOO_LONG = 30.0
HANGS = 120.0
"""Seconds after its time for which it may go on; then it prints where it is, and ends."""
MOST_BROKEN = 20
"""It stops after this many."""


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
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Decoders and clients complain of what is done to them here.
    faulthandler.dump_traceback_later(60 * options.minutes + HANGS, exit=True)
    try:
        tallies, grown = asyncio.run(_fuzz(options.minutes, options.seed))
    finally:
        faulthandler.cancel_dump_traceback_later()
        logging.disable(before)
    failed = 0
    for name, tally in tallies.items():
        line = {"target": name, "inputs": tally.inputs, "refused": tally.refused, "broken": len(tally.broken)}
        say(json.dumps(line | ({"grown_kib": grown[name]} if name in grown else {})))
        for what in tally.broken[:5]:
            print(what, file=sys.stderr)
        failed += len(tally.broken)
    return 1 if failed else 0


async def _fuzz(minutes: float, seed: int) -> tuple[dict[str, Tally], dict[str, int]]:
    """Return what came of each target, and by how many KiB each server has grown."""
    ends = time.monotonic() + 60 * minutes
    async with Port() as open_port, Port("a secret") as closed_port:
        ports = {"tcp port": open_port, "tcp port with a secret": closed_port}
        with targets() as found:
            tallies = {name: Tally(broken=[]) for name in [*(target.name for target in found), *ports]}
            turn = 0
            while time.monotonic() < ends and sum(len(tally.broken) for tally in tallies.values()) <= MOST_BROKEN:
                for target in found:
                    rng = random.Random(f"{seed} {target.name} {turn}")
                    fuzz_decoder(target, rng, BATCH, tallies[target.name])
                name, port = list(ports.items())[turn % len(ports)]
                tallies[name].broken += await port.attack(random.Random(f"{seed} port {turn}"), BATCH // 10)
                tallies[name].inputs += BATCH // 10
                turn += 1
        return tallies, {name: port.grown_kib for name, port in ports.items()}


if __name__ == "__main__":
    sys.exit(main())
