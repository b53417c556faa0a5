"""The floor: some connections to the echo server, each as cheap as asyncio makes it, and read as our client reads.

python -m tests.benchmarks.workers.echo COUNT PORT
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from rendezvous_async.backends.tcp.reading import SharedBufferProtocol
from tests.benchmarks.workers.commands import collect_no_garbage, obey


class Client(SharedBufferProtocol):
    """Waits for 64 bytes."""

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None]
        self.transport: asyncio.Transport
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left <= 0 and not self.waiter.done():
            self.waiter.set_result(None)

    def expect(self) -> None:
        """Begin to wait for the next 64 bytes."""
        self.left = 64
        self.waiter = asyncio.get_running_loop().create_future()

    async def ask(self) -> None:
        """Send 64 bytes and wait for them."""
        self.expect()
        self.transport.write(bytes(64))
        await self.waiter


class Clients:
    """The connections of this worker."""

    def __init__(self, count: int, port: int) -> None:
        self.count = count
        self.port = port
        self.all: list[Client] = []

    async def connect(self) -> Any:
        loop = asyncio.get_running_loop()
        for _ in range(self.count):
            _, client = await loop.create_connection(Client, "127.0.0.1", self.port)
            self.all.append(client)
        return {}

    async def echo(self) -> Any:
        """Have all of them ask at once, each in a task of its own, as a node would."""
        await asyncio.gather(*(client.ask() for client in self.all))
        return {"done": time.monotonic()}

    async def expect(self) -> Any:
        for client in self.all:
            client.expect()
        return {}

    async def hear(self) -> Any:
        """Wait until all of them got what is sent to everybody."""
        for client in self.all:
            await client.waiter
        return {"done": time.monotonic()}

    async def cry(self) -> Any:
        """Have the server send to everybody, and wait for it."""
        self.all[0].transport.write(b"!")
        return await self.hear()

    async def trip(self) -> Any:
        """Return the seconds of one round trip."""
        begin = time.perf_counter()
        for _ in range(200):
            await self.all[0].ask()
        return {"seconds": (time.perf_counter() - begin) / 200}


async def main(count: str, port: str) -> None:
    collect_no_garbage()
    clients = Clients(int(count), int(port))
    await obey({name: getattr(clients, name) for name in ("connect", "echo", "expect", "hear", "cry", "trip")})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
