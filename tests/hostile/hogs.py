"""Tenants that ask for as much as they can, and how long everybody else waits meanwhile.

Each function of ``HOGS`` is an attack by one peer. What it sends is well formed, and within the limits or refused. Its
secret opens some runs only, or all. A hog has a process of its own, so that what it costs to send is not counted.
``watch_hogs`` sets them on a server, pings that server with another connection all the while, and returns the longest
wait during each attack; ``python -m tests.benchmarks.bench_tcp hostile`` prints it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import msgspec

from rendezvous_async.backends.base import OWN, Condition, Delete, Put, Token, Write
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce, prove
from rendezvous_async.backends.tcp.server.limits import Limits
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.settings import parse_endpoint
from tests.backends.tcp.support import Process, RawClient

__all__ = ["HOGS", "Wait", "watch_hogs"]

ALL: Final = "rendezvous_async/"
RUNS: Final = tuple(f"{ALL}hog-{number}/" for number in range(1, 4))
RUN: Final = RUNS[0]
SECRET: Final = "master"
GRACE: Final = 0.1
"""How long the server is to keep the sessions of a connection that was cut."""
MOST: Final = Limits()
MOST_LISTED: Final = 65_536
ATTACK: Final = 120.0
BYSTANDERS: Final = 2000
"""Keys of another run, which no hog can see."""
_clients = itertools.count()


class Hog(RawClient):
    """A raw client that greets with a secret, and numbers what it asks."""

    def __init__(self, raw: RawClient, endpoint: str, secret: str) -> None:
        super().__init__(raw.reader, raw.writer)
        self.endpoint = endpoint
        self.secret = secret
        self.token = Token("", 0)
        self._ids = itertools.count(1)
        self._commits = 0

    @classmethod
    @asynccontextmanager
    async def enter(cls, endpoint: str, secret: str) -> AsyncIterator[Hog]:
        """Connect and greet."""
        async with RawClient.connect(endpoint) as raw:
            hog = cls(raw, endpoint, secret)
            parsed = Secret.parse(secret)
            name = f"hog-{os.getpid()}-{next(_clients)}"
            hello = wire.frame(wire.Hello(PROTOCOLS, name, 1, 0, new_nonce(), parsed.scope))
            hog.writer.write(hello)
            challenge = await hog.read_body()
            hog.send(wire.Proof(prove(parsed.key, "client", hello[4:], challenge)))
            welcome = await hog.read()
            assert isinstance(welcome, wire.Welcome), welcome
            hog.token = Token(welcome.epoch, welcome.revision)
            yield hog

    def id(self) -> int:
        """Return the id of the next request."""
        return next(self._ids)

    def commit(self, *writes: Write, when: tuple[Condition, ...] = ()) -> wire.Transact:
        """Return the request for a commit."""
        self._commits += 1
        return wire.Transact(self.id(), self._commits, self._commits - 1, writes, when)

    async def sync(self) -> None:
        """Wait until everything that was sent is answered; the answers are passed over."""
        await self.writer.drain()
        last = self.id()
        self.send(wire.Ping(last))
        end = bytes(wire.frame(wire.Done(last))[4:])
        with anyio.fail_after(120):
            while True:
                (length,) = struct.unpack(">I", await self.reader.readexactly(4))
                while length > 64:
                    length -= len(await self.reader.read(min(length, 1 << 18)))
                if await self.reader.readexactly(length) == end:
                    return

    async def ask(self, *messages: wire.AnyMessage) -> None:
        """Send all of it at once, and wait for the answers."""
        self.send(*messages)
        await self.sync()

    async def fill(
        self, count: int, place: Callable[[int], str], value: bytes = b"", session: str | None = None
    ) -> None:
        """Put so many keys, as far as the server takes them."""
        step = min(4096, 4_000_000 // (len(value) + 100))
        for begin in range(0, count, step):
            puts = [Put(place(number), value, session) for number in range(begin, min(begin + step, count))]
            await self.ask(self.commit(*puts))

    async def open_session(self, ttl: float = 60.0) -> str:
        """Open a session; nothing else may be under way."""
        self.send(wire.OpenSession(self.id(), ttl))
        opened = await self.read()
        assert isinstance(opened, wire.SessionOpened), opened
        return opened.session


async def follow_one_subtree_many_times(hog: Hog) -> None:
    await hog.fill(10_000, lambda number: f"{RUN}t/{number}")
    for names in (10_000, 4000):
        await hog.ask(wire.Follow(hog.id(), (f"{RUN}t/",) * names, None))
        await hog.ask(wire.Follow(hog.id(), (f"{RUN}t/",) * names, hog.token))
        await hog.ask(hog.commit(*(Put(f"{RUN}t/{number}", b"x") for number in range(10_000))))


async def follow_many_subtrees(hog: Hog) -> None:
    """Of names that hold each other, or not; then a commit that all of them must be told of."""
    await hog.fill(10_000, lambda number: f"{RUN}t/{number}/x")
    nested = tuple(RUN + "t/" * depth for depth in range(30))
    await hog.ask(wire.Follow(hog.id(), nested, None))
    for begin in range(0, 10_000, 2000):
        names = tuple(f"{RUN}t/{number}/" for number in range(begin, begin + 2000))
        await hog.ask(wire.Follow(hog.id(), names, hog.token))
    await hog.ask(wire.Follow(hog.id(), tuple(f"{RUN}t/{number}/" for number in range(10_000)), None))
    await hog.ask(hog.commit(*(Put(f"{RUN}t/{number}/x", b"x") for number in range(10_000))))


async def watch_much(hog: Hog) -> None:
    """As many watches as there may be: of one subtree, of many; one key changes, all do, all go."""
    await hog.fill(10_000, lambda number: f"{RUN}t/{number % 4000}/{number}")
    own = (wire.Follow(hog.id(), (f"{RUN}t/{number}/",), hog.token) for number in range(3500))
    await hog.ask(*own, *(wire.Follow(hog.id(), (f"{RUN}t/",), hog.token) for _ in range(300)))
    await hog.ask(hog.commit(Put(f"{RUN}t/1/x", b"x")))
    await hog.ask(hog.commit(*(Put(f"{RUN}t/{number % 4000}/{number}", b"x") for number in range(8000))))
    await hog.ask(hog.commit(Delete(f"{RUN}t/")))


async def list_in_a_row(hog: Hog) -> None:
    """Many listings in one write, of many keys, and of more bytes than an answer may have."""
    await hog.fill(60_000, lambda number: f"{RUN}t/{number}")
    await hog.ask(*(wire.List(hog.id(), f"{RUN}t/") for _ in range(20)))
    await hog.fill(1100, lambda number: f"{RUN}big/{number}", bytes(65_000))
    await hog.ask(*(wire.List(hog.id(), f"{RUN}big/") for _ in range(200)))
    await hog.ask(*(wire.Follow(hog.id(), (f"{RUN}big/",), None) for _ in range(200)))


async def list_everything_there_is(hog: Hog) -> None:
    """As many keys as a run may have, in several runs; and the names that hold them all."""
    for run in RUNS:
        await hog.fill(MOST_LISTED, lambda number, run=run: f"{run}t/{number % 100}/{number}")  # type: ignore[misc]
    await hog.ask(*(wire.List(hog.id(), run) for run in RUNS))
    await hog.ask(wire.List(hog.id(), ALL), wire.Follow(hog.id(), (ALL,), None), wire.Follow(hog.id(), RUNS, None))
    await hog.ask(wire.Follow(hog.id(), (RUN,), None), wire.Follow(hog.id(), (ALL, *RUNS), hog.token))
    await hog.ask(hog.commit(Put(f"{RUN}t/0/0", b"")))


async def list_on_many_connections(hog: Hog) -> None:
    """Several peers at once: who has used up its slice must queue with its next request."""
    await hog.fill(10_000, lambda number: f"{RUN}t/{number}")

    async def list_much() -> None:
        async with Hog.enter(hog.endpoint, hog.secret) as other:
            for _ in range(5):
                await other.ask(wire.List(other.id(), RUN))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(list_much)


async def delete_everything(hog: Hog) -> None:
    for run in RUNS[:2]:
        await hog.fill(MOST_LISTED, lambda number, run=run: f"{run}t/{number % 100}/{number}")  # type: ignore[misc]
    await hog.ask(wire.Follow(hog.id(), (RUN,), None))
    await hog.ask(hog.commit(Delete(ALL)))
    await hog.ask(hog.commit(*(Delete(run) for run in RUNS)))
    await hog.ask(hog.commit(*(Delete(RUN) for _ in range(MOST.writes))))
    await hog.ask(hog.commit(Delete(RUN)))
    await hog.ask(hog.commit(Delete(RUNS[1])))


async def commit_much(hog: Hog) -> None:
    """The largest commits: won, lost, and lost with more to return than an answer may have."""
    keys = [f"{RUN}t/{number}" for number in range(MOST.writes)]
    for _ in range(3):
        await hog.ask(hog.commit(*(Put(key, bytes(400)) for key in keys)))
    lost = tuple(Condition(key, None) for key in keys)
    await hog.ask(*(hog.commit(when=lost) for _ in range(3)))
    await hog.fill(1100, lambda number: f"{RUN}t/{number}", bytes(65_000))
    await hog.ask(*(hog.commit(when=lost) for _ in range(20)))
    await hog.ask(hog.commit(*(Delete(key) for key in keys)))


async def send_huge_frames(hog: Hog) -> None:
    """Frames of the most bytes that may be, full of the smallest things; each ends its connection, or is refused."""
    pair = msgspec.msgpack.encode(["put", "a", b""])
    many = 16_000_000 // len(pair)
    commit = b"\x96\x0c\x01\x01\x00" + b"\xdd" + struct.pack(">I", many) + pair * many + b"\x90"
    follow = b"\x94\x0d\x02\xdd" + struct.pack(">I", 8_000_000) + b"\xa1a" * 8_000_000 + b"\xc0"
    tail = b"\x93\x12\x03\xdd" + struct.pack(">I", 16_000_000) + b"\xc0" * 16_000_000
    text = b"\x93\x0a\x04\xdb" + struct.pack(">I", 15_999_999) + "\u6f22".encode() * 5_333_333
    for body in (commit, follow, tail, text):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with Hog.enter(hog.endpoint, hog.secret) as peer:
                peer.writer.write(len(body).to_bytes(4, "big") + body)
                await peer.sync()


async def name_deep(hog: Hog) -> None:
    """Names of very many segments, or of very many characters that are costly to look at."""
    deep = [f"{RUN}{number}" + "/a" * 2000 for number in range(1000)]
    await hog.ask(*(hog.commit(Put(key, b"")) for key in deep))
    await hog.ask(wire.Follow(hog.id(), tuple(f"{key}/" for key in deep[:200]), None))
    level = [f"{RUN}{number}" + "/a" * 50 for number in range(16_000)]
    await hog.ask(hog.commit(*(Put(key, b"") for key in level)))
    wide = [f"{RUN}{number}" + "\u6f22" * 1000 for number in range(5000)]
    await hog.ask(hog.commit(*(Put(key, b"") for key in wide)))


async def leave_sessions(hog: Hog) -> None:
    """Very many sessions that end at once: with a goodbye, with a cut, by their time; and one with very many keys."""
    async with Hog.enter(hog.endpoint, hog.secret) as owner:
        session = await owner.open_session()
        await owner.fill(50_000, lambda number: f"{RUN}t/{number}", session=session)
        await owner.ask(wire.EndSession(owner.id(), session))
    for how in ("goodbye", "cut", "time"):
        async with Hog.enter(hog.endpoint, hog.secret) as owner:
            for begin in range(0, 20_000, 1000):
                numbers = range(begin, begin + 1000)
                puts = [Put(f"{RUN}s/{number}", b"", OWN) for number in numbers]
                await owner.ask(*(wire.OpenSession(owner.id(), 1.0 if how == "time" else 60.0, (put,)) for put in puts))
            if how == "goodbye":
                owner.send(wire.Goodbye())
                await owner.read_end()
            if how == "time":
                await anyio.sleep(1.5)
        await anyio.sleep(2 * GRACE)


async def bury(hog: Hog) -> None:
    """As many graves as are remembered, each told to thousands of watches."""
    await hog.fill(4000, lambda number: f"{RUN}t/{number}/x")
    await hog.ask(*(wire.Follow(hog.id(), (f"{RUN}t/{number}/", f"{RUN}x/"), hog.token) for number in range(4000)))
    await hog.ask(hog.commit(*(Delete(f"{RUN}t/{number}/x") for number in range(4000))))
    for _ in range(5):
        await hog.ask(hog.commit(Put(f"{RUN}x/x", b"")))


async def flood(hog: Hog) -> None:
    """Many small requests in one write, of kinds that cost more than they look."""
    session = await hog.open_session()
    await hog.ask(*(wire.Ping(hog.id()) for _ in range(20_000)))
    await hog.ask(*(wire.Renew(hog.id(), session) for _ in range(20_000)))
    await hog.ask(*(wire.Resume(hog.id(), "none") for _ in range(20_000)))
    await hog.ask(*(hog.commit(Put(f"{RUN}t/{number}", b"x")) for number in range(10_000)))
    await hog.ask(*(hog.commit(Delete(f"{RUN}t/")) for _ in range(5000)))


async def flood_the_door(hog: Hog) -> None:
    """Many connections that greet, or talk nonsense, and go."""
    host, port = parse_endpoint(hog.endpoint).hosts[0]
    hello = wire.frame(wire.Hello(PROTOCOLS, "door", 1, 0, new_nonce()))
    for said in (b"", hello, hello + wire.frame(wire.Proof(b"x" * 32)), b"\0\0\x0f\xff" + b"x" * 4095):
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            writers.append(writer)
        for writer in writers:
            writer.transport.abort()


async def read_nothing(hog: Hog) -> None:
    """Large values, pushed to watches of peers that do not read."""
    await hog.fill(64, lambda number: f"{RUN}t/{number}", bytes(100_000))
    async with Hog.enter(hog.endpoint, hog.secret) as deaf:
        deaf.send(*(wire.Follow(deaf.id(), (f"{RUN}t/",), None) for _ in range(500)))
        for _ in range(10):
            await hog.fill(64, lambda number: f"{RUN}t/{number}", bytes(100_000))


HOGS: Final[dict[str, Callable[[Hog], Awaitable[None]]]] = {
    hog.__name__: hog
    for hog in (
        follow_one_subtree_many_times,
        follow_many_subtrees,
        watch_much,
        list_in_a_row,
        list_everything_there_is,
        list_on_many_connections,
        delete_everything,
        commit_much,
        send_huge_frames,
        name_deep,
        leave_sessions,
        bury,
        flood,
        flood_the_door,
        read_nothing,
    )
}


async def main(endpoint: str, secret: str, *names: str) -> None:
    """Attack, and say when each attack begins and ends; then clean up, in pieces that anybody can bear."""
    for name in names:
        print(name, flush=True)
        async with Hog.enter(endpoint, secret) as hog:
            await HOGS[name](hog)
        print("over", flush=True)
        async with Hog.enter(endpoint, secret) as hog:
            for run in RUNS:
                await hog.ask(hog.commit(Delete(run)))


class Wait(msgspec.Struct, frozen=True):
    """The longest that another peer has waited for an answer during an attack.

    Attributes:
        attack: Which one.
        seconds: From a ping to its answer.
        worked: For how long of that the server has worked; for the rest it waited for the machine.
        pings: How many were sent.
    """

    attack: str
    seconds: float
    worked: float
    pings: int


async def watch_hogs(endpoint: str, pid: int, secret: str, *names: str) -> AsyncIterator[Wait]:
    """Have the server with this process id attacked, and tell how long another peer has waited."""
    names = names or tuple(HOGS)
    code = "import asyncio, sys; from tests.hostile.hogs import main; asyncio.run(main(*sys.argv[1:]))"
    async with Hog.enter(endpoint, SECRET) as peer, Process(code, endpoint, secret, *names) as hogs:
        await peer.ask(peer.commit(*(Put(f"{ALL}other/{number}", b"") for number in range(BYSTANDERS))))
        for name in names:
            assert await hogs.read(ATTACK) == name
            waits: list[tuple[float, float]] = []
            async with anyio.create_task_group() as group:
                group.start_soon(_ping, peer, pid, waits)
                assert await hogs.read(ATTACK) == "over", f"{name} broke off"
                group.cancel_scope.cancel()
            seconds, worked = zip(*waits, strict=True)
            yield Wait(name, max(seconds), max(worked), len(waits))


async def _ping(peer: Hog, pid: int, waits: list[tuple[float, float]]) -> None:
    """Ping again and again, and note for each how long it took and how long the server has worked meanwhile."""
    while True:
        with anyio.CancelScope(shield=True):  # The next attack begins with nothing under way.
            cpu, begin = _cpu(pid), time.monotonic()
            peer.send(wire.Ping(peer.id()))
            with anyio.fail_after(ATTACK):
                length = int.from_bytes(await peer.reader.readexactly(4), "big")
                await peer.reader.readexactly(length)
            seconds = time.monotonic() - begin
            waits.append((seconds, min(seconds, _cpu(pid) - cpu)))
        await anyio.sleep(0.002)


def _cpu(pid: int) -> float:
    """Return how many seconds a process has worked, on all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9
