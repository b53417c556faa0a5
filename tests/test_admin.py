"""What anybody can do to a run: look at it, close it, throw a node out, remove what is left."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from rendezvous_async import Change, Put, RendezvousStateError, Settings
from rendezvous_async.admin import close_run, evict_node, purge_run, read_head, read_status
from rendezvous_async.backends.base import Backend, Condition
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import Closed, Head
from tests.meeting import PREFIX, RUN, Line, Meeting, in_virtual_time, together, until

# Looking


@in_virtual_time
async def test_the_status_of_a_run_that_nobody_has_joined() -> None:
    async with Meeting() as meeting:
        status = await read_status(meeting.backend())
        assert str(status) == "run 'job': nobody has joined yet\n  here: nobody"


@in_virtual_time
async def test_the_status_of_a_run() -> None:
    async with Meeting() as meeting:
        a, b, c = await meeting.enter_all("abc", "2")
        worlds = dict(zip("ab", await together(a, b), strict=True))
        meeting.start(c)
        await anyio.sleep(1)
        status = await c.status()
        assert (status.round, status.missing, status.closed) == (1, 0, None)
        assert [(present.node, present.role, present.rank) for present in status.here] == [
            *sorted((node, "member", world.rank) for node, world in worlds.items() if world.rank == 0),
            *sorted((node, "member", world.rank) for node, world in worlds.items() if world.rank == 1),
            ("c", "spare", None),
        ]
        assert status.coordinator in ("a", "b")


@pytest.mark.parametrize("key", ["nodes/x", "seats/x", "seats/a", "coordinator"])
@in_virtual_time
async def test_a_damaged_record_does_not_hide_the_others(key: str) -> None:
    async with Meeting() as meeting:
        session = await meeting.backend().open_session(100)
        (a,) = await meeting.enter_all("a", "1")
        await a.join()
        await meeting.backend().commit(Put(key, b"garbage", session.id))
        status = await read_status(meeting.backend())
        assert [present.node for present in status.here] == ["a"]
        assert status.damaged == (key,)
        assert f"\n  cannot be read: {key}" in str(status)
        await session.aclose()


@in_virtual_time
async def test_the_status_of_a_damaged_state_is_an_error() -> None:
    async with Meeting() as meeting:
        await meeting.backend().commit(Put("state", b"garbage"))
        with pytest.raises(RendezvousStateError, match="the record at 'state' is not a Head record"):
            await read_status(meeting.backend())


# Closing


@in_virtual_time
async def test_closing_says_who_and_why() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        assert await close_run(meeting.backend(), "enough", "operator") == Closed("enough", "operator")
        assert await world.changed() is Change.CLOSED
        before = await meeting.head()
        assert await close_run(meeting.backend(), "again", "other") == Closed("enough", "operator")
        assert await meeting.head() == before
        assert (before.round, before.size, before.token) == (1, 1, (world.token.epoch, world.token.revision))


@in_virtual_time
async def test_closing_creates_the_state_if_there_is_none() -> None:
    async with Meeting() as meeting:
        await close_run(meeting.backend(), "off", "operator", Settings(2, 3))
        assert await meeting.head() == Head(settings=Settings(2, 3), closed=Closed("off", "operator"), recorded=1)


@in_virtual_time
async def test_closing_without_settings_creates_the_smallest_run_that_there_is() -> None:
    async with Meeting() as meeting:
        await close_run(meeting.backend(), "off", "operator")
        assert await meeting.head() == Head(settings=Settings(1, 1), closed=Closed("off", "operator"), recorded=1)


@in_virtual_time
async def test_closing_tries_until_it_has_won() -> None:
    """Others rewrite the head between the read and the write, several times."""

    class Contended(Line):
        rivals = 5

        async def commit(self, *args: Any) -> Any:
            if self.rivals:
                self.rivals -= 1
                head = Head(settings=Settings(1, 1), waiting=self.rivals)
                self.server.table.commit([Put(f"{PREFIX}state", encode(head))])
            return await super().commit(*args)

    async with Meeting() as meeting:
        backend = Contended(meeting.server)
        await close_run(Backend(backend, RUN), "enough", "operator")
        assert backend.rivals == 0
        assert (await meeting.head()).closed == Closed("enough", "operator")


@in_virtual_time
async def test_of_many_that_close_one_is_remembered() -> None:
    async with Meeting() as meeting:
        results: list[Closed] = []

        async def close(by: str) -> None:
            results.append(await close_run(meeting.backend(), "enough", by))

        async with anyio.create_task_group() as group:
            for by in "abcdef":
                group.start_soon(close, by)
        assert len(set(results)) == 1


@in_virtual_time
async def test_a_damaged_run_can_be_closed() -> None:
    async with Meeting() as meeting:
        await meeting.backend().commit(Put("state", b"garbage"))
        await close_run(meeting.backend(), "damaged", "operator")
        assert (await meeting.head()).closed == Closed("damaged", "operator")


@pytest.mark.parametrize("reason", [None, 5, b"bytes", "\ud800"], ids=ascii)
@in_virtual_time
async def test_a_reason_is_a_text(reason: Any) -> None:
    async with Meeting() as meeting:
        with pytest.raises(ValueError, match=r"reason must be a string.*, not "):
            await close_run(meeting.backend(), reason, "operator")
        assert await meeting.entry("state") is None


@in_virtual_time
async def test_a_node_that_closes_for_a_wrong_reason_has_told_nobody() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1")
        wrong: Any = 5
        with pytest.raises(ValueError, match="reason must be a string, not 5"):
            await a.close(wrong)
        assert await meeting.entry("state") is None


# Throwing out


@pytest.mark.parametrize("node", [None, 5, "", "\ud800", "x" * 300], ids=ascii)
@in_virtual_time
async def test_evicting_what_is_no_node_is_an_error(node: Any) -> None:
    async with Meeting() as meeting:
        with pytest.raises(ValueError, match="node must "):
            await evict_node(meeting.backend(), node)


@in_virtual_time
async def test_evicting_ends_the_session_that_the_record_names() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "2")
        await together(a, b)
        assert await evict_node(meeting.backend(), "a") is True
        assert await meeting.keys("nodes/") == ["nodes/b"]
        assert await evict_node(meeting.backend(), "a") is False


@in_virtual_time
async def test_evicting_a_record_that_has_no_session_deletes_it() -> None:
    async with Meeting() as meeting:
        await meeting.backend().commit(Put("nodes/ghost", b""))
        assert await evict_node(meeting.backend(), "ghost") is True
        assert await meeting.keys() == []


# Removing


@in_virtual_time
async def test_a_closed_run_without_nodes_can_be_purged() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as a:
            world = await a.join()
            await world.store.set("key", b"value")
            assert await purge_run(meeting.backend()) is False, "it is not closed"
            await a.close("done")
            assert await purge_run(meeting.backend()) is False, "a node is here"
        assert await purge_run(meeting.backend()) is True
        assert await meeting.keys() == []
        assert await purge_run(meeting.backend()) is True


@in_virtual_time
async def test_a_run_that_is_not_closed_is_kept_though_nobody_is_here() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1") as a:
            await (await a.join()).store.set("key", b"value")
        before = await meeting.keys()
        assert await purge_run(meeting.backend()) is False
        assert await meeting.keys() == before


@in_virtual_time
async def test_purging_does_not_remove_a_run_that_begins_meanwhile() -> None:
    class Late(Line):
        async def commit(self, *args: Any) -> Any:
            self.server.table.commit([Put(f"{PREFIX}state", encode(Head(settings=Settings(1, 1))))])
            return await super().commit(*args)

    async with Meeting() as meeting:
        assert await purge_run(Backend(Late(meeting.server), RUN)) is False
        assert await meeting.head() == Head(settings=Settings(1, 1))


@in_virtual_time
async def test_reading_a_head_stamps_it() -> None:
    async with Meeting() as meeting:
        assert read_head(None) is None
        (a,) = await meeting.enter_all("a", "1")
        world = await a.join()
        head = read_head(await meeting.entry("state"))
        assert head is not None
        assert head.token == (world.token.epoch, world.token.revision)
        marker = await meeting.entry("rounds/1")
        assert marker is not None
        assert marker.token == world.token, "the marker's revision is the round's token"
        commit = await meeting.backend().commit(Put("x", b""), when=[Condition("rounds/1", world.token)])
        assert commit.won
        await until(lambda: world.change is None)
