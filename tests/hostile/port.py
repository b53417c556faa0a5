"""Attack a real TCP server: spoiled frames before and after the greeting, in odd pieces; others must be served.

The server is a process of its own (``tests.hostile.victim``) that lives through all attacks. What must hold after each:
nothing has raised in the server's callbacks, a good client commits and reads, the server has let go of every
connection, and it has not grown since the first attack by more than ``GROWTH_KIB``.
"""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import suppress
from typing import Self

import anyio
import msgspec

from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import new_nonce
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.errors import RendezvousError
from tests.backends.tcp.support import Process, RawClient, connected
from tests.hostile.callbacks import no_callback_fails
from tests.hostile.decoders import GREETINGS, REQUESTS
from tests.hostile.mangling import mangle
from tests.hostile.victim import State

__all__ = ["Port", "no_callback_fails"]

SILENCE = 0.02
"""Seconds to listen for what a server has to say to nonsense; it need not say anything."""
NAMES = 256
GROWTH_KIB = 4096
"""What a server may grow by after the first attack: what its limits let it keep (1 MB of values, 1,000 keys, 500
sessions, 4,096 deleted keys), and some room."""


class Port:
    """A server's port, and what is done to it.

    Args:
        secret: What the server asks for; bad peers do not know it.

    Attributes:
        attacks: How many there have been.
        peers: How many bad connections there have been.
        looks: What the server had after each attack.
    """

    def __init__(self, secret: str | None = None) -> None:
        self.secret = secret
        self.attacks = 0
        self.peers = 0
        self.looks: list[State] = []
        self._endpoint = ""
        arguments = "" if secret is None else repr(secret)
        self._server = Process(f"from tests.hostile.victim import main; main({arguments})")

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._endpoint = await self._server.read()
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._server.kill()

    @property
    def grown_kib(self) -> int:
        """How much larger the server is than after the first attack."""
        return self.looks[-1].rss_kib - self.looks[0].rss_kib if self.looks else 0

    async def attack(self, rng: random.Random, connections: int) -> list[str]:
        """Open this many bad connections, one after another; return what broke."""
        self.attacks += 1
        broken: list[str] = []
        for _ in range(connections):
            try:
                self.peers += 1
                await self._bad_peer(rng)
            except ConnectionError as error:
                return [f"the server is gone: {error!r}"]
        broken += await _still_serves(self._endpoint, self.secret)
        try:
            state = await self._look()
        except TimeoutError:
            self._server.signal(signal.SIGUSR1)
            return [*broken, "the server does not answer any more; it has printed where it is"]
        for _ in range(500):  # some seconds: the server may still be hearing of the last ends
            if not state.connections:
                break
            await anyio.sleep(0.02)
            state = await self._look()
        self.looks.append(state)
        broken += state.failures
        if state.connections:
            broken.append(f"the server holds on to {state.connections} connections that have ended")
        if self.grown_kib > GROWTH_KIB:
            broken.append(f"the server has grown by {self.grown_kib} KiB in {self.attacks} attacks")
        return broken

    async def _bad_peer(self, rng: random.Random) -> None:
        greetings = [wire.frame(message)[4:] for message in GREETINGS]
        requests = [wire.frame(message)[4:] for message in REQUESTS]
        async with RawClient.connect(self._endpoint) as peer:
            with suppress(ConnectionError, asyncio.IncompleteReadError, AssertionError):
                known = self.secret is None and rng.random() < 0.8
                if known:
                    name = f"bad-{self.peers % NAMES}"  # a server remembers names for some minutes, so let there be few
                    peer.send(wire.Hello(PROTOCOLS, name, self.peers, 0, new_nonce()))
                stream = bytearray()
                for _ in range(rng.randrange(1, 12)):
                    if rng.random() < 0.1:
                        stream += rng.randbytes(rng.randrange(1, 40))
                        continue
                    corpus = requests if known else greetings
                    body = mangle(rng, corpus) if rng.random() < 0.8 else rng.choice(corpus)
                    stream += len(body).to_bytes(4, "big") + body
                while stream and not peer.writer.is_closing():  # uvloop raises where the server has cut it
                    piece = rng.randrange(1, len(stream) + 1)
                    peer.writer.write(bytes(stream[:piece]))
                    del stream[:piece]
                    await anyio.lowlevel.checkpoint()
                with anyio.move_on_after(SILENCE):
                    await peer.reader.read(1 << 20)

    async def _look(self) -> State:
        self._server.write("look")
        return msgspec.json.decode(await self._server.read(20), type=State)


async def _still_serves(endpoint: str, secret: str | None) -> list[str]:
    try:
        with anyio.fail_after(10):
            options = {} if secret is None else {"secret": secret}
            async with connected(endpoint, "good", **options) as good:
                commit = await good.commit(Put("key", b"value"))
                entry = await good.get("key")
                if not commit.won or entry is None or entry.value != b"value":
                    return [f"a good client is not served: {commit} {entry}"]
    except (TimeoutError, RendezvousError) as error:
        return [f"a good client is not served: {error!r}"]
    return []
