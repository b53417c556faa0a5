"""A tally kept up one record at a time says the same as one made from scratch."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core.shape import count_newcomers, largest_size
from rendezvous_async.core.state import Head, Last, Node, Seat
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.settings import Settings, settings_for
from rendezvous_async.sizes import parse_sizes
from tests.core.make import TWO_TO_FOUR, formed, gathering, record, roster_of

OTHER = Settings(1, 9)
PAIRS = settings_for(parse_sizes("2:12:2"), domain="rack", per_domain=2)
HEAD, SEATS = formed("abc", round=3)
Change: TypeAlias = tuple[str, Node | None]

changes = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.none()
        | st.builds(
            Node,
            arrival=st.sampled_from(["a1", "b1", "c1", "new1", "new2"]),
            fingerprint=st.sampled_from([TWO_TO_FOUR.fingerprint] * 3 + [OTHER.fingerprint]),
            last=st.none() | st.builds(Last, st.integers(1, 5), st.integers(0, 3)),
        ),
    ),
    max_size=25,
)


def picture(tally: Tally) -> dict[str, object]:
    """Return everything that a tally says."""
    return {
        "records": tally.records,
        "groups": (tally.holding, tally.returned, tally.newcomers, tally.foreign),
        "counts": (tally.live_members, tally.lost, tally.wanted, tally.at_barrier),
        "history": (tally.last_round, tally.has_survivor),
        "candidates": tally.candidates(),
    }


def play(tally: Tally, changes: list[Change]) -> dict[str, tuple[Node, int]]:
    """Give a tally one change after the other; return the roster that they add up to."""
    roster: dict[str, tuple[Node, int]] = {}
    for revision, (node, change) in enumerate(changes):
        if change is None:
            tally.remove(node)
            roster.pop(node, None)
        else:
            tally.put(node, change, revision)
            roster[node] = (change, revision)
    return roster


def from_scratch(head: Head, seats: dict[str, Seat], roster: dict[str, tuple[Node, int]]) -> Tally:
    return tally_of(head, seats, ((node, value, revision) for node, (value, revision) in roster.items()))


@given(changes)
def test_step_by_step_equals_from_scratch(changes: list[Change]) -> None:
    tally = Tally(HEAD, SEATS)
    roster = play(tally, changes)
    assert picture(tally) == picture(from_scratch(HEAD, SEATS, roster))


@given(changes, changes)
def test_a_new_round_equals_from_scratch(before: list[Change], after: list[Change]) -> None:
    tally = Tally(HEAD, SEATS)
    roster = play(tally, before)
    head, seats = formed("def", round=4, attempt="second")
    tally = tally.succeeded_by(head, seats)
    assert picture(tally) == picture(from_scratch(head, seats, roster))


@given(changes)
def test_everybody_is_in_exactly_one_group(changes: list[Change]) -> None:
    tally = Tally(HEAD, SEATS)
    roster = play(tally, changes)
    groups = (tally.holding, tally.returned, tally.newcomers, tally.foreign)
    assert set().union(*groups) == roster.keys()
    assert sum(map(len, groups)) == len(roster)


@given(changes)
def test_everybody_gone_leaves_nothing(changes: list[Change]) -> None:
    tally = Tally(HEAD, SEATS)
    for node in play(tally, changes):
        tally.remove(node)
    assert picture(tally) == picture(Tally(HEAD, SEATS))


def test_groups() -> None:
    tally = roster_of(
        HEAD,
        SEATS,
        {
            "a": record("a1"),
            "b": record("b2", last=(3, 1)),
            "d": record("d1"),
            "e": record("e1", settings=OTHER),
        },
    )
    assert tally.holding == {"a"}
    assert tally.returned == {"b"}
    assert tally.newcomers == {"d"}
    assert tally.foreign == {"e"}
    assert (tally.live_members, tally.lost, tally.wanted, tally.at_barrier) == (2, 1, 1, 2)
    assert repr(tally) == "<Tally round=3 formed holding=1 returned=1 newcomers=1 foreign=1>"


def test_seats_of_another_attempt_do_not_count() -> None:
    stale = {"z": Seat(round=3, attempt="lost attempt", arrival="z1", rank=0)}
    tally = roster_of(HEAD, SEATS | stale, {"z": record("z1")})
    assert tally.newcomers == {"z"}
    assert tally.lost == 3


def test_before_the_first_round_no_seat_counts() -> None:
    stale = {"a": Seat(round=1, attempt="", arrival="a1", rank=0)}
    tally = roster_of(Head(settings=TWO_TO_FOUR), stale, {"a": record("a1")})
    assert tally.newcomers == {"a"}


def test_a_node_without_the_label_that_ranks_go_by_is_no_candidate() -> None:
    settings = Settings(1, 4, "label:rack")
    bare = record("a1", settings=settings)
    labelled = record("b1", settings=settings, labels={"rack": "red"})
    tally = gathering({"a": bare, "b": labelled}, settings)
    assert tally.foreign == {"a"}
    assert tally.newcomers == {"b"}


def test_spares_are_not_wanted() -> None:
    head, seats = formed("abc")
    members = {name: record(f"{name}1") for name in "abc"}
    newcomers = {name: record(f"{name}1") for name in "xyz"}
    assert roster_of(head, seats, members | newcomers).wanted == 1
    assert roster_of(head, seats, members | newcomers | {"a": record("a2")}).wanted == 1
    del members["b"]
    assert roster_of(head, seats, members | newcomers).wanted == 2


@given(st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from(["", "r1", "r2", "r3", None])), max_size=40))
def test_whole_domains_are_counted_as_records_come_and_go(changes: list[tuple[str, str | None]]) -> None:
    head, seats = formed("abcd", settings=PAIRS)
    tally = Tally(head, seats)
    for order, (node, rack) in enumerate(changes):
        if rack is None:
            tally.remove(node)
        else:
            labels = {"rack": rack} if rack else {}
            tally.put(node, record(f"{node}1", settings=PAIRS, labels=labels), order)
        members, newcomers = tally.member_domains, tally.newcomer_domains
        assert tally.domains == {**members, **newcomers} | {
            rack: members[rack] + newcomers[rack] for rack in members if rack in newcomers
        }
        assert tally.size == largest_size(tally.domains, tally.shape)
        assert tally.wanted == count_newcomers(members, newcomers, tally.shape)


def test_the_size_follows_from_units_and_not_from_a_look_at_each_domain() -> None:
    """A step of a coordinator asks for it: with 10,000 domains each arrival cost 1.6 ms for it."""
    tally = gathering({f"n{i}": record(f"n{i}", settings=PAIRS, labels={"rack": f"r{i}"}) for i in range(5000)}, PAIRS)
    for _ in range(20_000):
        assert tally.size == tally.wanted == 0


def test_the_last_round_is_the_highest_that_anybody_remembers() -> None:
    assert gathering({"a": record("a1")}).last_round == 0
    assert gathering({"a": record("a1", last=(6, 0)), "b": record("b1", last=(4, 0))}).last_round == 6
    assert roster_of(HEAD, SEATS, {"a": record("a1", last=(2, 0))}).last_round == 3
    assert gathering({"a": record("a1", last=(6, 0), settings=OTHER)}).last_round == 6


def test_a_survivor_is_a_candidate_that_held_the_last_round() -> None:
    assert roster_of(HEAD, SEATS, {"a": record("a2", last=(3, 0))}).has_survivor
    assert not roster_of(HEAD, SEATS, {"x": record("x1", last=(2, 0))}).has_survivor
    assert not roster_of(HEAD, SEATS, {"x": record("x1")}).has_survivor


def test_a_node_with_other_settings_is_no_survivor() -> None:
    tally = roster_of(HEAD, SEATS, {"x": record("x1", last=(3, 0), settings=OTHER), "y": record("y1")})
    assert not tally.has_survivor


def test_only_members_of_the_last_round_keep_a_claim_to_their_rank() -> None:
    """A node that was in an older round comes back as a newcomer."""
    tally = roster_of(HEAD, SEATS, {"a": record("a2", (3, 0)), "d": record("d1", (2, 1)), "e": record("e1")})
    assert {each.node: each.rank for each in tally.candidates()} == {"a": 0, "d": None, "e": None}
