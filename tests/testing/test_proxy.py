"""The proxy does what it says, to a plain echo server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest

from rendezvous_async.testing.proxy import Proxy


class Echo(asyncio.Protocol):
    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        Echo.open += 1

    def connection_lost(self, error: Exception | None) -> None:
        Echo.open -= 1

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def eof_received(self) -> None:
        self.transport.write(b"<end>")


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    async with Proxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            with anyio.fail_after(10):
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
                yield proxy, reader, writer
        finally:
            writer.transport.abort()
    with anyio.fail_after(10):
        while Echo.open:
            await anyio.lowlevel.checkpoint()
    server.close()


async def test_it_passes_everything_on_in_order() -> None:
    async with echo_behind_proxy() as (proxy, reader, writer):
        data = bytes(range(256)) * 20_000
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        assert await reader.read() == b"<end>"
        assert proxy.accepted == 1


async def test_it_delays_each_way() -> None:
    async with echo_behind_proxy() as (proxy, reader, writer):
        proxy.delay = 0.1
        begin = anyio.current_time()
        writer.write(b"one")
        await reader.readexactly(3)
        assert 0.2 <= anyio.current_time() - begin < 2
        proxy.delay = 0.05
        writer.write(b"two")
        proxy.delay = 0.0
        writer.write(b"three")  # does not overtake
        assert await reader.readexactly(8) == b"twothree"


async def test_it_cuts() -> None:
    async with echo_behind_proxy() as (proxy, reader, _):
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        while proxy.connections:
            await anyio.lowlevel.checkpoint()


async def test_it_stalls_and_goes_on() -> None:
    async with echo_behind_proxy() as (proxy, reader, writer):
        proxy.stall()
        writer.write(b"held")
        with anyio.move_on_after(0.1) as scope:
            await reader.readexactly(4)
        assert scope.cancelled_caught
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        late_writer.write(b"late")
        with anyio.move_on_after(0.1) as scope:
            await late_reader.readexactly(4)
        assert scope.cancelled_caught
        proxy.resume()
        assert await reader.readexactly(4) == b"held"
        assert await late_reader.readexactly(4) == b"late"
        late_writer.transport.abort()


async def test_it_half_closes() -> None:
    async with echo_behind_proxy() as (proxy, reader, _):
        proxy.half_close("to_server")
        assert await reader.read() == b"<end>"  # the other way was still open
    async with echo_behind_proxy() as (proxy, reader, writer):
        proxy.half_close("to_client")
        assert await reader.read() == b""
        writer.write(b"into the void")


async def test_it_loses_the_next_bytes_and_cuts() -> None:
    async with echo_behind_proxy() as (proxy, reader, writer):
        proxy.lose_next("to_client")
        writer.write(b"lost")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(4)


async def test_it_refuses() -> None:
    async with echo_behind_proxy() as (proxy, reader, writer):
        proxy.refusing = True
        other, other_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await other.read()
        other_writer.transport.abort()
        writer.write(b"fine")  # old connections go on
        assert await reader.readexactly(4) == b"fine"


async def test_it_resets_when_the_server_is_not_there() -> None:
    async with Proxy("127.0.0.1", 1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.transport.abort()
