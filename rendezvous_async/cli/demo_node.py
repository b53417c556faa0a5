"""A node in a process of its own, for ``rdzv demo`` and ``rdzv bench``: joins, joins again when the world changes.

It is told what to do by a line of JSON on its standard input (what it holds may be secret, so not on its command line),
and tells what it sees by lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import anyio

from rendezvous_async.connecting import connect
from rendezvous_async.core.rules import Change
from rendezvous_async.errors import RendezvousClosedError
from rendezvous_async.settings import Timeouts

TIMEOUTS = Timeouts(join=60, last_call=0.5, regroup=0.2, close=5)


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


async def main(endpoint: str, options: dict[str, Any]) -> None:
    # Nothing more comes: if there is something to read, it is the end, and whoever started this process is gone.
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
