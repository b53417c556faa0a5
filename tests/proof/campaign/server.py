"""The TCP server's process: ``python -m tests.proof.campaign.server '<Options as JSON>'``.

It serves until SIGTERM, until its standard input ends, or until its disk fails: then it exits 1, as ``rdzv serve``
does, and whoever looks after it starts it again.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import anyio
import msgspec

from rendezvous_async.backends.tcp import serve
from tests.proof.campaign.disks import fail_syncs_on_signal
from tests.proof.campaign.records import Notebook, Up

__all__ = ["Options"]


class Options(msgspec.Struct, frozen=True):
    """What a server is told."""

    port: int
    data_dir: str
    notebook: str
    disconnect_grace: float = 1.0
    secret: str | None = None


async def main(options: Options) -> int:
    """Serve; returns the exit code."""
    fail_syncs_on_signal()
    stop = anyio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    code = 0
    async with serve(
        "127.0.0.1",
        options.port,
        data_dir=options.data_dir,
        secret=options.secret,
        disconnect_grace=options.disconnect_grace,
    ) as server:
        Notebook(options.notebook).note(Up(anyio.current_time(), "server"))
        async with anyio.create_task_group() as group:

            async def end_when_the_disk_fails() -> None:
                nonlocal code
                await server.failed.wait()
                print(server.failure, file=sys.stderr, flush=True)
                code = 1
                stop.set()

            async def end_with_the_campaign() -> None:
                await reader.read()
                stop.set()

            group.start_soon(end_when_the_disk_fails)
            group.start_soon(end_with_the_campaign)
            await stop.wait()
            group.cancel_scope.cancel()
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Options))))
