"""A node in a run of a newer version: it is told to upgrade, takes no part, and writes nothing that others read."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from rendezvous_async import Change, RendezvousClosedError, RendezvousVersionError, Settings
from rendezvous_async.admin import close_run, evict_node, purge_run, read_status
from rendezvous_async.backends.base import Entry, Put
from rendezvous_async.core import features
from rendezvous_async.core.codec import FORMAT, encode
from rendezvous_async.core.state import COORDINATOR, STATE, Closed, Head
from rendezvous_async.settings import Timeouts
from tests.meeting import Meeting, in_virtual_time, now, together, until

SHAPE = "shape@0.2"
TOLD = r"run 'job' requires .*'shape' \(0\.2 or later\)\. Upgrade rendezvous_async"
TIMEOUTS = Timeouts(join=60, last_call=1, regroup=1)
SETTINGS = Settings(2, 4, last_call=1.0, regroup=1.0)
AN_HOUR = 3600.0


async def put_head(meeting: Meeting, head: Head | bytes) -> Entry:
    """Write the head, as a newer version would, and return its entry."""
    value = encode(head) if isinstance(head, Head) else head
    await meeting.backend().commit(Put(STATE, value))
    entry = await meeting.entry(STATE)
    assert entry is not None
    return entry


async def require(meeting: Meeting) -> Entry:
    """Let the head require a feature from now on."""
    return await put_head(meeting, msgspec.structs.replace(await meeting.head(), requires=(SHAPE,)))


def of_next_format() -> bytes:
    """A head in a format that this version cannot read at all."""
    return bytes((FORMAT + 1,)) + encode(Head(settings=SETTINGS))[1:]


@pytest.mark.parametrize("nodes", ["2:4", "1", "1:9"], ids=["the run's settings", "another node count", "a range"])
@in_virtual_time
async def test_join_says_at_once_which_version_the_run_needs(nodes: str) -> None:
    """Also where its settings are the run's and the post is vacant, or where it could replace an abandoned head."""
    async with Meeting() as meeting:
        before = await put_head(meeting, Head(settings=SETTINGS, requires=(SHAPE,)))
        (a,) = await meeting.enter_all("a", nodes, timeouts=TIMEOUTS)
        for _ in range(2):
            with pytest.raises(RendezvousVersionError, match=TOLD):
                await a.join()
        assert now() < 1
        await anyio.sleep(AN_HOUR)
        assert await meeting.entry(STATE) == before
        assert await meeting.keys() == [STATE], "neither a record nor the post"


@in_virtual_time
async def test_join_says_so_of_a_head_in_a_newer_format() -> None:
    async with Meeting() as meeting:
        before = await put_head(meeting, of_next_format())
        (a,) = await meeting.enter_all("a", "1")
        with pytest.raises(RendezvousVersionError, match=r"'state' was written by a newer .*\(format 2, .* upgrade"):
            await a.join()
        assert now() < 1
        assert await meeting.entry(STATE) == before
        assert await meeting.keys() == [STATE]


@in_virtual_time
async def test_nodes_at_the_barrier_are_told_when_a_newer_version_takes_over() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", timeouts=TIMEOUTS)
        joining = meeting.start(a)
        await anyio.sleep(5)
        assert not joining.ended
        before = await require(meeting)
        await until(lambda: joining.ended, 1)
        assert isinstance(joining.error, RendezvousVersionError)
        await anyio.sleep(AN_HOUR)
        assert await meeting.entry(STATE) == before
        assert await meeting.entry(COORDINATOR) is None


@in_virtual_time
async def test_members_are_out_and_the_coordinator_gives_up_when_the_head_requires_what_they_do_not_know() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", timeouts=TIMEOUTS)
        worlds = await together(a, b)
        before = await require(meeting)
        for world in worlds:
            assert await world.changed() is Change.EVICTED
        for node in (a, b):
            with pytest.raises(RendezvousVersionError, match=TOLD):
                await node.join()
        assert await meeting.entry(COORDINATOR) is None, "the post is free for a node that knows the feature"
        await anyio.sleep(AN_HOUR)
        assert await meeting.entry(STATE) == before


@in_virtual_time
async def test_the_post_is_free_after_a_ttl_also_if_the_user_does_nothing() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", timeouts=TIMEOUTS)
        await together(a, b)
        before = await require(meeting)
        await anyio.sleep(6)
        assert await meeting.keys("nodes/") == []
        assert await meeting.entry(COORDINATOR) is None
        assert await meeting.entry(STATE) == before


@in_virtual_time
async def test_closing_is_refused_and_writes_nothing() -> None:
    async with Meeting() as meeting:
        (a,) = await meeting.enter_all("a", "1", timeouts=TIMEOUTS)
        await a.join()
        for later in (encode(msgspec.structs.replace(await meeting.head(), requires=(SHAPE,))), of_next_format()):
            before = await put_head(meeting, later)
            told = TOLD if later[0] == FORMAT else "written by a newer rendezvous_async"
            with pytest.raises(RendezvousVersionError, match=told):
                await a.close("enough")
            with pytest.raises(RendezvousVersionError, match=told):
                await close_run(meeting.backend(), "enough", "operator")
            assert await meeting.entry(STATE) == before
        with pytest.raises(RendezvousVersionError, match="written by a newer"):
            await purge_run(meeting.backend())


@in_virtual_time
async def test_a_close_by_a_newer_version_is_understood() -> None:
    """Closed is final and readable under every feature: nobody is told to upgrade for a run that is over."""
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1", timeouts=TIMEOUTS)
        world = await a.join()
        closed = Closed("done", "newer")
        before = await put_head(
            meeting, msgspec.structs.replace(await meeting.head(), requires=(SHAPE,), closed=closed)
        )
        assert await world.changed() is Change.CLOSED
        for node in (a, b):
            with pytest.raises(RendezvousClosedError, match="closed by newer: done"):
                await node.join()
        assert await close_run(meeting.backend(), "again", "operator") == closed
        await a.close("again")
        assert await meeting.entry(STATE) == before
        await a.leave()
        assert await purge_run(meeting.backend()) is True
        assert await meeting.keys() == []


@in_virtual_time
async def test_reading_and_evicting_are_safe() -> None:
    async with Meeting() as meeting:
        session = await meeting.backend().open_session(100)
        await put_head(meeting, Head(settings=SETTINGS, requires=(SHAPE,)))
        await meeting.backend().commit(Put("nodes/new", b"\x01N\x80", session.id))  # more than this version can read
        (a,) = await meeting.enter_all("a")
        for status in (await a.status(), await read_status(meeting.backend())):
            assert status.requires == (SHAPE,)
            assert status.settings == SETTINGS
            assert "requires: 'shape' (0.2 or later)" in str(status)
        assert await evict_node(meeting.backend(), "new") is True
        assert await meeting.keys() == [STATE]
        await session.aclose()


@in_virtual_time
async def test_nodes_that_know_the_feature_form_rounds_and_keep_it_required(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(features, "KNOWN", frozenset({SHAPE}))
        async with Meeting() as meeting:
            await put_head(meeting, Head(settings=SETTINGS, requires=(SHAPE,)))
            a, b = await meeting.enter_all("ab", timeouts=TIMEOUTS)
            first, _ = await together(a, b)
            await b.leave()
            assert await first.changed() is Change.MEMBER_LOST
            second, _ = await together(a, b)
            assert (second.round, second.size) == (2, 2)
            assert (await meeting.head()).requires == (SHAPE,)
            await a.close("done")
            assert (await meeting.head()).requires == (SHAPE,)


@in_virtual_time
async def test_a_node_may_rewrite_a_head_with_fields_that_it_does_not_know() -> None:
    """They are lost then: whoever adds a field that must not be lost names a feature as well."""
    async with Meeting() as meeting:
        fields = msgspec.to_builtins(Head(settings=SETTINGS))
        assert isinstance(fields, dict)
        later = encode(Head(settings=SETTINGS))[:2] + msgspec.msgpack.encode(fields | {"later": 1})
        await put_head(meeting, later)
        a, b = await meeting.enter_all("ab", timeouts=TIMEOUTS)
        await together(a, b)
        entry = await meeting.entry(STATE)
        assert entry is not None
        assert entry.value is not None
        assert b"later" in later
        assert b"later" not in entry.value
        assert (await meeting.head()).round == 1
