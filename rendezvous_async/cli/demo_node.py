"""A node in its own process, for ``rdzv demo`` and ``rdzv bench``. It joins, and joins again when the world changes.

It reads its endpoint and options as one line of JSON from stdin, since they may include a secret that does not belong
on a command line. It writes each event as a line of JSON to stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import anyio

from rendezvous_async.core.rules import Change
from rendezvous_async.errors import RendezvousClosedError
from rendezvous_async.node.connect import connect
from rendezvous_async.settings import Timeouts

TIMEOUTS = Timeouts(join=60, last_call=0.5, regroup=0.2, close=5)


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


async def main(endpoint: str, options: dict[str, Any]) -> None:
    # Nothing else is sent, so a readable stdin means end of file: the parent process is gone.
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
    async with connect(endpoint, timeouts=TIMEOUTS, **options) as rendezvous:
        tell("up")
        try:
            while True:
                world = await rendezvous.join()
                hands = await world.store.add("hands", 1)
                tell("joined", round=world.round, rank=world.rank, size=world.size, hands=hands)
                change = await world.changed()
                tell("changed", change=change.value, round=world.round)
                if change is Change.CLOSED:
                    await rendezvous.join()  # Raises, and says who closed it and why.
        except RendezvousClosedError as closed:
            tell("closed", by=closed.by, reason=closed.reason)


if __name__ == "__main__":
    anyio.run(main, *json.loads(sys.stdin.readline()))
