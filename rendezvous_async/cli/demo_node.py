"""A node of ``rdzv demo``, in a process of its own: joins, joins again when the world changes, and tells what it sees.

Each line that it prints is a JSON object; ``demo`` reads them.
"""

from __future__ import annotations

import json
import sys

import anyio

from rendezvous_async.core.rules import Change
from rendezvous_async.errors import RendezvousClosedError
from rendezvous_async.handler import connect
from rendezvous_async.settings import Timeouts

RUN_ID = "demo"
NODES = "3:4"
TIMEOUTS = Timeouts(join=60, last_call=0.5, regroup=0.2, close=5)


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


async def main(endpoint: str, node: str) -> None:
    async with connect(
        endpoint,
        run_id=RUN_ID,
        nodes=NODES,
        node=node,
        timeouts=TIMEOUTS,
        keep_alive_interval=0.5,
        keep_alive_max_attempt=10,
        is_host="false",
    ) as rendezvous:
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
    anyio.run(main, sys.argv[1], sys.argv[2])
