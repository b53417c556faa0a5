"""What a node sees of its run: it only goes forward, and everybody is told of what is new."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.base import Delete, Entry, Listing, Put, Token
from rendezvous_async.backends.memory import MemoryBackend, MemoryServer
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Post, Seat, node_key, seat_key
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.view import View
from tests.core.make import TWO_TO_FOUR
from tests.meeting import in_virtual_time

HEAD = Head(settings=TWO_TO_FOUR, round=1)
SEAT = Seat(round=1, attempt="first", arrival="now", rank=0)
VALUES: dict[str, Head | Post | Seat] = {STATE: HEAD, COORDINATOR: Post("b"), seat_key("a"): SEAT}


def entry(key: str, revision: int, value: Head | Post | Seat | bytes | None = None) -> Entry:
    data = encode(value) if isinstance(value, Head | Post | Seat) else value
    return Entry(key, data, Token("memory", revision))


class Looker:
    """A view of node a, and how often it has told that something changed."""

    def __init__(self) -> None:
        self.backend = MemoryBackend(MemoryServer(), "job")
        self.view = View("a", self.backend)
        self.told = 0
        self.view.changed.call(self.count)

    def count(self) -> None:
        self.told += 1


@in_virtual_time
async def test_every_entry_is_taken_for_what_it_is_until_it_is_gone() -> None:
    view = Looker().view
    assert not view.loaded
    assert not view.is_fed, "a watch in memory must be read"
    record = entry(node_key("a"), 1, b"whatever")
    entries = [record, *(entry(key, 1, value) for key, value in VALUES.items())]
    view.push(Listing(tuple(entries), Token("memory", 1)))
    assert view.loaded
    assert view.head == HEAD.stamped(("memory", 1))
    assert (view.coordinator, view.record, view.seat) == ("b", record, SEAT)
    assert [view.entry(each.key) for each in entries] == entries
    assert {view.token(each.key) for each in entries} == {Token("memory", 1)}
    view.push(Listing(tuple([entry(each.key, 2) for each in entries]), Token("memory", 2), complete=False))
    assert (view.head, view.coordinator, view.record, view.seat, view.error) == (None, None, None, None, None)
    assert [view.entry(each.key) for each in entries] == [None] * 4
    assert [view.token(each.key) for each in entries] == [None] * 4


@in_virtual_time
async def test_what_is_heard_counts_only_if_it_is_news() -> None:
    looker = Looker()
    view = looker.view
    view.hear([entry(COORDINATOR, 5, Post("b"))])
    assert (view.coordinator, view.loaded, looker.told) == ("b", True, 1)
    view.hear([entry(COORDINATOR, 4, Post("old")), entry(COORDINATOR, 5, Post("same"))])
    view.hear([entry("nodes/other", 6, b"whatever"), entry("seats/other", 6, SEAT)])
    view.hear([])
    assert (view.coordinator, view.seat, looker.told) == ("b", None, 1)
    view.hear([entry(COORDINATOR, 6)])
    view.hear([entry(COORDINATOR, 5, Post("b"))])
    assert (view.coordinator, looker.told) == (None, 2), "what is gone does not come back"
    view.hear([entry(COORDINATOR, 7, Post("c")), entry(STATE, 7, HEAD)])
    assert (view.coordinator, view.head, looker.told) == ("c", HEAD.stamped(("memory", 7)), 3)


@in_virtual_time
async def test_what_was_heard_is_missed_when_it_is_gone() -> None:
    """The watch did not tell of it, so it must be told of it."""
    looker = Looker()
    await looker.backend.commit(Put(COORDINATOR, encode(Post("b"))))
    written = await looker.backend.get(COORDINATOR)
    assert written is not None
    looker.view.hear([written])
    await looker.backend.commit(Delete(COORDINATOR))
    looker.view.push(await anext(looker.view.watch))
    assert looker.view.coordinator is None


@in_virtual_time
async def test_the_first_error_counts_and_is_told() -> None:
    looker = Looker()
    first = OSError("first")
    looker.view.fail(first)
    assert (looker.view.error, looker.told) == (first, 1)
    looker.view.fail(OSError("second"))
    assert looker.view.error is first


@pytest.mark.parametrize("key", VALUES)
@in_virtual_time
async def test_a_damaged_entry_is_an_error_and_not_taken(key: str) -> None:
    looker = Looker()
    looker.view.hear([entry(key, 1, b"damaged")])
    assert isinstance(looker.view.error, RendezvousStateError)
    assert (looker.view.loaded, looker.view.entry(key), looker.told) == (False, None, 1)
