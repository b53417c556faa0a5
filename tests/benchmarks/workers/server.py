"""Our TCP server, alone in its process; with an argument, durable in that directory."""

from __future__ import annotations

import asyncio
import sys

from rendezvous_async.backends.tcp import serve
from rendezvous_async.backends.tcp.server.process import dedicate_process
from tests.benchmarks.workers.commands import Profiler, obey, say


async def main() -> None:
    dedicate_process()  # as rdzv serve does
    async with serve("127.0.0.1", 0, data_dir=sys.argv[1] if len(sys.argv) > 1 else None) as server:
        say(server.endpoint)
        profiler = Profiler()
        await obey({"profile": profiler.profile, "profiled": profiler.profiled})


if __name__ == "__main__":
    asyncio.run(main())
