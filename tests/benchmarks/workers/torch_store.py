"""The store of torch's c10d rendezvous, alone in its process."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from torch.distributed import TCPStore

from tests.benchmarks.workers.commands import obey, say


async def main() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    say(store.port)
    await obey({})


if __name__ == "__main__":
    asyncio.run(main())
