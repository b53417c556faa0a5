"""The floor: an asyncio server that sends back what it gets, and on demand one small message to everybody.

It reads as our server reads, and its process has the same settings.
"""

from __future__ import annotations

import asyncio

from rendezvous_async.backends.tcp.reading import SharedBufferProtocol
from rendezvous_async.backends.tcp.server.process import dedicate_process
from tests.benchmarks.workers.commands import obey, say

EVERYBODY = b"!"


class Echo(SharedBufferProtocol):
    peers: dict[Echo, asyncio.Transport]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.peers[self] = transport

    def data_received(self, data: bytes) -> None:
        if data == EVERYBODY:
            for transport in self.peers.values():
                transport.write(bytes(64))
        else:
            self.peers[self].write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.peers.pop(self, None)


async def main() -> None:
    dedicate_process()
    Echo.peers = {}
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=4096)
    say(server.sockets[0].getsockname()[1])
    await obey({})


if __name__ == "__main__":
    asyncio.run(main())
