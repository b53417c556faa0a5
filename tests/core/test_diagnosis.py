"""What a tired person reads: the texts of a status, whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import dedent

import msgspec
import pytest
from msgspec.structs import replace

from rendezvous_async.core.diagnosis import SHOW_AT_MOST, Absent, Present, Role, Status, diagnose
from rendezvous_async.core.shape import Shape, explain
from rendezvous_async.core.spec import Spec, rescaled
from rendezvous_async.core.state import Closed, Head, Node, Phase, Seat
from rendezvous_async.settings import Settings, settings_for
from rendezvous_async.sizes import parse_sizes
from tests.core.make import TWO_TO_FOUR, formed, record


def status(
    head: Head | None, seats: Mapping[str, Seat], roster: Mapping[str, Node], coordinator: str | None = "a"
) -> Status:
    records = [(name, node, order) for order, (name, node) in enumerate(roster.items(), start=1)]
    return diagnose("job-7", head, seats, records, coordinator)


def text(shown: Status) -> str:
    return str(shown)


def lines(expected: str) -> str:
    return dedent(expected).strip()


def fresh(names: str) -> dict[str, Node]:
    return {name: record(f"{name}1") for name in names}


def test_nobody_has_joined() -> None:
    shown = status(None, {}, {}, None)
    assert shown == Status(run_id="job-7")
    assert text(shown) == "run 'job-7': nobody has joined yet\n  here: nobody"


def test_too_few_are_here() -> None:
    shown = status(Head(settings=TWO_TO_FOUR), {}, {"a": record("a1", address="10.0.0.1")})
    assert shown == Status(
        run_id="job-7",
        settings=TWO_TO_FOUR,
        spec=Spec("2:4"),
        origin=TWO_TO_FOUR.fingerprint,
        fit=explain({"": 1}, Shape(TWO_TO_FOUR.sizes)),
        here=(Present("a", Role.WAITING, None, "10.0.0.1"),),
        missing=1,
        coordinator="a",
    )
    assert text(shown) == lines(
        """
        run 'job-7': gathering its first round; 1 of 2 to 4 nodes are at the barrier
          here: a (waiting)
          next: 1 more must join before a round can form
          coordinator: a
        """
    )


def test_one_node_is_not_1_nodes() -> None:
    shown = Status(run_id="job-7", settings=Settings(1, 1), missing=1)
    assert text(shown).startswith("run 'job-7': gathering its first round; 0 of 1 node is at the barrier")


def test_the_last_call_runs() -> None:
    shown = status(Head(settings=TWO_TO_FOUR), {}, fresh("abc"))
    assert text(shown) == lines(
        """
        run 'job-7': gathering its first round; 3 of 2 to 4 nodes are at the barrier
          here: a (waiting), b (waiting), c (waiting)
          next: the last call runs: a round forms within 30 s (3 s with survivors), or at once with 4 nodes
          coordinator: a
        """
    )


def test_nobody_coordinates() -> None:
    shown = status(Head(settings=TWO_TO_FOUR), {}, fresh("a"), None)
    assert text(shown).endswith("coordinator: none yet; a live node takes the post by itself")


def test_a_round_is_held() -> None:
    head, seats = formed("ab", round=3)
    shown = status(head, seats, fresh("ab"))
    assert (shown.round, shown.phase, shown.missing) == (3, Phase.FORMED, 0)
    assert text(shown) == lines(
        """
        run 'job-7': round 3 is formed; 2 of its 2 members hold it
          here: a (member, rank 0), b (member, rank 1)
          next: nothing is due; the members keep the round
          coordinator: a
        """
    )


def test_others_wait_for_members_to_return() -> None:
    head, seats = formed("abcd", round=3)
    roster = fresh("xyz") | fresh("ab") | {"c": record("c2", last=(3, 2))}
    shown = status(head, seats, roster)
    assert shown.absent == (Absent("d", 3),)
    assert shown.nodes(Role.SPARE) == ["y", "z"]
    assert text(shown) == lines(
        """
        run 'job-7': round 3 is formed; 2 of its 4 members hold it
          here: a (member, rank 0), b (member, rank 1), c (back, rank 2), x (waiting), y (spare), z (spare)
          not back: d (rank 3 in round 3)
          next: the next round gathers when these return or leave: a, b
          coordinator: a
        """
    )


def test_spares_alone_change_nothing() -> None:
    head, seats = formed("abcd")
    shown = status(head, seats, fresh("abcd") | fresh("xy"))
    assert shown.nodes(Role.SPARE) == ["x", "y"]
    assert "next: nothing is due; the members keep the round" in text(shown)


def test_members_of_a_world_that_is_too_large_now_go_back() -> None:
    head, seats = formed("abc")
    went = text(status(rescaled(head, "1:2", None), seats, fresh("abc")))
    assert "next: the members go back to the barrier: worlds of 3 are no longer allowed, only 1:2" in went
    odd = text(status(rescaled(head, "2:8:2", None), seats, fresh("abc")))
    assert "worlds of 3 are no longer allowed, only 2:8:2" in odd
    kept = text(status(rescaled(head, "4:8", None), seats, fresh("abc")))
    assert "next: nothing is due; the members keep the round" in kept


def test_some_have_not_come_back() -> None:
    head, seats = formed("abc", round=3)
    shown = status(msgspec.structs.replace(head, phase=Phase.GATHERING), seats, {"b": record("b2", last=(3, 1))})
    assert text(shown) == lines(
        """
        run 'job-7': gathering a round after round 3; 1 of 2 to 4 nodes are at the barrier
          here: b (back, rank 1)
          not back: a (rank 0 in round 3), c (rank 2 in round 3)
          next: 1 more must join before a round can form
          coordinator: a
        """
    )


def test_nodes_with_other_settings_are_named() -> None:
    roster = fresh("a") | {"x": record("x1", settings=Settings(1, 9))}
    shown = status(Head(settings=TWO_TO_FOUR), {}, roster)
    assert shown.missing == 1
    assert text(shown) == lines(
        """
        run 'job-7': gathering its first round; 1 of 2 to 4 nodes are at the barrier
          here: a (waiting), x (foreign)
          next: 1 more must join before a round can form
          coordinator: a
          with other settings than '2:4 sticky last_call=30 regroup=3': x
        """
    )


def test_closed_says_who_and_why() -> None:
    head, seats = formed("ab")
    shown = status(msgspec.structs.replace(head, closed=Closed("training done", "a")), seats, fresh("a"))
    assert text(shown) == lines(
        """
        run 'job-7': closed by a: training done
          here: a (member, rank 0)
          left: b (rank 1 in round 1)
        """
    )
    assert shown.why() == ["closed by a: training done", "left: b (rank 1 in round 1)"]


def test_closed_without_a_word() -> None:
    shown = status(Head(settings=TWO_TO_FOUR, closed=Closed("", "")), {}, {})
    assert text(shown).startswith("run 'job-7': closed by an unnamed node: no reason given")


def test_a_thousand_nodes_are_not_a_thousand_names() -> None:
    settings = Settings(2000, 3000)
    roster = {f"node{number:04}": record(f"{number}", settings=settings) for number in range(1000)}
    shown = status(Head(settings=settings), {}, roster)
    assert len(shown.here) == 1000
    assert shown.missing == 1000
    assert f"node0015 (waiting) and {1000 - SHOW_AT_MOST} more" in text(shown)
    assert len(text(shown)) < 1000


def test_before_the_first_head_nodes_stand_in_the_order_of_their_arrival() -> None:
    here = diagnose(
        "job-7", None, {}, [("b", record("b1"), 3), ("c", record("c1"), 1), ("a", record("a1"), 2)], None
    ).here
    assert [each.node for each in here] == ["c", "a", "b"]


def test_those_without_a_rank_stand_last_in_the_order_of_their_arrival() -> None:
    head, seats = formed("ab")
    shown = status(head, seats, {"d": record("d1"), "b": record("b1"), "c": record("c1"), "a": record("a1")})
    assert [each.node for each in shown.here] == ["a", "b", "d", "c"]


def test_as_many_wait_as_there_are_places() -> None:
    """While gathering nobody holds a place: four of five are to be in."""
    shown = status(Head(settings=TWO_TO_FOUR), {}, fresh("abcde"))
    assert [each.role for each in shown.here] == [Role.WAITING] * 4 + [Role.SPARE]


def test_nobody_is_missing_from_a_run_that_is_closed() -> None:
    assert status(Head(settings=TWO_TO_FOUR, closed=Closed("done", "a")), {}, fresh("a")).missing == 0


def test_members_that_are_gone_are_waited_for_by_those_who_hold_the_round() -> None:
    head, seats = formed("ab", lost=1)
    shown = status(head, seats, {"a": record("a1")})
    assert "next: the next round gathers when these return or leave: a" in text(shown)


def test_a_round_that_nobody_holds_is_over() -> None:
    """All members are back: the next round gathers, whatever the head still says."""
    head, seats = formed("ab")
    shown = status(head, seats, {"a": record("a2", (1, 0)), "b": record("b2", (1, 1))})
    assert shown.phase is Phase.GATHERING
    assert "next: the last call runs" in text(shown)


def test_only_the_first_names_are_shown() -> None:
    names = [f"n{number:02}" for number in range(SHOW_AT_MOST + 1)]
    for count, ending in ((SHOW_AT_MOST, names[SHOW_AT_MOST - 1]), (SHOW_AT_MOST + 1, "and 1 more")):
        shown = Status(run_id="job", settings=TWO_TO_FOUR, damaged=tuple(names[:count]))
        assert text(shown).endswith(ending)


# The shape of worlds


def racks(names: str, settings: Settings) -> dict[str, Node]:
    """Return newcomers: small and capital letters are one rack each, a digit has no label."""
    labels = {name: {} if name.isdigit() else {"rack": "low" if name.islower() else "up"} for name in names}
    return {name: record(f"{name}1", settings=settings, labels=labels[name]) for name in names}


PAIRS = settings_for(parse_sizes("2:6:2"), domain="rack", per_domain=2)


def test_what_is_usable_and_what_is_left_over_and_why() -> None:
    shown = status(Head(settings=PAIRS), {}, racks("abA1", PAIRS))
    assert (shown.nodes(Role.WAITING), shown.nodes(Role.SPARE)) == (["a", "b"], ["A", "1"])
    assert shown.unlabelled == ("1",)
    assert shown.missing == 0
    usable = (
        "4 here, 2 usable: domain up has 1 of 2, 1 node without the label rack; 1 more node in domain up would make 4"
    )
    assert text(shown) == lines(
        f"""
        run 'job-7': gathering its first round; 4 of 2:6:2 nodes are at the barrier
          here: a (waiting), b (waiting), A (spare), 1 (spare)
          next: the last call runs: a round forms within 30 s (3 s with survivors), or at once with 6 nodes
          usable: {usable}
          spares without the label rack: 1
          coordinator: a
        """
    )


def test_too_few_of_any_domain_are_told_what_is_missing() -> None:
    shown = status(Head(settings=PAIRS), {}, racks("aA1", PAIRS))
    assert (shown.nodes(Role.WAITING), shown.nodes(Role.SPARE)) == (["a", "A"], ["1"])
    assert shown.missing == 1
    assert "next: 1 more in domain low or up must join before a round can form" in text(shown)
    assert "1 more node in domain low or up would make 2" in text(shown)


def test_nodes_without_the_label_do_not_help_and_it_says_which_would() -> None:
    any_rack = settings_for(parse_sizes("2:6"), domain="rack")
    shown = status(Head(settings=any_rack), {}, racks("a123", any_rack))
    assert "next: 1 more with the label rack must join before a round can form" in text(shown)
    assert "3 nodes without the label rack; 1 more node with the label rack would make 2" in text(shown)


def test_nodes_without_the_label_that_ranks_go_by_have_no_other_settings() -> None:
    by_rack = replace(TWO_TO_FOUR, ranks="label:rack")
    shown = status(Head(settings=by_rack), {}, racks("a12", by_rack))
    assert (shown.nodes(Role.SPARE), shown.unranked, shown.nodes(Role.FOREIGN)) == (["1", "2"], ("1", "2"), [])
    assert "next: 1 more must join before a round can form" in text(shown)
    assert "spares without the label rack: 1, 2" in text(shown)
    assert "other settings" not in text(shown)


def test_of_many_domains_that_one_node_would_make_whole_a_few_are_named() -> None:
    odd = {f"n{n}": record(f"n{n}1", settings=PAIRS, labels={"rack": f"r{n}"}) for n in range(6)}
    assert "1 more in domain r0 or r1 or r2 or r3 or 2 others must join" in text(status(Head(settings=PAIRS), {}, odd))


def test_it_says_so_while_a_world_is_held_too() -> None:
    head, seats = formed("ab", settings=PAIRS)
    shown = status(head, seats, racks("abcD", PAIRS))
    assert shown.nodes(Role.SPARE) == ["c", "D"]
    assert shown.fit is not None
    assert (shown.fit.usable, shown.fit.fill) == (2, ("low", "up"))
    assert "next: nothing is due; the members keep the round" in text(shown)
    assert "1 more node in domain low or up would make 4" in text(shown)
    shown = status(replace(head, waiting=2), seats, racks("abcDE", PAIRS))
    assert (shown.nodes(Role.WAITING), shown.nodes(Role.SPARE)) == (["D", "E"], ["c"])


def test_newcomers_who_are_held_back() -> None:
    slow = settings_for(parse_sizes("2:6"), grow=5.0)
    head, seats = formed("ab", settings=slow)
    roster = {name: record(f"{name}1", settings=slow) for name in "abcd"}
    shown = status(replace(head, held_back=2), seats, roster)
    assert shown.held_back == 2
    assert "next: the members keep the round; 2 newcomers will be let in after 5 s" in text(shown)
    by_hand = replace(slow, grow=math.inf)
    roster = {name: record(f"{name}1", settings=by_hand) for name in "abcd"}
    shown = status(replace(head, held_back=2, settings=by_hand), seats, roster)
    assert "2 newcomers will be let in by grow() (rdzv scale --grow) or by a loss" in text(shown)


@pytest.mark.parametrize("grow", [0.0, 5.0, math.inf])
def test_a_status_is_read_back_from_json(grow: float) -> None:
    settings = settings_for(parse_sizes("2:6:2"), domain="rack", per_domain=2, grow=grow)
    head, seats = formed("ab", settings=settings)
    shown = status(replace(rescaled(head, None, 4), held_back=2), seats, racks("abCD1", settings))
    data = msgspec.json.encode(shown)
    assert (b'"grow":null' in data) == (grow == math.inf)
    assert msgspec.json.decode(data, type=Status) == shown


def test_what_holds_since_the_run_was_scaled() -> None:
    head, seats = formed("ab")
    shown = status(rescaled(head, "2:8", 2), seats, fresh("abc"))
    assert shown.spec == Spec("2:8", 2, 1)
    assert shown.origin == TWO_TO_FOUR.fingerprint
    assert shown.nodes(Role.SPARE) == ["c"]
    assert "scaled: 2:8, target 2 (change 1; nodes still start with '2:4 sticky last_call=30 regroup=3')" in text(shown)
    assert "usable: 3 here, 2 usable: 2 is the target" in text(shown)


def test_a_plain_run_says_no_more_than_before() -> None:
    head, seats = formed("ab")
    assert "usable" not in text(status(head, seats, fresh("abc")))
