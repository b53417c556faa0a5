"""Who gets in, and who gets which rank: each clause of the design's rules, then their consequences for any roster."""

from __future__ import annotations

from itertools import groupby

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core.ranks import Candidate, assign_ranks, choose
from rendezvous_async.settings import Settings, settings_for
from rendezvous_async.sizes import Sizes

STICKY = Settings(1, 8)
SORTED = Settings(1, 8, "sorted")
BY_RACK = Settings(1, 8, "label:rack")


def survivors(**ranks: int) -> list[Candidate]:
    """Return survivors with these old ranks, who came in the order of the arguments."""
    return [Candidate(node, order, rank) for order, (node, rank) in enumerate(ranks.items(), start=1)]


def newcomers(names: str, first: int = 100) -> list[Candidate]:
    """Return newcomers, one per letter, who came in this order."""
    return [Candidate(node, order) for order, node in enumerate(names, start=first)]


def names_of(chosen: list[Candidate]) -> str:
    return "".join(candidate.node for candidate in chosen)


# Who gets in


def test_survivors_come_before_newcomers_by_old_rank_and_newcomers_first_come() -> None:
    candidates = [*newcomers("xy", first=1), *survivors(c=2, a=0)]
    assert names_of(choose(candidates, 8)) == "acxy"


def test_no_more_are_chosen_than_there_are_places() -> None:
    candidates = [*newcomers("xyz", first=1), *survivors(b=1, a=0)]
    assert names_of(choose(candidates, 3)) == "abx"
    assert names_of(choose(candidates, 1)) == "a"
    assert choose(candidates, 0) == []


def test_a_duplicate_claim_goes_to_the_earlier_arrival() -> None:
    late, early = Candidate("late", 9, rank=0), Candidate("early", 4, rank=0)
    assert choose([late, early], 8) == [early, msgspec.structs.replace(late, rank=None)]


def test_the_loser_of_a_duplicate_claim_is_a_newcomer_by_its_arrival() -> None:
    candidates = [Candidate("late", 9, rank=0), Candidate("early", 4, rank=0), *newcomers("x", first=5)]
    assert [candidate.node for candidate in choose(candidates, 8)] == ["early", "x", "late"]
    assert [candidate.node for candidate in choose(candidates, 2)] == ["early", "x"]


# Sticky, clause by clause


def test_sticky_1_survivors_with_a_rank_below_n_stay() -> None:
    chosen = choose(survivors(c=2, a=0, b=1), 8)
    assert assign_ranks(STICKY, chosen) == {"a": 0, "b": 1, "c": 2}


def test_sticky_2_other_survivors_take_the_lowest_free_ranks_by_old_rank() -> None:
    chosen = choose(survivors(f=6, a=0, e=5, d=3), 8)
    assert assign_ranks(STICKY, chosen) == {"a": 0, "e": 1, "f": 2, "d": 3}


def test_sticky_2_comes_before_3_so_a_high_survivor_may_fill_rank_0() -> None:
    chosen = choose(survivors(b=1, e=4), 8)
    assert assign_ranks(STICKY, chosen) == {"b": 1, "e": 0}


def test_sticky_3_if_0_is_free_the_lowest_survivor_moves_there() -> None:
    chosen = choose([*survivors(b=1, c=2), *newcomers("x")], 8)
    assert assign_ranks(STICKY, chosen) == {"b": 0, "c": 2, "x": 1}


def test_sticky_3_moves_one_survivor_only() -> None:
    chosen = choose([*survivors(c=2, d=3), *newcomers("xy")], 8)
    assert assign_ranks(STICKY, chosen) == {"c": 0, "d": 3, "x": 1, "y": 2}


def test_sticky_4_newcomers_fill_the_rest_first_come() -> None:
    chosen = choose([*newcomers("xyz"), *survivors(a=0, c=2)], 8)
    assert assign_ranks(STICKY, chosen) == {"a": 0, "x": 1, "c": 2, "y": 3, "z": 4}


def test_sticky_without_survivors_is_first_come() -> None:
    assert assign_ranks(STICKY, choose(newcomers("xyz"), 8)) == {"x": 0, "y": 1, "z": 2}


# Sorted and by label


def test_sorted_goes_by_address_and_node_as_text() -> None:
    chosen = [
        Candidate("b", 1, address="10.0.0.2"),
        Candidate("a", 2, address="10.0.0.2"),
        Candidate("c", 3, rank=0, address="10.0.0.10"),
    ]
    assert assign_ranks(SORTED, chosen) == {"c": 0, "a": 1, "b": 2}


def test_label_puts_equal_labels_side_by_side_where_their_first_stood() -> None:
    racks = {"a": "red", "b": "blue", "c": "red", "d": "green", "e": "blue"}
    chosen = [Candidate(node, order, labels={"rack": rack}) for order, (node, rack) in enumerate(racks.items())]
    assert assign_ranks(BY_RACK, chosen) == {"a": 0, "c": 1, "b": 2, "e": 3, "d": 4}


def test_label_keeps_the_order_of_survivors() -> None:
    red, blue = {"rack": "red"}, {"rack": "blue"}
    chosen = choose(
        [
            Candidate("new", 1, None, labels=red),
            Candidate("b1", 2, 3, labels=blue),
            Candidate("r1", 3, 1, labels=red),
            Candidate("r0", 4, 0, labels=red),
            Candidate("b0", 5, 2, labels=blue),
        ],
        8,
    )
    assert assign_ranks(BY_RACK, chosen) == {"r0": 0, "r1": 1, "new": 2, "b0": 3, "b1": 4}


# Whole domains


def domains(**ranks: str) -> list[Candidate]:
    """Return the candidates of each domain: a digit is the old rank of a survivor, a dot is a newcomer."""
    found = [
        Candidate(f"{domain}{place}", place, None if rank == "." else int(rank, 36), labels={"rack": domain})
        for domain, members in ranks.items()
        for place, rank in enumerate(members)
    ]
    return choose(found, len(found))


def laid_out(candidates: list[Candidate], per_domain: int = 2) -> str:
    """Return the domain of each rank, in a capital letter where a survivor has its old rank."""
    ranks = assign_ranks(settings_for(Sizes(1, 99), domain="rack", per_domain=per_domain), candidates)
    shown = {}
    for candidate in candidates:
        rank = ranks[candidate.node]
        domain = candidate.labels["rack"]
        shown[rank] = domain.upper() if candidate.rank == rank else domain
    return "".join(shown[rank] for rank in range(len(shown)))


def test_a_domain_has_contiguous_ranks_in_the_order_of_arrival() -> None:
    assert laid_out(domains(a="..", b="..", c="..")) == "aabbcc"


def test_a_domain_keeps_its_ranks_whatever_happens_to_others() -> None:
    assert laid_out(domains(a="01", b="23", c="45")) == "AABBCC"
    assert laid_out(domains(a="01", b="23", c="45", d="..")) == "AABBCCdd"
    assert laid_out(domains(a="01", d="..", c="45")) == "AAddCC"


def test_a_node_that_is_replaced_in_its_domain_moves_nobody() -> None:
    assert laid_out(domains(a="01", b="3.", c="45")) == "AAbBCC"


def test_of_fewer_domains_the_last_takes_the_gap() -> None:
    assert laid_out(domains(a="01", c="45", d="67")) == "AAddCC"


def test_a_survivor_has_rank_0_if_there_is_one() -> None:
    assert laid_out(domains(n="..", b="23", c="45")) == "bbnnCC"
    assert laid_out(domains(n="....", b="45", c="67")) == "bbccnnnn"
    assert laid_out(domains(a="1.", b="23")) == "aaBB"


def test_domains_of_several_sizes_stay_where_they_can() -> None:
    assert laid_out(domains(a="0123", b="45", c="67")) == "AAAABBCC"
    assert laid_out(domains(b="45", c="67", n="....")) == "bbccnnnn"
    assert laid_out(domains(a="0123", c="67", n="..")) == "AAAAnnCC"
    assert laid_out(domains(a="01..", b="45", c="67")) == "AAaaBBCC"
    assert laid_out(domains(a="01", b="23..", c="45")) == "AABBbbcc"


def test_a_domain_without_a_size_of_its_own_is_contiguous_too() -> None:
    assert laid_out(domains(a="0", b="123", c="4"), per_domain=1) == "ABBBC"
    assert laid_out(domains(a="02", b="13"), per_domain=1) == "AabB"
    assert laid_out(domains(a="0", b="23.", c="4"), per_domain=1) == "AcBBb"


# For any roster


def roster(drawn: list[tuple[int, int | None, str, str]]) -> list[Candidate]:
    """Return candidates n0, n1, n2..., who came in the order of the first number of each."""
    arrivals = sorted(range(len(drawn)), key=lambda number: drawn[number][0])
    return [
        Candidate(f"n{number}", arrivals.index(number), rank, address, {"rack": rack})
        for number, (_, rank, address, rack) in enumerate(drawn)
    ]


rosters = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.none() | st.integers(0, 14),
        st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
        st.sampled_from(["red", "green", "blue"]),
    ),
    min_size=1,
    max_size=12,
).map(roster)
places = st.integers(1, 14)


@pytest.mark.parametrize("settings", [STICKY, SORTED, BY_RACK], ids=lambda settings: settings.ranks)
@given(rosters, places)
def test_ranks_are_exactly_0_to_n(settings: Settings, candidates: list[Candidate], places: int) -> None:
    chosen = choose(candidates, places)
    ranks = assign_ranks(settings, chosen)
    assert ranks.keys() == {candidate.node for candidate in chosen}
    assert sorted(ranks.values()) == list(range(min(len(candidates), places)))


@given(rosters, places)
def test_choice_does_not_depend_on_the_order_of_the_roster(candidates: list[Candidate], places: int) -> None:
    assert choose(candidates, places) == choose(candidates[::-1], places)


@given(rosters, places)
def test_old_ranks_are_claimed_once(candidates: list[Candidate], places: int) -> None:
    claims = [candidate.rank for candidate in choose(candidates, places) if candidate.rank is not None]
    assert claims == sorted(set(claims))


@given(rosters, places)
def test_sticky_survivors_keep_their_ranks_but_for_the_one_that_moves_to_0(
    candidates: list[Candidate], places: int
) -> None:
    chosen = choose(candidates, places)
    ranks = assign_ranks(STICKY, chosen)
    old = {candidate.node: candidate.rank for candidate in chosen if candidate.rank is not None}
    moved = [node for node, rank in old.items() if rank < len(chosen) and ranks[node] != rank]
    assert len(moved) <= 1
    for node in moved:
        assert ranks[node] == 0
        assert old[node] == min(old.values())


@given(rosters, places)
def test_sticky_rank_0_is_a_survivor_if_there_is_one(candidates: list[Candidate], places: int) -> None:
    chosen = choose(candidates, places)
    ranks = assign_ranks(STICKY, chosen)
    first = next(candidate for candidate in chosen if ranks[candidate.node] == 0)
    assert first.rank is not None or all(candidate.rank is None for candidate in chosen)


@given(rosters, places, st.integers(1, 3))
def test_domains_are_contiguous_and_led_by_a_survivor(
    candidates: list[Candidate], places: int, per_domain: int
) -> None:
    chosen = choose(candidates, places)
    ranks = assign_ranks(settings_for(Sizes(1, 99), domain="rack", per_domain=per_domain), chosen)
    assert sorted(ranks.values()) == list(range(len(chosen)))
    by_rank = sorted(chosen, key=lambda candidate: ranks[candidate.node])
    racks = [candidate.labels["rack"] for candidate in by_rank]
    assert len([rack for rack, _ in groupby(racks)]) == len(set(racks))
    assert by_rank[0].rank is not None or all(candidate.rank is None for candidate in chosen)


@given(st.lists(st.sampled_from([2, 4]), min_size=1, max_size=6), st.integers(1, 2))
def test_a_world_of_the_same_domains_keeps_all_ranks(sizes: list[int], per_domain: int) -> None:
    nodes = [
        Candidate(f"{domain}.{place}", place, labels={"rack": str(domain)})
        for domain, size in enumerate(sizes)
        for place in range(size)
    ]
    settings = settings_for(Sizes(1, 99), domain="rack", per_domain=per_domain)
    before = assign_ranks(settings, choose(nodes, 99))
    again = [msgspec.structs.replace(node, rank=before[node.node]) for node in nodes]
    assert assign_ranks(settings, choose(again, 99)) == before


@given(rosters, places)
def test_label_groups_are_contiguous(candidates: list[Candidate], places: int) -> None:
    chosen = choose(candidates, places)
    ranks = assign_ranks(BY_RACK, chosen)
    racks = [candidate.labels["rack"] for candidate in sorted(chosen, key=lambda candidate: ranks[candidate.node])]
    runs = [rack for before, rack in zip([None, *racks], racks, strict=False) if rack != before]
    assert len(runs) == len(set(racks))
