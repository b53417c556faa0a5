"""A client's process: it reads, writes, swaps and watches keys through the ``Backend`` interface, and notes everything.

``python -m tests.proof.campaign.client '<Options as JSON>'``. No two values are ever equal, so that a
value tells which call wrote it. Keys are used for some seconds only, by all clients at once, so that the history of
each stays short enough to be searched. A line on its standard input ends it: it writes a last key, waits until its
watch has shown that, and goes. When its input ends, it goes at once, so that no client outlives its campaign.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Sequence

import anyio
import msgspec

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend, Condition, Delete, Listing, Put, Token, Write
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from tests.proof.campaign.disks import fail_syncs_on_signal
from tests.proof.campaign.records import (
    Called,
    Done,
    Failed,
    Notebook,
    Returned,
    Saw,
    Up,
    Watching,
)

KEYS_LIVE = 6.0
"""Seconds after which all clients turn to other keys."""
KEYS = 4
WORKERS = 2
PATIENCE = 5.0
PAIR = ("pair/left", "pair/right")
"""Two keys that are only ever written together."""


class Options(msgspec.Struct, frozen=True):
    """What a client is told."""

    endpoint: str
    run_id: str
    name: str
    seed: str
    notebook: str
    pace: float = 1.0


class ClientProcess:
    """Lives one life of a client."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rng = random.Random(options.seed)
        self._notebook = Notebook(options.notebook)
        self._patience = PATIENCE * options.pace
        self._count = 0
        self._stopping = anyio.Event()
        self._seen: Token | None = None
        self._last_seen = anyio.Event()
        self._backend: Backend

    async def run(self) -> None:
        """Work until told to stop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        fail_syncs_on_signal()
        self._notebook.note(Up(anyio.current_time(), self._options.name))
        async with anyio.create_task_group() as listening:
            listening.start_soon(self._obey, listening.cancel_scope)
            self._backend = await self._open()
            async with self._backend:
                await self._work()
            listening.cancel_scope.cancel()

    async def _open(self) -> Backend:
        while True:
            try:
                return await start_backend(self._options.endpoint, self._options.run_id)
            except RendezvousConnectionError:
                await anyio.sleep(0.2)

    async def _obey(self, everything: anyio.CancelScope) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        if await reader.readline():
            self._stopping.set()
            await reader.read()
        everything.cancel()

    async def _work(self) -> None:
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch)
            async with anyio.create_task_group() as working:
                for _ in range(WORKERS):
                    working.start_soon(self._call_again_and_again)
            while not await self._write("last", self._options.name):  # noqa: ASYNC110 - it is a call, not a flag
                await anyio.sleep(0.1)
            await self._last_seen.wait()
            watching.cancel_scope.cancel()
        self._notebook.note(Done(anyio.current_time(), self._options.name, "told to"))

    # Calls

    async def _call_again_and_again(self) -> None:
        while not self._stopping.is_set():
            key = f"keys/{int(anyio.current_time() / KEYS_LIVE)}/{self._rng.randrange(KEYS)}"
            chance = self._rng.random()
            if chance < 0.35:
                await self._read(key)
            elif chance < 0.6:
                await self._write(key)
            elif chance < 0.65:
                await self._delete(key)
            elif chance < 0.85:
                await self._swap(key)
            elif chance < 0.95:
                await self._write(*PAIR)
            else:
                await self._list("pair/")
            with anyio.move_on_after(0.12 * self._rng.random()):
                await self._stopping.wait()

    async def _read(self, key: str) -> tuple[str, Token] | None:
        number = self._call("read", key)
        entry = None
        try:
            with anyio.fail_after(self._patience):
                entry = await self._backend.get(key)
        except (RendezvousError, TimeoutError) as error:
            self._fail(number, error)
            return None
        if entry is None or entry.value is None:
            self._notebook.note(Returned(anyio.current_time(), self._options.name, number))
            return None
        seen = ((key, entry.value.decode()),)
        self._notebook.note(
            Returned(anyio.current_time(), self._options.name, number, entry.token.epoch, True, 0, seen)
        )
        return entry.value.decode(), entry.token

    async def _list(self, name: str) -> None:
        number = self._call("list", name)
        try:
            with anyio.fail_after(self._patience):
                found = await self._backend.list(name)
        except (RendezvousError, TimeoutError) as error:
            self._fail(number, error)
            return
        values = tuple((entry.key, (entry.value or b"").decode()) for entry in found.entries)
        self._notebook.note(
            Returned(anyio.current_time(), self._options.name, number, found.token.epoch, True, found.revision, values)
        )

    async def _write(self, *keys: str) -> bool:
        value = self._value()
        puts = [Put(key, value.encode()) for key in keys]
        return await self._commit(self._call("write", *keys, value=value), puts, ())

    async def _delete(self, key: str) -> None:
        await self._commit(self._call("write", key), [Delete(key)], ())

    async def _swap(self, key: str) -> None:
        found = await self._read(key)
        if found is not None:
            value, expected = self._value(), found[0]
            number = self._call("swap", key, value=value, expected=expected)
            await self._commit(number, [Put(key, value.encode())], [Condition(key, found[1])])

    async def _commit(self, number: int, writes: Sequence[Write], when: Sequence[Condition]) -> bool:
        # Now and then a caller gives up, and never learns what became of its call.
        patience = 0.01 if self._rng.random() < 0.03 else self._patience
        try:
            with anyio.fail_after(patience):
                done = await self._backend.commit(*writes, when=when)
        except (RendezvousError, TimeoutError) as error:
            self._fail(number, error)
            return False
        self._notebook.note(
            Returned(anyio.current_time(), self._options.name, number, done.token.epoch, done.won, done.revision)
        )
        return done.won

    def _call(self, kind: str, *keys: str, value: str | None = None, expected: str | None = None) -> int:
        self._count += 1
        self._notebook.note(
            Called(anyio.current_time(), self._options.name, self._count, kind, keys, value, expected)  # type: ignore[arg-type]
        )
        return self._count

    def _fail(self, number: int, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"[:200]
        self._notebook.note(Failed(anyio.current_time(), self._options.name, number, why))

    def _value(self) -> str:
        return f"{self._options.name}.{self._count + 1}"

    # Watches

    async def _watch(self) -> None:
        """Watch everything; now and then stop, and start over or resume."""
        number = 0
        while True:
            number += 1
            after = self._seen if self._rng.random() < 0.7 else None
            revision = None if after is None else after.revision
            self._notebook.note(Watching(anyio.current_time(), self._options.name, number, revision))
            with anyio.move_on_after(2 + 20 * self._rng.random()):
                async with self._backend.watch("", after=after) as watch:
                    while True:
                        try:
                            self._saw(number, await anext(watch))
                        except RendezvousConnectionError:  # a server says why it will not serve; the watch goes on
                            await anyio.sleep(0.05)

    def _saw(self, watch: int, listing: Listing) -> None:
        self._seen = listing.token
        entries = tuple(
            (entry.key, entry.token.revision, None if entry.value is None else entry.value.decode())
            for entry in listing.entries
        )
        now, who = anyio.current_time(), self._options.name
        token = listing.token
        self._notebook.note(Saw(now, who, watch, token.epoch, token.revision, listing.complete, entries))
        if any(key == self._options.name for key, _, _ in entries):
            self._last_seen.set()


async def main() -> None:
    """Live as the command line says."""
    await ClientProcess(msgspec.json.decode(sys.argv[1], type=Options)).run()


if __name__ == "__main__":
    asyncio.run(main())
