"""The rules of a round where not every size is valid, newcomers are held back, or the run was scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from rendezvous_async.core.agreement import is_abandoned
from rendezvous_async.core.rules import (
    COUNT_EVERY,
    Change,
    Form,
    HandOver,
    Joined,
    Mismatch,
    Notes,
    Pending,
    Rewrite,
    Wait,
    admit,
    change_of,
    changes_of,
    step,
)
from rendezvous_async.core.spec import Spec, let_in, rescaled, spec_of
from rendezvous_async.core.state import WORLD_SHAPE, Head, Last, Node, Phase
from rendezvous_async.core.tally import Tally
from rendezvous_async.settings import Settings, settings_for
from rendezvous_async.sizes import parse_sizes
from tests.core.make import STAMP, TWO_TO_FOUR, formed, gathering, record, roster_of

NOW = 1000.0
EVENS = settings_for(parse_sizes("2:6:2"))
PAIRS = settings_for(parse_sizes("2:6"), domain="rack", per_domain=2)
SLOW = settings_for(parse_sizes("2:6"), grow=5.0)
BY_HAND = settings_for(parse_sizes("2:6"), grow=math.inf)


def fresh(names: Iterable[str], settings: Settings = EVENS, number: int = 1) -> dict[str, Node]:
    """Return records of newcomers; with domains, small and capital letters are one each, and a digit has none."""
    racks = {name: {} if name.isdigit() else {"rack": "low" if name.islower() else "up"} for name in names}
    return {name: record(f"{name}{number}", settings=settings, labels=racks[name]) for name in names}


def held(members: str, others: str = "", settings: Settings = EVENS, gone: str = "") -> Tally:
    """Return the tally of round 1 of ``members``, of whom some have gone, with newcomers."""
    head, seats = formed(members, settings=settings)
    here = [name for name in members if name not in gone]
    return roster_of(head, seats, fresh([*here, *others], settings))


def back(names: str, members: str, settings: Settings = EVENS) -> dict[str, Node]:
    records = fresh(names, settings, 2)
    return {name: replace(value, last=Last(1, members.index(name))) for name, value in records.items()}


def members_of(decision: object) -> str:
    assert isinstance(decision, Form)
    return "".join(sorted(decision.seats, key=lambda node: decision.seats[node].rank))


# Gathering


def test_the_last_call_runs_for_any_valid_world_and_takes_the_largest() -> None:
    tally = gathering(fresh("a"), EVENS)
    assert step(tally, Notes(), NOW, "new") == (Wait(), Notes())
    tally = gathering(fresh("abcde"), EVENS)
    ends = NOW + EVENS.last_call
    assert step(tally, Notes(), NOW, "new") == (Wait(ends), Notes(last_call_ends=ends))
    assert members_of(step(tally, Notes(last_call_ends=ends), ends, "new")[0]) == "abcd"


def test_the_largest_world_forms_at_once() -> None:
    assert members_of(step(gathering(fresh("abcdefg"), EVENS), Notes(), NOW, "new")[0]) == "abcdef"


def test_without_a_valid_world_the_last_call_is_off() -> None:
    tally = gathering(fresh("abC", PAIRS), PAIRS)
    _, notes = step(tally, Notes(), NOW, "new")
    assert notes.last_call_ends is not None
    tally.remove("a")
    assert step(tally, notes, NOW + 1, "new") == (Wait(), Notes()), "two are here, and no domain is whole"


def test_domains_are_whole_and_side_by_side() -> None:
    tally = gathering(fresh("aB1cDEf", PAIRS), PAIRS)
    assert members_of(step(tally, Notes(last_call_ends=NOW), NOW, "new")[0]) == "acBD"


def test_a_gap_that_spares_fill_is_not_waited_for() -> None:
    head, seats = formed("abcd", settings=EVENS)
    tally = roster_of(head, seats, back("acd", "abcd") | fresh("x"))
    assert members_of(step(tally, Notes(), NOW, "new")[0]) == "axcd"


def test_a_gap_that_nobody_fills_is_waited_for() -> None:
    head, seats = formed("abcd", settings=EVENS)
    tally = roster_of(replace(head, phase=Phase.GATHERING), seats, back("acd", "abcd"))
    ends = NOW + EVENS.regroup
    assert step(tally, Notes(), NOW, "new") == (Wait(ends), Notes(last_call_ends=ends))


def test_a_world_that_lost_nobody_waits_for_more() -> None:
    head, seats = formed("abcd", settings=EVENS)
    tally = roster_of(replace(head, phase=Phase.GATHERING), seats, back("abcd", "abcd"))
    assert isinstance(step(tally, Notes(), NOW, "new")[0], Wait)


def test_strangers_after_a_loss_do_not_cut_the_last_call_short() -> None:
    head, seats = formed("abcd", settings=EVENS)
    tally = roster_of(replace(head, phase=Phase.GATHERING), seats, fresh("vwxy"))
    assert isinstance(step(tally, Notes(), NOW, "new")[0], Wait), "no survivor is here"


# Waiting


def waiting(tally: Tally, notes: Notes = Notes(), now: float = NOW) -> int:  # noqa: B008 - frozen
    decision, _ = step(tally, notes, now, "new")
    return decision.head.waiting if isinstance(decision, Rewrite) else tally.head.waiting


def test_leftovers_never_count() -> None:
    assert waiting(held("abcd", "x")) == 0
    assert waiting(held("abcd", "xy")) == 2
    assert waiting(held("abcd", "xyz")) == 2
    assert waiting(held("abcdef", "xyz")) == 0


def test_newcomers_of_domains_that_are_not_whole_never_count() -> None:
    assert waiting(held("ab", "C1", PAIRS)) == 0
    assert waiting(held("ab", "CD1", PAIRS)) == 2
    assert waiting(held("ab", "cDE", PAIRS)) == 2


def test_after_a_loss_a_newcomer_counts_that_fills_the_gap() -> None:
    assert waiting(held("abcd", "x", gone="b")) == 1
    assert waiting(held("abcd", "xy", gone="b")) == 1
    assert waiting(held("abCD", "XY1", PAIRS, gone="b")) == 2, "those two make a pair of their own"
    assert waiting(held("abCD", "x", PAIRS, gone="b")) == 1


# Held back


def test_newcomers_are_held_back_and_the_head_says_so() -> None:
    tally = held("ab", "x", SLOW)
    counted = replace(tally.head, held_back=1)
    notes = Notes(counted_at=NOW, held_since=NOW)
    assert step(tally, Notes(), NOW, "new") == (Rewrite(counted), notes)
    tally.follow(counted)
    assert step(tally, notes, NOW + 1, "new") == (Wait(NOW + 5), notes)
    let_in_now = replace(counted, held_back=0, waiting=1, let_in=True)
    later = NOW + 5
    assert step(tally, notes, later, "new") == (Rewrite(let_in_now), Notes(counted_at=later, held_since=NOW))
    tally.follow(let_in_now)
    assert step(tally, notes, later + 1, "new")[0] == Wait()


def test_the_time_is_that_of_the_first_who_came() -> None:
    tally = held("ab", "x", SLOW)
    decision, notes = step(tally, Notes(), NOW, "new")
    assert isinstance(decision, Rewrite)
    tally.follow(decision.head)
    tally.put("y", fresh("y", SLOW)["y"], 99)
    decision, notes = step(tally, notes, NOW + 4, "new")
    assert decision == Rewrite(replace(tally.head, held_back=2))
    tally.follow(replace(tally.head, held_back=2))
    assert step(tally, notes, NOW + 4, "new")[0] == Wait(NOW + 5)
    assert waiting(tally, notes, NOW + 5) == 2


def test_the_time_is_kept_while_a_count_has_to_wait() -> None:
    tally = held("ab", "x", SLOW)
    tally.follow(replace(tally.head, held_back=1))
    soon = NOW + 5 + COUNT_EVERY / 2
    notes = Notes(counted_at=NOW + 5, held_since=NOW)
    decision, after = step(tally, notes, soon, "new")
    assert decision == Wait(NOW + 5 + COUNT_EVERY)
    assert after == notes
    assert waiting(tally, after, NOW + 5 + COUNT_EVERY) == 1


def test_who_has_gone_again_starts_no_time() -> None:
    tally = held("ab", "x", SLOW)
    _, notes = step(tally, Notes(), NOW, "new")
    tally.remove("x")
    decision, notes = step(tally, notes, NOW + 3, "new")
    assert (decision, notes.held_since) == (Wait(), None)


def test_nobody_is_held_back_who_completes_the_world_or_when_the_round_ends_anyway() -> None:
    assert waiting(held("abcd", "x", BY_HAND)) == 0
    assert waiting(held("abcd", "xy", BY_HAND)) == 2
    assert waiting(held("abcd", "x", BY_HAND, gone="b")) == 1
    head, seats = formed("ab", settings=BY_HAND)
    assert waiting(roster_of(head, seats, fresh("ax", BY_HAND) | back("b", "ab", BY_HAND))) == 2


def test_once_let_in_nobody_is_held_back() -> None:
    tally = held("ab", "x", BY_HAND)
    tally.follow(let_in(replace(tally.head, held_back=1)))
    assert tally.head.waiting == 1
    assert step(tally, Notes(), NOW, "new")[0] == Wait(), "a new coordinator, too, leaves it at that"
    tally.put("y", fresh("y", BY_HAND)["y"], 99)
    assert waiting(tally) == 2


def test_letting_in_changes_nothing_without_anybody_to_let_in() -> None:
    head, _ = formed("ab", settings=BY_HAND)
    assert let_in(head) is head
    early = replace(head, phase=Phase.GATHERING, held_back=1)
    assert let_in(early) is early
    asked = replace(head, waiting=1, let_in=True)
    assert let_in(asked) is asked
    early = rescaled(replace(head, phase=Phase.GATHERING), "2:8", None)
    assert let_in(early) is early
    plain = rescaled(formed("ab")[0], "2:8", None)
    assert let_in(plain) is plain


def followed(tally: Tally, head: Head) -> Head:
    """Return the head after a coordinator has counted under ``head``."""
    tally.follow(head)
    decision, _ = step(tally, Notes(), NOW, "new")
    return decision.head if isinstance(decision, Rewrite) else head


def test_scaling_does_not_undo_that_newcomers_were_let_in() -> None:
    tally = held("ab", "x", BY_HAND)
    asked = let_in(replace(tally.head, held_back=1))
    scaled = rescaled(asked, "2:8", None)
    assert (scaled.waiting, scaled.held_back) == (0, 0), "nobody restarts for the old count"
    counted = followed(tally, scaled)
    assert (counted.waiting, counted.held_back, counted.let_in, counted.uncounted) == (1, 0, True, False)


@pytest.mark.parametrize("members", ["ab", "abcdef"], ids=["held back before", "no place before"])
def test_newcomers_may_be_let_in_right_after_scaling(members: str) -> None:
    tally = held(members, "x", BY_HAND)
    scaled = rescaled(followed(tally, tally.head), "2:8", None)
    assert followed(tally, scaled).held_back == 1, "scaling lets nobody in"
    counted = followed(tally, let_in(scaled))
    assert (counted.waiting, counted.held_back, counted.let_in, counted.uncounted) == (1, 0, True, False)


def test_letting_in_after_scaling_is_over_when_nobody_was_there() -> None:
    tally = held("ab", "", BY_HAND)
    counted = followed(tally, let_in(rescaled(tally.head, "2:8", None)))
    assert (counted.let_in, counted.uncounted) == (False, False)
    tally.put("x", fresh("x", BY_HAND)["x"], 99)
    assert followed(tally, counted).held_back == 1


def test_a_new_round_begins_with_nobody_let_in() -> None:
    head, _ = formed("ab", settings=BY_HAND)
    head = replace(head, let_in=True, uncounted=True)
    for after in (head.gathering(), head.under(EVENS)):
        assert (after.let_in, after.uncounted) == (False, False)


def test_newcomers_are_held_back_until_called_for_ever() -> None:
    tally = held("ab", "x", BY_HAND)
    tally.follow(replace(tally.head, held_back=1))
    assert step(tally, Notes(held_since=NOW), NOW + 1e9, "new")[0] == Wait()


# Spares


@pytest.mark.parametrize("settings", [EVENS, PAIRS, SLOW], ids=["sizes", "domains", "grow"])
def test_who_is_not_counted_is_a_spare(settings: Settings) -> None:
    head, _ = formed("ab", settings=settings)
    assert admit(head, None, "x1", settings, None) == Pending(spare=True)
    assert admit(replace(head, waiting=1), None, "x1", settings, None) == Pending(spare=False)
    assert admit(replace(head, waiting=1, returned=1), None, "x1", settings, None) == Pending(spare=True)
    assert admit(replace(head, lost=1), None, "x1", settings, None) == Pending(spare=False)
    assert admit(head, None, "a2", settings, Last(1, 0)) == Pending(spare=False)
    assert admit(replace(head, phase=Phase.GATHERING), None, "x1", settings, None) == Pending(spare=False)


def test_a_target_makes_the_world_full() -> None:
    head, _ = formed("ab")
    assert admit(rescaled(head, None, 2), None, "x1", TWO_TO_FOUR, None) == Pending(spare=True)
    assert admit(rescaled(head, None, 3), None, "x1", TWO_TO_FOUR, None) == Pending(spare=False)


# Scaled

HELD = Joined(round=1, rank=0, size=4, token=STAMP)


def test_a_world_that_is_too_large_now_is_resized() -> None:
    head = rescaled(formed("abcd")[0], "2:3", None)
    assert change_of(head, HELD) is Change.RESIZED
    assert changes_of(replace(head, lost=1, waiting=1), HELD) == (
        Change.MEMBER_LOST,
        Change.RESIZED,
        Change.NODES_WAITING,
    )
    assert change_of(rescaled(formed("abcd")[0], None, 3), HELD) is Change.RESIZED


@pytest.mark.parametrize(
    ("nodes", "target", "resized"),
    [
        ("2:8", None, False),
        ("4:8", None, False),
        ("5:8", None, False),
        ("3,8", None, True),
        ("6,8", None, False),
        ("2:8:3", None, True),
        (None, 4, False),
        (None, 2, True),
        ("2:8", 6, False),
    ],
)
def test_a_world_is_resized_only_if_a_smaller_one_can_be_made_of_it(
    nodes: str | None, target: int | None, resized: bool
) -> None:
    head = rescaled(formed("abcd", settings=Settings(2, 4))[0], nodes, target)
    assert (change_of(head, HELD) is Change.RESIZED) == resized


def test_a_world_that_is_too_small_now_waits_for_a_larger() -> None:
    head, seats = formed("ab")
    head = rescaled(head, "4:6:2", None)
    assert waiting(roster_of(head, seats, fresh("abx", TWO_TO_FOUR))) == 0
    assert waiting(roster_of(head, seats, fresh("abxyz", TWO_TO_FOUR))) == 2


def test_the_last_ranks_become_spares() -> None:
    head, seats = formed("abcd")
    tally = roster_of(rescaled(head, None, 2), seats, back("dcba", "abcd", TWO_TO_FOUR))
    decision, _ = step(tally, Notes(), NOW, "new")
    assert members_of(decision) == "ab"


def test_a_target_forms_at_once_and_is_never_exceeded() -> None:
    head = rescaled(Head(settings=TWO_TO_FOUR), "2:8", 3)
    tally = roster_of(head, {}, fresh("abcde", TWO_TO_FOUR))
    decision, _ = step(tally, Notes(), NOW, "new")
    assert members_of(decision) == "abc"
    assert isinstance(decision, Form)
    after = decision.head
    assert (after.settings, after.target, after.generation) == (head.settings, 3, 1)
    assert (after.origin, after.requires) == (TWO_TO_FOUR.fingerprint, (WORLD_SHAPE,))


def test_what_holds_now_is_followed_in_the_middle_of_a_round() -> None:
    tally = held("abcd", "xy", TWO_TO_FOUR)
    assert waiting(tally) == 0
    tally.follow(rescaled(tally.head, "2:6", None))
    assert waiting(tally) == 2


def test_the_count_of_newcomers_starts_over() -> None:
    head, _ = formed("ab", waiting=2)
    assert rescaled(head, None, 2).waiting == 0
    assert rescaled(replace(head, returned=1), None, 2).waiting == 1
    assert rescaled(replace(head, waiting=0, held_back=2), None, 2).held_back == 0


def test_nodes_bring_what_the_founder_brought() -> None:
    head = rescaled(formed("ab")[0], "2:8", None)
    assert head.accepts(TWO_TO_FOUR)
    assert not head.accepts(Settings(2, 8))
    assert admit(head, None, "x1", Settings(2, 8), None) == Mismatch(Settings(2, 8))
    again = rescaled(head, "2:9", None)
    assert again.origin == head.origin == TWO_TO_FOUR.fingerprint
    tally = roster_of(head, {}, fresh("ab", TWO_TO_FOUR) | fresh("x", Settings(2, 8)))
    assert tally.foreign == {"x"}


def test_more_nodes_with_other_settings_do_not_undo_what_was_scaled() -> None:
    others = Settings(3, 3)
    roster = fresh("a", TWO_TO_FOUR) | fresh("xy", others)
    decision, _ = step(gathering(roster, TWO_TO_FOUR), Notes(), NOW, "new")
    assert decision == HandOver(Head(settings=others))
    tally = roster_of(rescaled(Head(settings=TWO_TO_FOUR), "2:8", 3), {}, roster)
    assert step(tally, Notes(), NOW, "new")[0] == Wait()
    tally.remove("a")
    assert is_abandoned(tally), "the next node that comes replaces it"


def test_other_settings_replace_all_that_was_scaled() -> None:
    head = rescaled(Head(settings=TWO_TO_FOUR), "2:8", 3)
    assert head.under(Settings(3, 3)) == Head(settings=Settings(3, 3), requires=(WORLD_SHAPE,))


# The spec


def test_a_spec_says_what_holds() -> None:
    head = Head(settings=TWO_TO_FOUR)
    assert spec_of(head) == Spec("2:4")
    scaled = rescaled(head, [4, 8, 24], 8)
    assert spec_of(scaled) == Spec("4,8,24", 8, 1)
    assert str(spec_of(scaled)) == "4,8,24, target 8"
    assert spec_of(rescaled(scaled, None, 24)) == Spec("4,8,24", 24, 2)
    assert spec_of(rescaled(scaled, None, 0)) == Spec("4,8,24", None, 2)
    assert spec_of(rescaled(scaled, "2:4", None)) == Spec("2:4", None, 2), "with new sizes the old target is over"


def test_only_a_run_of_a_shape_requires_the_feature() -> None:
    assert Head(settings=TWO_TO_FOUR).requiring_its_features().requires == ()
    for settings in (EVENS, PAIRS, SLOW):
        assert Head(settings=settings).requiring_its_features().requires == (WORLD_SHAPE,)
        assert Head(settings=TWO_TO_FOUR).under(settings).requires == (WORLD_SHAPE,)
    head = Head(settings=EVENS, requires=(WORLD_SHAPE,))
    assert head.requiring_its_features() is head
    assert rescaled(Head(settings=TWO_TO_FOUR), "2:5", None).requires == (WORLD_SHAPE,)


def test_a_head_with_a_target_that_no_world_can_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="the nearest is 4"):
        Head(settings=TWO_TO_FOUR, target=5)
