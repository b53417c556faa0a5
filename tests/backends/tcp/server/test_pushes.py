"""Who is told of what, and when: once for all changes of a turn, made once for all who know as much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import anyio
import pytest
from msgspec import Raw

from rendezvous_async.backends.base import Delete, Listing, Put, Token
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.tcp import Limits, wire
from rendezvous_async.backends.tcp.server.pushes import TOO_LONG, Pushes
from rendezvous_async.backends.tcp.server.requests import Watcher
from rendezvous_async.backends.tcp.server.turns import Turns
from tests.backends.tcp.support import eventually


class Peer:
    """What pushes know of a connection: it is marked, and pushed to."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name = name
        self.story = story
        self.on_push: Callable[[], None] = lambda: None

    def mark(self, watcher: Watcher, settled: Token) -> None:
        self.story.append(f"mark {self.name}.{watcher.id} {settled.revision}")

    def push(self, end: float) -> None:
        self.story.append(f"push {self.name}")
        self.on_push()


class Scene:
    """A table with watchers, and what they were told."""

    def __init__(self, **limits: int) -> None:
        self.table = Table("epoch")
        self.turns = Turns()
        self.pushes = Pushes(self.table, Limits(**limits), self.turns)
        self.story: list[str] = []
        self._ids = 0

    def peer(self, name: str) -> Peer:
        return Peer(name, self.story)

    def watcher(self, peer: Peer, *names: str, seen: int = 0) -> Watcher:
        self._ids += 1
        watcher = Watcher(peer, self._ids, names, Token("epoch", seen))  # type: ignore[arg-type]
        self.pushes.fanout.add(names, watcher)
        return watcher

    def put(self, *keys: str, size: int = 0) -> None:
        self.table.commit([Put(key, b"x" * size) for key in keys])
        self.pushes.settle()

    async def pushed(self, count: int = 1) -> None:
        await eventually(lambda: sum(line.startswith("push") for line in self.story) >= count)

    def news(self, watcher: Watcher) -> list[str] | None:
        """Return what a watcher is told; None if there is nothing."""
        news = self.pushes.news_for(watcher)
        if news is None:
            return None
        assert news is not TOO_LONG
        changed = wire.decode_answer(wire.frame(wire.EncodedChanged(1, news))[4:])
        assert isinstance(changed, wire.Changed)
        assert changed.listing is not None
        return [entry.key for entry in changed.listing.entries]


async def test_watchers_are_marked_at_once_and_pushed_to_at_the_end_of_the_turn() -> None:
    scene = Scene()
    a, b = scene.peer("a"), scene.peer("b")
    scene.watcher(a, "x/")
    scene.watcher(a, "x/1")
    scene.watcher(b, "y")
    heard: list[Sequence[str]] = []
    scene.pushes.listeners.append(heard.append)
    scene.pushes.settle()
    scene.put("x/1")
    scene.put("z")
    scene.put("y", "x/2")
    assert scene.story == ["mark a.2 0", "mark a.1 0", "mark b.3 2", "mark a.1 2"]
    assert heard == [["x/1"], ["z"], ["y", "x/2"]]
    await scene.pushed(2)
    assert scene.story[4:] == ["push a", "push b"]
    scene.put("z")
    scene.put("y")
    await scene.pushed(3)
    assert scene.story[6:] == ["mark b.3 4", "push b"], "what one has settled holds also where nobody was told"


async def test_a_push_waits_for_no_timer() -> None:
    scene = Scene()
    scene.watcher(scene.peer("a"), "x")
    scene.put("x")
    await asyncio.sleep(0)
    assert scene.story == ["mark a.1 0", "push a"]


async def test_who_is_to_be_pushed_to_later_is_and_once() -> None:
    scene = Scene()
    a, b = scene.peer("a"), scene.peer("b")
    for peer in (a, b, a):
        scene.pushes.push_later(peer)  # type: ignore[arg-type]
    assert scene.story == []
    await scene.pushed(2)
    await anyio.sleep(0.01)
    assert scene.story == ["push a", "push b"]


async def test_who_asks_for_more_in_its_push_comes_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 0.0)
    scene = Scene()
    a, b, c = (scene.peer(name) for name in "abc")

    def again() -> None:
        a.on_push = lambda: None
        scene.pushes.push_later(a)  # type: ignore[arg-type]

    a.on_push = again
    for peer in (a, b, c):
        scene.pushes.push_later(peer)  # type: ignore[arg-type]
    await scene.pushed(4)
    await anyio.sleep(0.01)
    assert scene.story == ["push a", "push b", "push c", "push a"]


async def test_what_changes_while_a_long_push_is_under_way_is_pushed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 0.0)
    scene = Scene()
    peers = [scene.peer(name) for name in "abcd"]
    for peer in peers:
        scene.watcher(peer, "x")
    scene.put("x")

    def change() -> None:
        peers[1].on_push = lambda: None
        scene.put("x")

    peers[1].on_push = change
    await scene.pushed(8)
    await anyio.sleep(0.01)
    pushes = [line for line in scene.story if line.startswith("push")]
    assert pushes == [f"push {name}" for name in "abcdabcd"]


async def test_each_push_takes_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.backends.tcp.server.turns.SLICE", 0.0)
    scene = Scene()
    seen: list[int] = []

    def look_soon() -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append(len(scene.story)))

    for name in "abc":
        peer = scene.peer(name)
        peer.on_push = look_soon
        scene.pushes.push_later(peer)  # type: ignore[arg-type]
    await eventually(lambda: len(seen) == 3)
    assert seen == [1, 2, 3]


# What they are told


async def test_a_watcher_is_told_what_has_changed_since_it_knew() -> None:
    scene = Scene()
    peer = scene.peer("a")
    scene.put("x/1", "x/2")
    scene.put("x/3")
    scene.table.commit([Delete("x/1")])
    known = [scene.watcher(peer, "x/", seen=revision) for revision in range(4)]
    assert [scene.news(watcher) for watcher in known] == [["x/1", "x/2", "x/3"], ["x/1", "x/3"], ["x/1"], None]
    assert scene.news(scene.watcher(peer, "y/")) is None


async def test_news_are_made_once_for_all_who_know_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    peer = scene.peer("a")
    scene.put("x", "y")
    made: list[Listing] = []
    encode = wire.encode_listing

    def encode_and_count(listing: Listing) -> Raw:
        made.append(listing)
        return encode(listing)

    monkeypatch.setattr(wire, "encode_listing", encode_and_count)
    watchers = [scene.watcher(peer, "x"), scene.watcher(peer, "x"), scene.watcher(peer, "y")]
    news = [scene.pushes.news_for(watcher) for watcher in watchers]
    assert news[0] is news[1] is not None
    assert news[2] != news[0]
    assert len(made) == 2
    assert scene.pushes.news_for(scene.watcher(peer, "x", seen=1)) is None
    scene.put("x")
    assert scene.pushes.news_for(watchers[0]) != news[0]
    assert len(made) == 3


async def test_nothing_that_was_made_is_kept_after_a_push() -> None:
    scene = Scene()
    peer = scene.peer("a")
    watcher = scene.watcher(peer, "x")
    made: list[Raw | None] = []
    peer.on_push = lambda: made.append(scene.pushes.news_for(watcher))
    scene.put("x")
    await scene.pushed()
    assert made != [None]
    assert scene.pushes._made == {}


@pytest.mark.parametrize(("count", "too_long"), [(5, False), (6, True)])
async def test_more_keys_than_an_answer_may_have_are_too_long(count: int, too_long: bool) -> None:
    scene = Scene(listed=5)
    watcher = scene.watcher(scene.peer("a"), "x/")
    scene.put(*(f"x/{number}" for number in range(count)))
    assert (scene.pushes.news_for(watcher) is TOO_LONG) is too_long


@pytest.mark.parametrize(("size", "too_long"), [(100, False), (5000, True)])
async def test_more_bytes_than_an_answer_may_have_are_too_long(
    monkeypatch: pytest.MonkeyPatch, size: int, too_long: bool
) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER", 1000)
    scene = Scene()
    watcher = scene.watcher(scene.peer("a"), "x")
    scene.put("x", size=size)
    assert (scene.pushes.news_for(watcher) is TOO_LONG) is too_long
