"""Observing: by one's own clock, from one's own first look, and only while one is looking."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.file.directory import Directory
from rendezvous_async.backends.file.life import Lives
from rendezvous_async.backends.observer import LOOKS_PER_TTL, Look, Observer

TTL = 5.0


class World:
    """Sessions that beat or not, and an observer that looks when it says it will."""

    def __init__(self) -> None:
        self.observer = Observer()
        self.values: dict[str, bytes] = {}
        self.now = 1000.0

    def observe(self, now: float) -> tuple[list[str], float]:
        self.now = now
        over, again = self.observer.observe(
            [(session, TTL) for session in self.values], lambda session: Look(self.values[session]), now
        )
        return sorted(over), again


def test_a_new_observer_waits_a_full_ttl_from_its_first_look() -> None:
    world = World()
    world.values = {"old": b"7"}
    over, again = world.observe(1000.0)
    while not over:
        assert again > world.now
        over, again = world.observe(again)
    assert over == ["old"]
    assert world.now == pytest.approx(1000.0 + TTL)


def test_a_change_starts_the_wait_anew_however_it_changes() -> None:
    world = World()
    world.values = {"a": b"9", "b": b"1"}
    world.observe(1000.0)
    world.observe(1004.0 - 2 * TTL / LOOKS_PER_TTL)
    world.values["a"] = b"3"  # lower than before: values have no order
    _, again = world.observe(1004.0)
    found: dict[str, float] = {}
    while world.values:
        over, again = world.observe(again)
        for session in over:
            found[session] = world.now
            del world.values[session]
    assert found["a"] == pytest.approx(1004.0 + TTL)
    assert found["b"] < found["a"]


def test_an_observer_that_did_not_look_has_seen_no_silence() -> None:
    """Stopped for an hour, it gives everybody the time to show life before it counts on."""
    world = World()
    world.values = {"a": b"1"}
    world.observe(1000.0)
    over, _ = world.observe(1000.0 + 3600)
    assert over == []
    world.values["a"] = b"2"
    assert world.observe(1000.0 + 3601)[0] == []


@given(st.lists(st.floats(0.05, 0.9), min_size=1, max_size=60))
def test_whoever_beats_within_its_ttl_lives(beats: list[float]) -> None:
    world = World()
    world.values = {"a": b"0"}
    next_beat = 1000.0
    _, again = world.observe(1000.0)
    for count, part in enumerate(beats, 1):
        next_beat += part * (TTL - TTL / LOOKS_PER_TTL)
        while again < next_beat:
            over, again = world.observe(again)
            assert over == []
        world.values["a"] = b"%d" % count


def test_who_is_dead_is_over_at_once() -> None:
    observer = Observer()
    over, _ = observer.observe([("a", TTL)], lambda _: Look(b"1", is_dead=True), 5.0)
    assert list(over) == ["a"]


def test_a_file_shows_its_owner_and_its_death(tmp_path: Path) -> None:
    directory = Directory.open(str(tmp_path / "shared"))
    mine = Lives(directory.subdirectory("sessions"), 0o600, is_local=True)
    theirs = Lives(directory.subdirectory("sessions"), 0o600, is_local=True)
    mine.create("e.1")
    first = theirs.look("e.1")
    assert not first.is_dead
    assert mine.beat("e.1", TTL)
    assert theirs.look("e.1") != first
    assert not mine.beat("e.1", 0.0), "a beat after the TTL is late"
    assert mine.look("e.1") == theirs.look("e.1"), "an owner's looks do not cost it its lock"
    mine.let_go("e.1")
    assert theirs.look("e.1").is_dead
    theirs.remove("e.1")
    assert theirs.look("e.1") == Look(b"")
    mine.create("e.2")
    mine.create("e.2")
    theirs.sweep(lambda session: session == "e.2")
    assert os.listdir(tmp_path / "shared" / "sessions") == ["e.2"]
    for session in ("../log", "", ".", "a/b"):
        assert theirs.look(session) != theirs.look(session), "what cannot be read never counts as silent"
        with pytest.raises(OSError, match="not a plain name"):
            theirs.create(session)
    mine.close()
    theirs.close()
    directory.close()


def test_where_locks_may_be_lost_only_silence_counts(tmp_path: Path) -> None:
    directory = Directory.open(str(tmp_path / "shared"))
    lives = Lives(directory.subdirectory("sessions"), 0o600, is_local=False)
    lives.create("e.1")
    lives.let_go("e.1")
    assert not lives.look("e.1").is_dead
    lives.close()
    directory.close()
