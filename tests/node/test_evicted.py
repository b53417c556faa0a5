"""A node that is thrown out, or whose id another node takes, is told so at once, on every backend."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import (
    Change,
    EventKind,
    RendezvousConnectionError,
    RendezvousDisplacedError,
    RendezvousFencedError,
    RendezvousTimeoutError,
)
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Granted, Opening
from rendezvous_async.backends.memory import MemoryDriver
from rendezvous_async.backends.table.table import Table
from rendezvous_async.core.diagnosis import Role
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.testing.etcd import etcd_program, start_etcd
from tests.meeting import Line, Meeting, in_virtual_time, together

BACKENDS = ("memory", "tcp", "file", "etcd")
PATIENCE = float(os.environ.get("RENDEZVOUS_TEST_PATIENCE", "60"))
_names = itertools.count()


@asynccontextmanager
async def a_place(backend: str, directory: Path) -> AsyncIterator[str]:
    """Yield an endpoint of a backend of that kind."""
    if backend == "memory":
        yield f"memory://evicted-{next(_names)}"
    elif backend == "tcp":
        async with rdzv.serve("127.0.0.1", 0) as server:
            yield server.endpoint
    elif backend == "file":
        yield f"file://{directory}/run?fsync=false"
    else:
        if etcd_program() is None:
            pytest.skip("there is no etcd here")
        async with start_etcd() as etcd:
            yield etcd.endpoint


@asynccontextmanager
async def nodes_at(endpoint: str, names: str, nodes: str) -> AsyncIterator[list[Rendezvous]]:
    """Yield nodes of one run; a long interval between keep-alives, so that none of them brings the news."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                rdzv.connect(
                    endpoint, run_id="job", nodes=nodes, node=name, address=f"host-{place}", keep_alive_interval=20
                )
            )
            for place, name in enumerate(names)
        ]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_an_evicted_node_is_told_so_before_anything_else(backend: str, tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with a_place(backend, tmp_path) as endpoint, nodes_at(endpoint, "abc", "3") as (a, b, c):
            for evicted in (b, c, a):  # At least once somebody else than the coordinator, and once itself.
                told: list[EventKind] = []
                worlds = await together(a, b, c)
                evicted.listen(lambda event, told=told: told.append(event.kind))  # type: ignore[misc]
                other = a if evicted is not a else b
                assert await other.evict(evicted.node)
                changes: dict[str, Change] = {}
                for world in worlds:
                    changes[world.node] = await world.changed()
                expected = dict.fromkeys("abc", Change.MEMBER_LOST) | {evicted.node: Change.EVICTED}
                assert changes == expected
                assert EventKind.MEMBER_LOST not in told
                assert EventKind.EVICTED in told


class SilentWatches(Line):
    """A client whose calls are answered, while its watches may be silent."""

    async def table(self) -> Table:
        return await MemoryDriver.table(self)


@in_virtual_time
async def test_an_evicted_coordinator_does_not_learn_of_its_loss_from_a_commit_that_was_refused() -> None:
    async with Meeting() as meeting:
        line = SilentWatches(meeting.server)
        timeouts = rdzv.Timeouts(last_call=1)
        a = await meeting.enter("a", "3:5", backend=line, timeouts=timeouts)
        rest = await meeting.enter_all("bcde", "3:5", timeouts=timeouts)
        world, *_ = await together(a, *rest[:2])
        assert (await a.status()).coordinator == "a"
        told: list[EventKind] = []
        a.listen(lambda event: told.append(event.kind))
        meeting.start(rest[2])
        assert await world.changed() is Change.NODES_WAITING
        meeting.start(rest[3])  # To be counted by the coordinator 0.1 s after the other one.
        await anyio.sleep(0.05)
        line.cut()
        meeting.end_session_of("nodes/a")
        await anyio.sleep(0.2)
        head = await meeting.head()
        assert (head.waiting, head.lost) == (2, 1), "its successor has counted"
        assert world.change is not Change.MEMBER_LOST
        line.mend()
        assert await world.changed(Change.EVICTED) is Change.EVICTED
        assert EventKind.MEMBER_LOST not in told


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_node_whose_id_another_one_takes_is_told_at_the_barrier(backend: str, tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with a_place(backend, tmp_path) as endpoint, nodes_at(endpoint, "aab", "2") as (old, new, b):
            arrived = anyio.Event()
            old.listen(lambda event: arrived.set() if event.kind is EventKind.ARRIVED else None)
            async with anyio.create_task_group() as group:

                async def be_displaced() -> None:
                    with pytest.raises(RendezvousDisplacedError) as caught:
                        await old.join()
                    assert "another node with the id 'a' has joined from 'host-1'" in str(caught.value)
                    group.start_soon(b.join)

                group.start_soon(be_displaced)
                await arrived.wait()
                world = await new.join()
            assert world.size == 2
            assert sorted(member.node for member in await world.members()) == ["a", "b"]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_member_whose_id_another_one_takes_is_told_and_does_not_fight_back(
    backend: str, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with a_place(backend, tmp_path) as endpoint, nodes_at(endpoint, "aa", "1") as (old, new):
            first = await old.join()
            second = await new.join()
            assert await first.changed() is Change.EVICTED
            with pytest.raises(RendezvousDisplacedError, match="from 'host-1'"):
                await old.join()
            with pytest.raises(RendezvousFencedError):
                first.check()
            assert second.change is None, "the newcomer was left in peace"


@in_virtual_time
async def test_the_status_names_a_node_that_took_the_place_of_another() -> None:
    async with Meeting() as meeting:
        old = await meeting.enter("a", "2", address="host-old")
        new = await meeting.enter("a", "2", address="host-new", timeouts=rdzv.Timeouts(join=5))
        waiting = meeting.start(old)
        await anyio.sleep(1)
        with pytest.raises(RendezvousTimeoutError) as caught:
            await new.join()
        assert isinstance(waiting.error, RendezvousDisplacedError)
        assert waiting.ended_at == 1, "at once"
        text = "took the place of a node with the same id that had not left: a (at host-new, before at host-old)"
        assert text in str(caught.value)


@in_virtual_time
async def test_a_node_that_restarts_while_its_old_session_lasts_is_in() -> None:
    async with Meeting() as meeting:
        line = meeting.line()
        crashed = await meeting.enter("a", "2", backend=line)
        b = await meeting.enter("b", "2")
        await together(crashed, b)
        line.cut()
        again = await meeting.enter("a", "2")
        worlds = await together(again, b)
        assert {world.round for world in worlds} == {2}
        await anyio.sleep(100)
        assert [world.change for world in worlds] == [None, None]
        line.mend()
        with pytest.raises(RendezvousDisplacedError):
            await crashed.join()
        await anyio.sleep(100)
        assert [world.change for world in worlds] == [None, None]


@in_virtual_time
async def test_a_node_whose_successor_has_left_may_join_again() -> None:
    async with Meeting() as meeting:
        old, new = await meeting.enter("a", "1"), await meeting.enter("a", "1")
        await old.join()
        await new.join()
        await new.leave()
        assert (await old.join()).round == 3


@in_virtual_time
async def test_a_node_is_not_displaced_by_its_own_past() -> None:
    """The answer to the opening of its second session is lost; what that session put is the node's own."""

    class Deaf(Line):
        deaf = False

        async def open(self, opening: Opening, deadline: Deadline | None = None) -> Granted:
            answer = await super().open(opening, deadline)
            if self.deaf:
                self.deaf = False
                raise RendezvousConnectionError("no answer")
            return answer

    async with Meeting() as meeting:
        line = Deaf(meeting.server)
        a = await meeting.enter("a", "1", backend=line)
        world = await a.join()
        line.deaf = True
        meeting.end_session_of("nodes/a")
        assert await world.changed() is Change.EVICTED
        again = await a.join()
        await anyio.sleep(10)
        assert again.change is None
        assert (await a.status()).nodes(Role.MEMBER) == ["a"]
