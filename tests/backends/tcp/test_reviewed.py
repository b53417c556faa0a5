"""What reviewers with fresh eyes found in the server and its clients: each case failed once."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import Limits, serve, wire
from rendezvous_async.backends.tcp.server import unfinished
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.server.turns import Turns
from tests.backends.tcp.support import RawClient, connected, eventually

WAIT = 20


async def test_a_node_whose_opening_is_sent_again_arrives_under_its_new_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server opens a session with the record, and the answer is lost: that record goes with that session."""
    lost = 0
    send = Connection.try_to_send

    def lose_the_first(self: Connection, message: wire.AnyMessage, entries: Any) -> bool:
        nonlocal lost
        if isinstance(message, wire.SessionOpened) and not lost:
            lost += 1
            self.abort()
            return True
        return send(self, message, entries)

    monkeypatch.setattr(Connection, "try_to_send", lose_the_first)
    worlds: list[rdzv.World] = []
    timeouts = rdzv.Timeouts(join=WAIT)
    async with serve(port=0, disconnect_grace=0.1) as server:

        async def join(node: str) -> None:
            async with rdzv.connect(
                server.endpoint, run_id="job", nodes=2, node=node, is_host=False, timeouts=timeouts
            ) as rendezvous:
                worlds.append(await rendezvous.join())
                await worlds[-1].store.barrier("done")

        async with anyio.create_task_group() as group:
            group.start_soon(join, "a")
            await eventually(lambda: lost == 1 and server.table.sessions == 2)
            await eventually(lambda: server.table.sessions == 1)  # The first one has ended.
            group.start_soon(join, "b")
    assert sorted(world.rank for world in worlds) == [0, 1]


async def test_a_run_whose_store_is_full_forms_round_after_round() -> None:
    async with (
        serve(port=0, limits=Limits(listed=20)) as server,
        rdzv.connect(server.endpoint, run_id="job", nodes=1, is_host=False, timeouts=rdzv.Timeouts(join=WAIT)) as node,
    ):
        for round in (1, 2, 3):
            world = await node.join()
            assert world.round == round
            with pytest.raises(rdzv.RendezvousError, match="may have 20 keys"):
                for number in range(30):
                    await world.store.set(f"key-{number}", b"")


async def test_no_push_is_lost_where_a_buffer_is_exactly_full() -> None:
    async with (
        serve(port=0) as server,
        connected(server.endpoint) as reader,
        connected(server.endpoint) as writer,
        reader.watch("a") as a,
        reader.watch("b") as b,
    ):
        await anext(a)
        await anext(b)
        for size in range(65_536 - 200, 65_536):
            await writer.commit(Put("a", b"x" * size), Put("b", b"%d" % size))
            with anyio.fail_after(WAIT):
                await anext(a)
                await anext(b)


async def test_groups_take_turns_however_many_jobs_one_of_them_has() -> None:
    turns, done = Turns(), list[str]()

    def work(name: str) -> Callable[[float], bool]:
        def job(end: float) -> bool:
            while turns.now() < end:  # Each takes a whole slice.
                pass
            done.append(name)
            return False

        return job

    for _ in range(6):
        turns.do_later(work("hog"), "hog")
    turns.do_later(work("other"), "other")
    await eventually(lambda: len(done) == 7)
    assert done.index("other") <= 1


async def test_the_requests_of_one_turn_share_one_slice() -> None:
    turns = Turns()
    assert not turns.is_spent()
    end = turns.end_of_slice()
    while turns.now() < end:
        pass
    assert turns.is_spent()
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    assert not turns.is_spent(), "the next turn has a slice of its own"


async def test_unfinished_requests_of_all_connections_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED", 100_000)
    half = struct.pack(">I", 80_000) + b"x" * 60_000
    async with serve(port=0) as server:
        async with RawClient.connect(server.endpoint) as one, RawClient.connect(server.endpoint) as two:
            await one.greet("one")
            await two.greet("two")
            one.writer.write(half)
            await eventually(lambda: server.unfinished.kept("") >= 60_000)
            two.writer.write(half)
            refused = await two.read()
            assert isinstance(refused, wire.Refused)
            assert refused.code == wire.REFUSED_LIMIT
        await eventually(lambda: server.unfinished.kept("") == 0)
