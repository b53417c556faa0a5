"""Attack a real TCP server: spoiled frames before and after the greeting, in odd pieces; others must be served.

What must hold afterwards: nothing has raised in the server's callbacks, a good client commits and reads, and the server
has let go of every connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio

from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import Limits, serve, wire
from rendezvous_async.backends.tcp.auth import new_nonce
from rendezvous_async.backends.tcp.server import TcpServer
from rendezvous_async.errors import RendezvousError
from tests.backends.tcp.support import RawClient, connected, eventually
from tests.hostile.decoders import GREETINGS, REQUESTS
from tests.hostile.mangling import mangle

__all__ = ["attack", "no_callback_fails"]

LIMITS = Limits(
    connections=64, handshake=1.0, keys=1000, bytes=1_000_000, watches=50, sessions=500, in_flight=16, unsent=64 * 1024
)
SILENCE = 0.02
"""Seconds to listen for what a server has to say to nonsense; it need not say anything."""


@contextmanager
def no_callback_fails() -> Iterator[list[str]]:
    """Collect what fails in callbacks of the running loop, such as a protocol's ``data_received``."""
    loop = asyncio.get_running_loop()
    failures: list[str] = []

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    before = loop.get_exception_handler()
    loop.set_exception_handler(handle)
    try:
        yield failures
    finally:
        loop.set_exception_handler(before)


async def attack(rng: random.Random, connections: int, secret: str | None = None) -> list[str]:
    """Open so many bad connections, one after another; returns what broke."""
    broken: list[str] = []
    with no_callback_fails() as failures:
        async with serve(port=0, limits=LIMITS, secret=secret) as server:
            for _ in range(connections):
                await _bad_peer(rng, server)
            broken += await _still_serves(server, secret)
        broken += failures
    return broken


async def _bad_peer(rng: random.Random, server: TcpServer) -> None:
    greetings = [wire.frame(message)[4:] for message in GREETINGS]
    requests = [wire.frame(message)[4:] for message in REQUESTS]
    async with RawClient.connect(server.endpoint) as peer:
        with suppress(ConnectionError, asyncio.IncompleteReadError, AssertionError):
            known = server.secret is None and rng.random() < 0.8
            if known:
                peer.send(wire.Hello(wire.PROTOCOL, f"bad-{rng.getrandbits(32)}", 1, 0, new_nonce()))
            stream = bytearray()
            for _ in range(rng.randrange(1, 12)):
                if rng.random() < 0.1:
                    stream += rng.randbytes(rng.randrange(1, 40))
                    continue
                corpus = requests if known else greetings
                body = mangle(rng, corpus) if rng.random() < 0.8 else rng.choice(corpus)
                stream += len(body).to_bytes(4, "big") + body
            while stream:
                piece = rng.randrange(1, len(stream) + 1)
                peer.writer.write(bytes(stream[:piece]))
                del stream[:piece]
                await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(SILENCE):
                await peer.reader.read(1 << 20)


async def _still_serves(server: TcpServer, secret: str | None) -> list[str]:
    try:
        with anyio.fail_after(10):
            options = {} if secret is None else {"secret": secret}
            async with connected(server.endpoint, "good", **options) as good:
                commit = await good.commit(Put("key", b"value"))
                entry = await good.get("key")
                if not commit.won or entry is None or entry.value != b"value":
                    return [f"a good client is not served: {commit} {entry}"]
            await eventually(lambda: server.connections == 0)
    except (TimeoutError, RendezvousError) as error:
        return [f"a good client is not served: {error!r}"]
    return []
