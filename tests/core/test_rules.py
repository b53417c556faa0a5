"""Every rule of a round, by name: the whole step that the coordinator takes, the whole answer that a node reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core.rules import (
    COUNT_EVERY,
    COUNT_EVERY_PER_MEMBER,
    Change,
    Form,
    HandOver,
    Joined,
    Mismatch,
    Notes,
    Pending,
    Rewrite,
    Shut,
    Wait,
    admit,
    change_of,
    changes_of,
    first_wanted,
    step,
)
from rendezvous_async.core.state import Closed, Head, Last, Node, Phase, Seat
from rendezvous_async.core.tally import Tally
from rendezvous_async.settings import Settings, Timeouts
from tests.core.make import STAMP, TWO_TO_FOUR, formed, gathering, record, roster_of

NOW = 1000.0
OTHER = Settings(1, 9)
CLOSED = Closed("done", "a")
replace = msgspec.structs.replace


def fresh(names: Iterable[str], number: int = 1) -> dict[str, Node]:
    """Return records of newcomers, one per letter, in the order of their arrival; ``x`` arrives as ``x1``."""
    return {name: record(f"{name}{number}") for name in names}


def back(names: str, members: str, round: int = 1) -> dict[str, Node]:
    """Return records of members who are back at the barrier."""
    return {name: record(f"{name}2", last=(round, members.index(name))) for name in names}


def seat(rank: int, arrival: str, round: int = 1, attempt: str = "new") -> Seat:
    return Seat(round=round, attempt=attempt, arrival=arrival, rank=rank)


def new_head(size: int, round: int = 1) -> Head:
    """Return the head of a forming commit: no token, nobody waits, nobody is lost."""
    return Head(settings=TWO_TO_FOUR, round=round, phase=Phase.FORMED, attempt="new", size=size)


def held(names: Sequence[str], roster: Mapping[str, Node], *, waiting: int = 0, lost: int = 0) -> Tally:
    """Return the tally of round 1 of the nodes ``names``, with this roster."""
    head, seats = formed(names, waiting=waiting, lost=lost)
    return roster_of(head, seats, roster)


# Gathering


def test_gathering_below_min_waits_for_whoever_comes() -> None:
    assert step(gathering(fresh("a")), Notes(), NOW, "new") == (Wait(), Notes())


def test_gathering_nobody_waits() -> None:
    assert step(gathering({}), Notes(), NOW, "new") == (Wait(), Notes())


def test_max_reached_forms_at_once() -> None:
    seats = {name: seat(rank, f"{name}1") for rank, name in enumerate("abcd")}
    assert step(gathering(fresh("abcd")), Notes(), NOW, "new") == (Form(new_head(4), seats), Notes())


def test_max_reached_forms_at_once_also_during_the_last_call() -> None:
    decision, notes = step(gathering(fresh("abcd")), Notes(last_call_ends=NOW + 20), NOW, "new")
    assert isinstance(decision, Form)
    assert notes == Notes()


def test_min_reached_starts_the_last_call() -> None:
    ends = NOW + TWO_TO_FOUR.last_call
    assert step(gathering(fresh("ab")), Notes(), NOW, "new") == (Wait(ends), Notes(last_call_ends=ends))


def test_the_last_call_is_the_regroup_time_if_a_candidate_is_a_survivor() -> None:
    tally = held("ab", back("ab", "ab"))
    ends = NOW + TWO_TO_FOUR.regroup
    head = replace(tally.head, phase=Phase.GATHERING)
    assert step(tally, Notes(), NOW, "new") == (Rewrite(head), Notes(last_call_ends=ends))
    tally.follow(head)
    assert step(tally, Notes(last_call_ends=ends), NOW, "new") == (Wait(ends), Notes(last_call_ends=ends))


def test_regroup_is_min_of_last_call_and_3_s_by_default() -> None:
    assert Timeouts().regroup_seconds == 3.0
    assert Timeouts(last_call=0.5).regroup_seconds == 0.5
    assert Timeouts(last_call=0.5, regroup=7).regroup_seconds == 7


def test_members_of_an_older_round_do_not_shorten_the_last_call() -> None:
    head, seats = formed("ab", round=5)
    tally = roster_of(replace(head, phase=Phase.GATHERING), seats, {"x": record("x1", last=(4, 0)), **fresh("y")})
    ends = NOW + TWO_TO_FOUR.last_call
    assert step(tally, Notes(), NOW, "new") == (Wait(ends), Notes(last_call_ends=ends))


def test_a_survivor_who_comes_later_shortens_the_last_call() -> None:
    head, seats = formed("abcd")
    tally = roster_of(replace(head, phase=Phase.GATHERING), seats, fresh("xy"))
    _, notes = step(tally, Notes(), NOW, "new")
    assert notes == Notes(last_call_ends=NOW + 30)
    tally.put("a", record("a2", last=(1, 0)), 10)
    assert step(tally, notes, NOW + 10, "new") == (Wait(NOW + 13), Notes(last_call_ends=NOW + 13))


def test_the_last_call_over_forms() -> None:
    decision, notes = step(gathering(fresh("ba")), Notes(last_call_ends=NOW), NOW, "new")
    assert decision == Form(new_head(2), {"b": seat(0, "b1"), "a": seat(1, "a1")})
    assert notes == Notes()


def test_fewer_than_min_again_calls_the_last_call_off() -> None:
    tally = gathering(fresh("ab"))
    _, notes = step(tally, Notes(), NOW, "new")
    tally.remove("a")
    assert step(tally, notes, NOW + 29, "new") == (Wait(), Notes())
    tally.put("a", record("a2"), 9)
    ends = NOW + 29 + 30
    assert step(tally, Notes(), NOW + 29, "new") == (Wait(ends), Notes(last_call_ends=ends))


def test_fewer_than_min_when_the_last_call_ends_does_not_form() -> None:
    assert step(gathering(fresh("a")), Notes(last_call_ends=NOW), NOW, "new") == (Wait(), Notes())


def test_the_last_call_is_never_extended_by_arrivals() -> None:
    tally = gathering(fresh("ab"))
    _, notes = step(tally, Notes(), NOW, "new")
    tally.put("c", record("c1"), 9)
    ends = NOW + 30
    assert step(tally, notes, NOW + 29.5, "new") == (Wait(ends), Notes(last_call_ends=ends))
    decision, _ = step(tally, notes, ends, "new")
    assert isinstance(decision, Form)
    assert list(decision.seats) == ["a", "b", "c"]


def test_a_new_coordinator_starts_the_last_call_anew() -> None:
    tally = gathering(fresh("ab"))
    assert step(tally, Notes(), NOW + 25, "new") == (Wait(NOW + 55), Notes(last_call_ends=NOW + 55))


def test_joins_while_gathering_do_not_write_the_head() -> None:
    for names in ("", "a", "ab", "abc"):
        decision, _ = step(gathering(fresh(names)), Notes(), NOW, "new")
        assert isinstance(decision, Wait)


# Formed


def test_members_keep_the_round_until_all_are_accounted_for() -> None:
    assert step(held("abc", fresh("abc")), Notes(), NOW, "new") == (Wait(), Notes())


def test_a_newcomer_waits_and_members_learn_of_it_at_once() -> None:
    tally = held("ab", fresh("abx"))
    assert step(tally, Notes(), NOW, "new") == (Rewrite(replace(tally.head, waiting=1)), Notes(counted_at=NOW))


def test_a_member_that_returned_counts_as_waiting() -> None:
    tally = held("ab", fresh("a") | back("b", "ab"))
    assert step(tally, Notes(), NOW, "new") == (
        Rewrite(replace(tally.head, waiting=1, returned=1)),
        Notes(counted_at=NOW),
    )


def test_a_member_that_died_or_left_counts_as_lost() -> None:
    tally = held("abc", fresh("ac"))
    assert step(tally, Notes(), NOW, "new") == (Rewrite(replace(tally.head, lost=1)), Notes(counted_at=NOW))


def test_a_lost_member_that_is_back_waits_and_is_no_longer_lost() -> None:
    tally = held("ab", fresh("a") | {"b": record("b2")}, lost=1)
    assert step(tally, Notes(), NOW, "new")[0] == Rewrite(replace(tally.head, waiting=1, returned=1, lost=0))


def test_waiting_is_returned_plus_newcomers_for_whom_there_is_room() -> None:
    tally = held("abc", fresh("ab") | back("c", "abc") | fresh("xyz"))
    assert step(tally, Notes(), NOW, "new")[0] == Rewrite(replace(tally.head, waiting=2, returned=1))


def test_spares_never_count() -> None:
    tally = held("abcd", fresh("abcd") | fresh("xyz"))
    assert step(tally, Notes(), NOW, "new") == (Wait(), Notes())


def test_a_place_that_frees_makes_a_spare_wait_for_it() -> None:
    tally = held("abcd", fresh("abc") | fresh("xyz"))
    assert step(tally, Notes(), NOW, "new")[0] == Rewrite(replace(tally.head, waiting=1, lost=1))


def test_counts_fall_again() -> None:
    tally = held("ab", fresh("ab"), waiting=2)
    assert step(tally, Notes(), NOW, "new")[0] == Rewrite(replace(tally.head, waiting=0))


def test_the_first_change_is_written_at_once_and_later_ones_every_100_ms() -> None:
    assert COUNT_EVERY == 0.1
    tally = held("ab", fresh("abx"))
    decision, notes = step(tally, Notes(), NOW, "new")
    assert isinstance(decision, Rewrite)
    tally.follow(decision.head)
    tally.put("y", record("y1"), 9)
    assert step(tally, notes, NOW + 0.04, "new") == (Wait(NOW + COUNT_EVERY), notes)
    later = NOW + COUNT_EVERY
    assert step(tally, notes, later, "new") == (Rewrite(replace(tally.head, waiting=2)), Notes(counted_at=later))


def test_a_large_world_is_told_of_counts_less_often() -> None:
    names = [f"n{number}" for number in range(2000)]
    tally = held(names, fresh(names[1:]))
    notes = Notes(counted_at=NOW)
    assert step(tally, notes, NOW + COUNT_EVERY, "new") == (Wait(NOW + 2000 * COUNT_EVERY_PER_MEMBER), notes)
    assert isinstance(step(tally, notes, NOW + 0.4, "new")[0], Rewrite)


def test_the_rate_is_kept_when_counts_fall_back_in_between() -> None:
    tally = held("ab", fresh("ab"))
    notes = Notes(counted_at=NOW)
    assert step(tally, notes, NOW + 0.01, "new") == (Wait(), notes)
    tally.put("x", record("x1"), 9)
    assert step(tally, notes, NOW + 0.02, "new") == (Wait(NOW + COUNT_EVERY), notes)


def test_a_rewritten_head_copies_the_token() -> None:
    decision, _ = step(held("ab", fresh("abx")), Notes(), NOW, "new")
    assert isinstance(decision, Rewrite)
    assert decision.head.token == STAMP


def test_when_all_are_accounted_for_gathering_begins() -> None:
    tally = held("abc", back("b", "abc"), waiting=1, lost=1)
    head = replace(tally.head, phase=Phase.GATHERING, waiting=0, lost=0)
    assert step(tally, Notes(counted_at=NOW), NOW, "new") == (Rewrite(head), Notes())


def test_when_all_are_lost_gathering_begins() -> None:
    tally = held("ab", {}, lost=1)
    head = replace(tally.head, phase=Phase.GATHERING, waiting=0, lost=0)
    assert step(tally, Notes(), NOW, "new") == (Rewrite(head), Notes())


def test_when_all_are_back_with_max_the_next_round_forms_at_once() -> None:
    tally = held("abcd", back("dcba", "abcd"), waiting=3)
    seats = {name: seat(rank, f"{name}2", round=2) for rank, name in enumerate("abcd")}
    assert step(tally, Notes(), NOW, "new") == (Form(new_head(4, round=2), seats), Notes())


def test_the_last_call_runs_on_while_the_phase_is_written() -> None:
    tally = held("ab", back("ab", "ab"))
    decision, notes = step(tally, Notes(), NOW, "new")
    assert isinstance(decision, Rewrite)
    tally.follow(decision.head)
    assert step(tally, notes, NOW + 1, "new") == (Wait(NOW + 3), notes)
    formed_, _ = step(tally, notes, NOW + 3, "new")
    assert formed_ == Form(new_head(2, round=2), {"a": seat(0, "a2", 2), "b": seat(1, "b2", 2)})


# Spares and forming


def test_candidates_beyond_max_are_spares_and_get_no_seat() -> None:
    decision, _ = step(gathering(fresh("abcdef")), Notes(), NOW, "new")
    assert isinstance(decision, Form)
    assert decision.head == new_head(4)
    assert list(decision.seats) == list("abcd")


def test_members_of_the_last_round_come_before_newcomers() -> None:
    tally = held("abc", fresh("xyz") | back("cb", "abc"))
    decision, _ = step(tally, Notes(), NOW, "new")
    assert isinstance(decision, Form)
    assert {name: given.rank for name, given in decision.seats.items()} == {"b": 0, "c": 2, "x": 1, "y": 3}


def test_the_next_round_is_one_more_than_anybody_remembers() -> None:
    roster = {"a": record("a1", last=(9, 0)), **fresh("bcd")}
    decision, _ = step(gathering(roster), Notes(), NOW, "new")
    assert isinstance(decision, Form)
    assert decision.head == new_head(4, round=10)
    assert {given.round for given in decision.seats.values()} == {10}


def test_the_forming_head_has_no_token() -> None:
    decision, _ = step(held("abcd", back("abcd", "abcd")), Notes(), NOW, "new")
    assert isinstance(decision, Form)
    assert decision.head.token is None


def test_a_seat_carries_what_its_node_says_about_itself() -> None:
    roster = {"a": record("a1", address="10.0.0.1", labels={"rack": "red"}), **fresh("b")}
    decision, _ = step(gathering(roster), Notes(last_call_ends=NOW), NOW, "new")
    assert isinstance(decision, Form)
    assert decision.seats["a"] == Seat(
        round=1, attempt="new", arrival="a1", rank=0, address="10.0.0.1", labels={"rack": "red"}
    )


def test_nodes_with_other_settings_are_no_candidates() -> None:
    roster = fresh("a") | {"x": record("x1", settings=OTHER)}
    assert step(gathering(roster), Notes(), NOW, "new") == (Wait(), Notes())


# Leave, loss and close are three things


def test_leaving_or_dying_never_closes_for_the_others() -> None:
    tally = held("abc", fresh("a"))
    decision, _ = step(tally, Notes(), NOW, "new")
    assert decision == Rewrite(replace(tally.head, lost=2))
    assert decision.head.closed is None


@pytest.mark.parametrize("roster", [fresh("ab"), fresh("abx"), back("ab", "ab"), back("ab", "ab") | fresh("xy"), {}])
def test_closed_is_final_for_the_coordinator(roster: dict[str, Node]) -> None:
    head, seats = formed("ab")
    tally = roster_of(replace(head, closed=CLOSED), seats, roster)
    assert step(tally, Notes(last_call_ends=NOW), NOW, "new") == (Wait(), Notes())


# A wait says until when


@given(
    names=st.text("abcdxyz", max_size=7),
    seated=st.sampled_from(["", "ab", "abcd"]),
    returned=st.booleans(),
    notes=st.builds(
        Notes,
        last_call_ends=st.none() | st.floats(NOW - 50, NOW + 50),
        counted_at=st.none() | st.floats(NOW - 1, NOW),
    ),
)
def test_a_wait_ends_in_the_future_or_never(names: str, seated: str, returned: bool, notes: Notes) -> None:
    roster = fresh("".join(sorted(set(names))), 2 if returned else 1)
    tally = held(seated, roster) if seated else gathering(roster)
    decision, _ = step(tally, notes, NOW, "new")
    if isinstance(decision, Wait) and decision.until is not None:
        assert decision.until > NOW


@given(names=st.text("abcdxyz", max_size=7), seated=st.sampled_from(["", "ab", "abcd"]))
def test_a_step_that_was_done_is_not_asked_for_again(names: str, seated: str) -> None:
    roster = fresh("".join(sorted(set(names))))
    tally = held(seated, roster) if seated else gathering(roster)
    decision, notes = step(tally, Notes(), NOW, "new")
    match decision:
        case Rewrite(head):
            tally.follow(head)
        case Form(head, seats):
            tally = tally.succeeded_by(head.stamped(STAMP), seats)
        case Wait() | HandOver():
            pass
    assert not isinstance(step(tally, notes, NOW, "newer")[0], Rewrite | Form)


# Admission


def read(
    head: Head | None,
    seat: Seat | None = None,
    arrival: str = "a1",
    last: Last | None = None,
    settings: Settings = TWO_TO_FOUR,
) -> object:
    return admit(head, seat, arrival, settings, last)


def test_admit_waits_while_there_is_no_state() -> None:
    assert read(None) == Pending()


def test_admit_waits_while_gathering() -> None:
    assert read(Head(settings=TWO_TO_FOUR)) == Pending()


def test_admit_accepts_a_seat_of_this_arrival_and_the_heads_attempt() -> None:
    head, seats = formed("ab", round=3)
    assert read(head, seats["a"]) == Joined(round=3, rank=0, size=2, token=STAMP)


def test_admit_refuses_the_seat_of_another_arrival() -> None:
    head, seats = formed("ab")
    assert read(head, seats["a"], arrival="a2", last=Last(1, 0)) == Pending()


def test_admit_refuses_a_seat_before_the_head_names_its_attempt() -> None:
    head, _ = formed("ab")
    assert read(head, seat(0, "a1", round=2, attempt="under way")) == Pending()


def test_admit_tells_a_spare_that_the_world_is_full() -> None:
    head, _ = formed("abcd")
    assert read(head, arrival="x1") == Pending(spare=True)


def test_admit_tells_a_newcomer_with_room_that_it_is_no_spare() -> None:
    head, _ = formed("abc")
    assert read(head, arrival="x1") == Pending(spare=False)


def test_a_spare_is_none_when_a_place_frees() -> None:
    head, _ = formed("abcd", lost=1)
    assert read(head, arrival="x1") == Pending(spare=False)


def test_a_spare_is_none_while_the_next_round_gathers() -> None:
    head, _ = formed("abcd")
    assert read(replace(head, phase=Phase.GATHERING), arrival="x1") == Pending(spare=False)


def test_a_member_that_returned_is_no_spare() -> None:
    head, _ = formed("abcd")
    assert read(head, arrival="a2", last=Last(1, 0)) == Pending(spare=False)


def test_a_member_of_an_older_round_may_be_a_spare() -> None:
    head, _ = formed("abcd", round=5)
    assert read(head, arrival="x2", last=Last(4, 0)) == Pending(spare=True)


def test_config_mismatch_is_told() -> None:
    head, seats = formed("ab")
    assert read(head, seats["a"], settings=OTHER) == Mismatch(TWO_TO_FOUR)


def test_closed_beats_formed() -> None:
    head, seats = formed("ab")
    assert read(replace(head, closed=CLOSED), seats["a"]) == Shut(CLOSED)


def test_closed_beats_mismatch() -> None:
    assert read(Head(settings=TWO_TO_FOUR, closed=CLOSED), settings=OTHER) == Shut(CLOSED)


def test_a_member_that_learns_of_its_round_and_of_the_close_at_once_is_no_spare() -> None:
    head, seats = formed("abcd")
    assert read(replace(head, closed=CLOSED), seats["a"]) == Shut(CLOSED, spare=False)
    assert read(replace(head, closed=CLOSED), replace(seats["a"], attempt="old")) == Shut(CLOSED, spare=True)
    assert read(replace(head, closed=CLOSED), seats["a"], arrival="a2") == Shut(CLOSED, spare=True)


def test_closed_tells_a_spare_from_others() -> None:
    head, _ = formed("abcd")
    assert read(replace(head, closed=CLOSED), arrival="x1") == Shut(CLOSED, spare=True)


# What happens to a world

HELD = Joined(round=1, rank=0, size=2, token=STAMP)


def test_nothing_has_changed() -> None:
    assert change_of(formed("ab")[0], HELD) is None


def test_nodes_waiting() -> None:
    assert change_of(formed("ab", waiting=1)[0], HELD) is Change.NODES_WAITING


def test_member_lost_beats_nodes_waiting() -> None:
    assert change_of(formed("ab", waiting=1, lost=1)[0], HELD) is Change.MEMBER_LOST


def test_a_head_of_a_higher_round_evicts() -> None:
    assert change_of(formed("bc", round=2)[0], HELD) is Change.EVICTED


def test_a_head_of_another_history_evicts() -> None:
    assert change_of(replace(formed("ab")[0], token=("other epoch", 7)), HELD) is Change.EVICTED


def test_gathering_without_this_node_evicts() -> None:
    assert change_of(replace(formed("ab")[0], phase=Phase.GATHERING), HELD) is Change.EVICTED


def test_no_state_evicts() -> None:
    assert change_of(None, HELD) is Change.EVICTED


@pytest.mark.parametrize("head", [formed("ab", waiting=1, lost=1)[0], formed("bc", round=2)[0]])
def test_closed_beats_every_other_change(head: Head) -> None:
    assert change_of(replace(head, closed=CLOSED), HELD) is Change.CLOSED


def test_changes_are_listed_the_most_final_first() -> None:
    assert [change.name for change in Change] == ["CLOSED", "EVICTED", "MEMBER_LOST", "RESIZED", "NODES_WAITING"]


def test_everything_that_is_true_is_told() -> None:
    assert changes_of(formed("ab", waiting=1, lost=1)[0], HELD) == (Change.MEMBER_LOST, Change.NODES_WAITING)
    assert changes_of(formed("ab")[0], HELD) == ()


def test_the_counts_of_another_round_are_not_about_this_world() -> None:
    assert changes_of(formed("bc", round=2, waiting=1, lost=1)[0], HELD) == (Change.EVICTED,)


def test_the_end_of_the_world_is_always_wanted() -> None:
    both = (Change.MEMBER_LOST, Change.NODES_WAITING)
    assert first_wanted(both, both) is Change.MEMBER_LOST
    assert first_wanted(both, (Change.NODES_WAITING,)) is Change.NODES_WAITING
    assert first_wanted(both, (Change.EVICTED,)) is None
    assert first_wanted((Change.EVICTED,), (Change.NODES_WAITING,)) is Change.EVICTED
    assert first_wanted((Change.CLOSED,), ()) is Change.CLOSED


def test_admit_waits_for_the_token_of_the_round() -> None:
    """A head as it was committed, before its entry's revision was read, has none to fence with."""
    head, seats = formed("ab")
    unstamped = msgspec.structs.replace(head, token=None)
    assert admit(unstamped, seats["a"], "a1", TWO_TO_FOUR, None) == Pending()
