"""The server that ``tests.hostile.port`` attacks, in a process of its own, so that its memory is its own, too.

It prints its endpoint, and then, for each line that it reads, what there is at that moment. SIGUSR1 makes it print
where it is, even if it hangs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys

import msgspec

from rendezvous_async.backends.tcp import Limits, serve
from tests.hostile.callbacks import no_callback_fails

__all__ = ["State", "main"]

LIMITS = Limits(
    connections=64, handshake=1.0, keys=1000, bytes=1_000_000, watches=50, sessions=500, in_flight=16, unsent=64 * 1024
)


class State(msgspec.Struct, frozen=True):
    """What there is: open connections, memory in KiB, and what has failed in the server's callbacks."""

    connections: int
    rss_kib: int
    failures: list[str]


async def _serve(secret: str | None) -> None:
    loop = asyncio.get_running_loop()
    with no_callback_fails() as failures:
        async with serve(port=0, limits=LIMITS, secret=secret) as server:
            print(server.endpoint, flush=True)
            while await loop.run_in_executor(None, sys.stdin.readline):
                gc.collect()
                print(msgspec.json.encode(State(server.connections, _rss_kib(), failures)).decode(), flush=True)


def _rss_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def main(secret: str | None = None) -> None:
    """Serve until there is nothing more to read."""
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.WARNING)  # It complains of what is done to it here.
    asyncio.run(_serve(secret))
