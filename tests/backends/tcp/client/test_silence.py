"""When a client gives up a silent connection: the rules alone, without a clock."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.tcp.client.silence import LONGEST_STALL, Silence

ON_TIME = 0.0


def patience_of(silence: Silence, linked_at: float) -> float:
    """Return for how many seconds a connection that was made then, and heard then, may be silent."""
    silence.linked_at = linked_at
    seconds = 0.0
    while not silence.is_dead(linked_at + seconds, ON_TIME, linked_at):
        seconds += 0.5
    return seconds - 0.5


def test_a_connection_is_dead_when_nothing_was_heard_for_longer_than_the_timeout() -> None:
    silence = Silence(3.0)
    assert not silence.is_dead(13.0, ON_TIME, heard_at=10.0)
    assert silence.is_dead(13.1, ON_TIME, heard_at=10.0)


@pytest.mark.parametrize(("late", "is_dead"), [(0.9, True), (1.0, False)])
def test_after_a_stall_only_the_time_up_to_the_last_look_counts(late: float, is_dead: bool) -> None:
    """The server's answers may wait unread."""
    silence = Silence(4.0)
    assert not silence.is_dead(12.0, ON_TIME, heard_at=10.0)
    assert silence.is_dead(20.0, late, heard_at=10.0) is is_dead
    assert silence.is_dead(20.1, ON_TIME, heard_at=10.0), "the next look finds everything read"


def test_a_loop_that_stalls_again_and_again_still_finds_a_dead_connection() -> None:
    silence = Silence(4.0)
    assert not silence.is_dead(15.0, 5.0, heard_at=10.0)
    assert silence.is_dead(20.0, 5.0, heard_at=10.0), "nothing had come by the look before"


def test_each_connection_that_is_given_up_gives_the_next_one_twice_the_time_up_to_a_bound() -> None:
    silence = Silence(3.0)
    assert [patience_of(silence, linked_at) for linked_at in (0, 10, 20, 40, 60)] == [3, 6, 12, 15, 15]
    assert LONGEST_STALL == 15


def test_a_timeout_beyond_the_bound_stays_what_it_is() -> None:
    silence = Silence(20.0)
    assert [patience_of(silence, linked_at) for linked_at in (0, 30, 60)] == [20, 20, 20]


@pytest.mark.parametrize(("held_for", "then"), [(24.0, 6.0), (24.5, 3.0)])
def test_a_connection_that_held_for_long_takes_the_patience_back(held_for: float, then: float) -> None:
    silence = Silence(3.0)
    assert patience_of(silence, 0.0) == 3
    silence.linked_at = 10.0
    assert not silence.is_dead(10.0 + held_for, ON_TIME, heard_at=10.0 + held_for)
    assert patience_of(silence, 100.0) == then
