"""What a node sees of its run: it only goes forward, and everybody is told of what is new."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.base import Backend, Delete, Entry, Listing, Opening, Put, Token, news_of
from rendezvous_async.backends.memory import MemoryDriver, MemoryServer
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import COORDINATOR, STATE, Head, Post, Seat, node_key, seat_key
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.node.view import View
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
        self.view = View("a", "job")
        self.told = 0
        self.view.changed.call(self.count)

    def count(self) -> None:
        self.told += 1

    async def follow(self) -> Backend:
        """Have the view follow an empty store, which is returned."""
        backend = Backend(MemoryDriver(MemoryServer()), "job")
        opened = await backend.open(Opening(10.0, names=self.view.names, sink=self.view))
        assert opened.following is not None
        self.view.following = opened.following
        return backend


def listing(*entries: Entry, complete: bool = False) -> Listing:
    return Listing(entries, max((entry.token for entry in entries), key=lambda token: token.revision), complete)


def test_every_entry_is_taken_for_what_it_is_until_it_is_gone() -> None:
    view = Looker().view
    assert not view.loaded
    record = entry(node_key("a"), 1, b"whatever")
    entries = [record, *(entry(key, 1, value) for key, value in VALUES.items())]
    view.take(listing(*entries, complete=True))
    assert view.loaded
    assert view.head == HEAD.stamped(("memory", 1))
    assert (view.coordinator, view.record, view.seat) == ("b", record, SEAT)
    assert [view.entry(each.key) for each in entries] == entries
    assert {view.token(each.key) for each in entries} == {Token("memory", 1)}
    view.take(listing(*[entry(each.key, 2) for each in entries]))
    assert (view.head, view.coordinator, view.record, view.seat, view.error) == (None, None, None, None, None)
    assert [view.entry(each.key) for each in entries] == [None] * 4
    assert [view.token(each.key) for each in entries] == [None] * 4


@in_virtual_time
async def test_what_is_learned_counts_only_if_it_is_news() -> None:
    looker = Looker()
    await looker.follow()
    view, learn = looker.view, looker.view.following.learn
    learn([entry(COORDINATOR, 5, Post("b"))])
    assert (view.coordinator, view.loaded, looker.told) == ("b", True, 1)
    learn([entry(COORDINATOR, 4, Post("old")), entry(COORDINATOR, 5, Post("same"))])
    learn([entry("nodes/other", 6, b"whatever"), entry("seats/other", 6, SEAT)])
    learn([])
    assert (view.coordinator, view.seat, looker.told) == ("b", None, 1)
    view.following.take(Listing((entry("rendezvous_async/job/" + COORDINATOR, 6),), Token("memory", 6), complete=False))
    learn([entry(COORDINATOR, 5, Post("b"))])
    assert (view.coordinator, looker.told) == (None, 2), "what is gone does not come back"
    learn([entry(COORDINATOR, 7, Post("c")), entry(STATE, 7, HEAD)])
    assert (view.coordinator, view.head, looker.told) == ("c", HEAD.stamped(("memory", 7)), 3)


@in_virtual_time
async def test_what_was_learned_is_missed_when_it_is_gone() -> None:
    """The backend did not push it, but pushes that it is gone."""
    looker = Looker()
    backend = await looker.follow()
    put = Put(COORDINATOR, encode(Post("b")))
    commit = await backend.commit(put)
    looker.view.following.learn(news_of([put], commit))
    assert looker.view.coordinator == "b"
    await backend.commit(Delete(COORDINATOR))
    await looker.view.changed.wait()
    assert looker.view.coordinator is None


def test_the_first_error_counts_and_is_told() -> None:
    looker = Looker()
    first = OSError("first")
    looker.view.fail(first)
    assert (looker.view.error, looker.told) == (first, 1)
    looker.view.fail(OSError("second"))
    assert looker.view.error is first


@pytest.mark.parametrize("key", VALUES)
def test_a_damaged_entry_is_an_error_and_not_taken(key: str) -> None:
    looker = Looker()
    looker.view.take(listing(entry(key, 1, b"damaged")))
    assert isinstance(looker.view.error, RendezvousStateError)
    assert (looker.view.loaded, looker.view.entry(key), looker.told) == (False, None, 1)
