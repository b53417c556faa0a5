"""Whose settings hold, as a function of the head and the roster."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core.agreement import is_abandoned, is_settled, prevailing
from rendezvous_async.core.rules import HandOver, Notes, step
from rendezvous_async.core.state import Head, Last, Node, Phase
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.settings import Settings
from tests.core.make import TWO_TO_FOUR, formed

OTHER, THIRD = Settings(1, 9), Settings(3, 3)
STALE = Head(settings=TWO_TO_FOUR, round=3, phase=Phase.FORMED, attempt="old", size=2, token=("epoch", 7))


def roster(*settings: Settings | str, head: Head = STALE) -> Tally:
    """Return the tally of newcomers with these settings, in the order of their arrival."""
    return tally_of(
        head,
        {},
        (
            (
                f"n{order}",
                Node(arrival=f"a{order}", fingerprint=each if isinstance(each, str) else each.fingerprint),
                order,
            )
            for order, each in enumerate(settings)
        ),
    )


def test_nobody_disagrees() -> None:
    assert prevailing(roster()) == TWO_TO_FOUR.fingerprint
    assert prevailing(roster(TWO_TO_FOUR, TWO_TO_FOUR)) == TWO_TO_FOUR.fingerprint


def test_the_most_numerous_settings_win() -> None:
    assert prevailing(roster(TWO_TO_FOUR, OTHER, OTHER)) == OTHER.fingerprint
    assert prevailing(roster(OTHER, TWO_TO_FOUR, TWO_TO_FOUR)) == TWO_TO_FOUR.fingerprint
    assert prevailing(roster(TWO_TO_FOUR, OTHER, THIRD, OTHER)) == OTHER.fingerprint


def test_of_equally_many_the_earliest_win() -> None:
    assert prevailing(roster(TWO_TO_FOUR, OTHER)) == TWO_TO_FOUR.fingerprint
    assert prevailing(roster(OTHER, TWO_TO_FOUR)) == OTHER.fingerprint
    assert prevailing(roster(TWO_TO_FOUR, THIRD, OTHER, OTHER, THIRD)) == THIRD.fingerprint


def test_settings_that_cannot_be_read_never_win() -> None:
    assert prevailing(roster(TWO_TO_FOUR, *["of a newer version"] * 3)) == TWO_TO_FOUR.fingerprint
    assert prevailing(roster(TWO_TO_FOUR, *["of a newer version"] * 3, OTHER, OTHER)) == OTHER.fingerprint


def test_a_world_that_is_held_is_settled() -> None:
    head, seats = formed("ab")
    tally = Tally(head, seats)
    tally.put("a", Node(arrival="a1", fingerprint=TWO_TO_FOUR.fingerprint), 1)
    for order in range(2, 9):
        tally.put(f"n{order}", Node(arrival="x", fingerprint=OTHER.fingerprint), order)
    assert is_settled(tally)
    assert not is_abandoned(tally)
    assert prevailing(tally) == TWO_TO_FOUR.fingerprint


def test_a_run_with_a_survivor_is_settled() -> None:
    tally = roster(OTHER, OTHER)
    tally.put("s", Node(arrival="s2", fingerprint=TWO_TO_FOUR.fingerprint, last=Last(3, 0)), 9)
    assert is_settled(tally)
    assert prevailing(tally) == TWO_TO_FOUR.fingerprint
    tally.put("s", Node(arrival="s2", fingerprint=TWO_TO_FOUR.fingerprint, last=Last(2, 0)), 9)
    assert not is_settled(tally), "of an older round"


def test_a_head_that_nobody_goes_by_is_abandoned() -> None:
    assert is_abandoned(roster())
    assert is_abandoned(roster(OTHER, THIRD))
    assert not is_abandoned(roster(OTHER, TWO_TO_FOUR))


def test_a_coordinator_that_is_outnumbered_hands_over() -> None:
    decision, notes = step(roster(TWO_TO_FOUR, OTHER, OTHER), Notes(), 10.0, "new")
    expected = Head(settings=OTHER, round=3, phase=Phase.GATHERING, attempt="old", size=2, token=("epoch", 7))
    assert (decision, notes) == (HandOver(expected), Notes())
    assert not isinstance(step(roster(TWO_TO_FOUR, OTHER), Notes(), 10.0, "new")[0], HandOver)


@given(st.lists(st.sampled_from([TWO_TO_FOUR, OTHER, THIRD]), min_size=1, max_size=12), st.data())
def test_it_does_not_depend_on_the_way_there(settings: list[Settings], data: st.DataObject) -> None:
    tally = roster(*settings)
    gone = data.draw(st.sets(st.integers(0, len(settings) - 1), max_size=len(settings) - 1))
    for order in gone:
        tally.remove(f"n{order}")
    left = [each.fingerprint for order, each in enumerate(settings) if order not in gone]
    most = max(Counter(left).values())
    expected = next(each for each in left if Counter(left)[each] == most)
    assert prevailing(tally) == expected
