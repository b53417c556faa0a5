"""Who is in a world of a certain shape: each rule by example, then all of them against trying every set of nodes.

The long run, a million populations in ten parts: ``pytest -m slow --timeout=0 tests/core/test_shape.py``.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core import shape as module
from rendezvous_async.core.ranks import Candidate, assign_ranks
from rendezvous_async.core.shape import (
    Fit,
    Shape,
    choose,
    count_domains,
    count_newcomers,
    explain,
    is_complete,
    largest_size,
)
from rendezvous_async.settings import Settings
from rendezvous_async.sizes import MAX_NODES, Sizes, parse_sizes
from tests.core.populations import DOMAINS, LABEL, best_world, is_valid, kept, random_nodes, random_shape, valid_worlds

FOURS = Shape(parse_sizes("4:64:4"), LABEL, 4)


def shaped(nodes: int | str | list[int], per_domain: int | None = None, target: int | None = None) -> Shape:
    """Return a shape, with domains if ``per_domain`` is given."""
    return Shape(parse_sizes(nodes), "" if per_domain is None else LABEL, per_domain or 1, target)


def newcomers(domains: str, first: int = 100) -> list[Candidate]:
    """Return newcomers named a0, a1, b0... by their domains, who came in this order; a dot has no label."""
    seen: Counter[str] = Counter()
    found = []
    for order, domain in enumerate(domains, start=first):
        found.append(
            Candidate(f"{domain.lower()}{seen[domain]}", order, labels={} if domain == "." else {LABEL: domain})
        )
        seen[domain] += 1
    return found


def survivors(**ranks: int) -> list[Candidate]:
    """Return survivors with these old ranks; the first letter of the name is the domain."""
    return [Candidate(n, order, rank, labels={LABEL: n[0]}) for order, (n, rank) in enumerate(ranks.items(), start=1)]


def names(chosen: list[Candidate]) -> str:
    return " ".join(candidate.node for candidate in chosen)


# Sizes


def test_the_largest_allowed_size_is_taken_and_the_rest_are_spares() -> None:
    nodes = newcomers("." * 11)
    assert names(choose(nodes, shaped("4:64:4"))) == ".0 .1 .2 .3 .4 .5 .6 .7"
    assert names(choose(nodes, shaped("4,6,16"))) == ".0 .1 .2 .3 .4 .5"
    assert len(choose(nodes, shaped("2:9"))) == 9


def test_nobody_is_chosen_when_too_few_are_here() -> None:
    assert choose(newcomers("..."), shaped("4:64:4")) == []
    assert choose([], shaped(1)) == []


def test_a_target_bounds_the_world_though_more_would_be_allowed() -> None:
    assert len(choose(newcomers("." * 11), shaped("2:12:2", target=8))) == 8
    assert len(choose(newcomers("." * 7), shaped("2:12:2", target=8))) == 6


def test_of_too_many_survivors_the_last_ranks_become_spares() -> None:
    nodes = [*newcomers("..", first=0), *survivors(x=7, y=0, z=3)]
    assert names(choose(nodes, shaped("2:4:2", target=2))) == "y z"
    assert names(choose(nodes, shaped("2:4:2"))) == "y z x .0"


def test_a_duplicate_claim_to_an_old_rank_is_a_newcomers() -> None:
    late, early = Candidate("late", 9, rank=0), Candidate("early", 4, rank=0)
    chosen = choose([late, *newcomers(".", first=5), early], shaped(2))
    assert [(candidate.node, candidate.rank) for candidate in chosen] == [("early", 0), (".0", None)]


# Domains


def test_domains_are_whole() -> None:
    assert names(choose(newcomers("ABCABCABCAB"), shaped("3:12:3", 3))) == "a0 b0 c0 a1 b1 c1 a2 b2 c2"
    assert names(choose(newcomers("AABBBBA"), FOURS)) == "b0 b1 b2 b3"


def test_a_domain_may_give_several_times_per_domain() -> None:
    assert names(choose(newcomers("AAAAABB"), shaped("2:8:2", 2))) == "a0 a1 a2 a3 b0 b1"


def test_a_node_without_the_label_is_a_spare() -> None:
    assert names(choose(newcomers("..AA"), shaped("1:4", 1))) == "a0 a1"
    assert choose(newcomers("...."), FOURS) == []


def test_an_empty_label_is_a_domain_like_any_other() -> None:
    nodes = [Candidate(f"n{order}", order, labels={LABEL: ""}) for order in range(4)]
    assert choose(nodes, FOURS) == nodes


def test_a_spare_of_the_same_domain_fills_the_gap_even_when_another_came_first() -> None:
    nodes = [*newcomers("CCCC", first=10), *survivors(A0=0, A1=1, A2=2, B0=4, B1=5, B2=6, B3=7), *newcomers("A")]
    assert names(choose(nodes, shaped("4:8:4", 4))) == "A0 A1 A2 B0 B1 B2 B3 a0"


def test_the_larger_world_goes_before_the_survivors() -> None:
    nodes = [*survivors(A0=0, A1=1, A2=2), *newcomers("BBBB")]
    assert names(choose(nodes, FOURS)) == "b0 b1 b2 b3"


def test_the_world_with_more_survivors_goes_before_the_first_ranks() -> None:
    nodes = [*survivors(A0=0, B0=1, B1=2), *newcomers("A")]
    assert names(choose(nodes, shaped(2, 2))) == "B0 B1"


def test_equally_many_survivors_go_by_the_first_rank() -> None:
    nodes = survivors(B0=0, B1=9, A0=1, A1=2)
    assert names(choose(nodes, shaped(2, 2))) == "B0 B1"


def test_newcomers_go_by_the_first_to_come() -> None:
    assert names(choose(newcomers("ABBA"), shaped(2, 2))) == "a0 a1"


def test_no_size_can_be_had_that_is_no_multiple_of_a_domain() -> None:
    shape = shaped("2:10:2", 4)
    assert list(shape.valid_sizes) == [4, 8]
    assert len(choose(newcomers("AAAABBBBCCCC"), shape)) == 8


# The shape itself


@pytest.mark.parametrize(
    ("sizes", "domain", "per_domain", "target", "complaint"),
    [
        ("2:4", LABEL, 0, None, "per_domain must be from 1 to"),
        ("2:4", LABEL, MAX_NODES + 1, None, "per_domain must be from 1 to"),
        ("2:4", "", 2, None, "per_domain=2 needs a domain"),
        ("2:10:4", LABEL, 4, None, "none of the sizes 2:10:4 is a multiple of per_domain=4"),
        ("3,5,11", LABEL, 4, None, "none of the sizes 3,5,11 is a multiple of per_domain=4"),
        ("2:10:2", "", 1, 7, "the nearest is 6 or 8"),
        ("2:10:2", "", 1, 70, "the nearest is 10"),
        ("2:10:2", "", 1, 0, "the nearest is 2"),
        ("2:10:2", LABEL, 4, 6, "the nearest is 4 or 8"),
    ],
)
def test_a_shape_that_no_world_fits_is_an_error(
    sizes: str, domain: str, per_domain: int, target: int | None, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Shape(parse_sizes(sizes), domain, per_domain, target)


def test_the_largest_shape_there_is() -> None:
    assert Shape(parse_sizes(MAX_NODES), LABEL, MAX_NODES).most == MAX_NODES


def test_without_domains_a_node_is_a_unit() -> None:
    assert Shape(parse_sizes("1:3")) == Shape(parse_sizes("1:3"), "", 1, None)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), st.integers(1, 40))
def test_valid_sizes_are_the_allowed_multiples(low: int, steps: int, step: int, per_domain: int) -> None:
    sizes = Sizes(low, low + steps * step, step)
    wanted = [size for size in sizes.allowed if size % per_domain == 0]
    if not wanted:
        with pytest.raises(ValueError, match="none of the sizes"):
            Shape(sizes, LABEL, per_domain)
        return
    shape = Shape(sizes, LABEL, per_domain)
    assert list(shape.valid_sizes) == wanted
    assert shape.most == wanted[-1]
    for nodes in range(wanted[-1] + 2):
        assert shape.size_within(nodes) == max((size for size in wanted if size <= nodes), default=0)
        assert shape.size_after(nodes) == min((size for size in wanted if size > nodes), default=0)


# Growing


def test_leftovers_make_nobody_restart() -> None:
    eight = {"": 8}
    assert not any(count_newcomers(eight, {"": count}, shaped("4:64:4")) for count in range(4))
    assert count_newcomers(eight, {"": 4}, shaped("4:64:4"))
    assert not count_newcomers({"": 64}, {"": 64}, shaped("4:64:4"))
    assert not count_newcomers(eight, {"": 8}, shaped("4:64:4", target=8))


def test_newcomers_of_different_domains_are_leftovers_until_one_is_whole() -> None:
    assert not count_newcomers({"A": 4}, {"B": 3, "C": 3}, FOURS)
    assert count_newcomers({"A": 4}, {"B": 3, "C": 4}, FOURS)


def test_a_newcomer_that_makes_a_broken_domain_whole_is_waited_for_by_nobody_else() -> None:
    assert count_newcomers({"A": 4, "B": 3}, {"B": 1}, FOURS)
    assert not count_newcomers({"A": 4, "B": 3}, {"C": 1}, FOURS)


def test_complete_means_that_nobody_can_make_it_larger() -> None:
    assert is_complete({"": 8}, shaped("4,8"))
    assert is_complete({"": 9}, shaped("4,8"))
    assert not is_complete({"": 7}, shaped("4,8"))
    assert is_complete({"": 4}, shaped("4,8", target=4))
    assert is_complete({"A": 4, "B": 5}, shaped("4:10", 4))
    assert not is_complete({"A": 6, "B": 2}, shaped("4:10", 4))


# What is said of it


@pytest.mark.parametrize(
    ("domains", "shape", "unlabelled", "text"),
    [
        (
            {"A": 4, "B": 3, "C": 5},
            FOURS,
            0,
            "12 here, 8 usable: domain B has 3 of 4, domain C has 5 of 8; 1 more node in domain B would make 12",
        ),
        ({"A": 4, "B": 4}, FOURS, 0, "8 here, all usable: 4 more nodes in one domain would make 12"),
        (
            {"A": 3, "B": 3},
            FOURS,
            1,
            "7 here, none usable: domain A has 3 of 4, domain B has 3 of 4, 1 node without the label nvlink; "
            "1 more node in domain A or B would make 4",
        ),
        (
            {"A": 4, "B": 3, "C": 5},
            shaped("4,16", 4),
            0,
            "12 here, 4 usable: domain B has 3 of 4, domain C has 5 of 8; "
            "4 more nodes in the right domains would make 16",
        ),
        (
            dict.fromkeys("ABCDEF", 3),
            FOURS,
            0,
            "18 here, none usable: domain A has 3 of 4, domain B has 3 of 4, domain C has 3 of 4, domain D has 3 of 4, "
            "2 other domains not whole; 1 more node in domain A or B or C or D or 2 others would make 4",
        ),
        (
            {"A": 8, "B": 3},
            shaped("4:16:4", 4, target=8),
            2,
            "13 here, 8 usable: 2 nodes without the label nvlink; 8 is the target",
        ),
        ({"a\nb": 1}, shaped(2, 2), 0, r"1 here, none usable: domain a\nb has 1 of 2; 1 more node in domain a\nb "),
        ({"": 11}, shaped("4:64:4"), 0, "11 here, 8 usable: 1 more node would make 12"),
        ({"": 64}, shaped("4:64:4"), 0, "64 here, all usable: 64 is the largest size"),
        ({}, shaped("4:64:4"), 0, "0 here, none usable: 4 more nodes would make 4"),
        ({"": 1}, shaped(1), 0, "1 here, all usable: 1 is the largest size"),
        ({}, shaped("2:4:2", 2), 0, "0 here, none usable: 2 more nodes in one domain would make 2"),
        ({"A": 4}, shaped("4,12", 4), 0, "4 here, all usable: 8 more nodes in the right domains would make 12"),
        (
            dict.fromkeys("ABCD", 2),
            FOURS,
            0,
            "8 here, none usable: domain A has 2 of 4, domain B has 2 of 4, domain C has 2 of 4, domain D has 2 of 4; "
            "2 more nodes in domain A or B or C or D would make 4",
        ),
    ],
)
def test_a_fit_explains_itself(domains: dict[str, int], shape: Shape, unlabelled: int, text: str) -> None:
    assert str(explain(domains, shape, unlabelled)).startswith(text)


def test_a_fit_has_it_in_numbers() -> None:
    assert explain({"A": 4, "B": 3, "C": 5, "D": 7}, FOURS, 2) == Fit(
        shape=FOURS,
        here=21,
        usable=12,
        unlabelled=2,
        partial=(("B", 3), ("D", 7), ("C", 5)),
        next_size=16,
        missing=1,
        fill=("B", "D"),
    )


def test_a_complete_world_misses_nothing() -> None:
    fit = explain({"A": 8, "B": 3}, shaped("4,8", 4))
    assert (fit.here, fit.usable, fit.unlabelled, fit.next_size, fit.missing, fit.fill) == (11, 8, 0, 0, 0, ())


def fewest_to_make(domains: dict[str, int], shape: Shape, size: int) -> int:
    """Return the number of nodes that must arrive for a world of that size, found by letting them arrive."""
    reached = {tuple(sorted({**dict.fromkeys(DOMAINS + "xyz", 0), **domains}.items()))}
    for arrivals in range(40):
        if any(largest_size(dict(there), shape) >= size for there in reached):
            return arrivals
        reached = {
            tuple(sorted({**dict(there), domain: count + 1}.items())) for there in reached for domain, count in there
        }
    raise AssertionError(f"{size} cannot be reached from {domains}")


@given(st.dictionaries(st.sampled_from("AB"), st.integers(0, 7)), st.integers(1, 4), st.integers(1, 2))
def test_what_is_missing_is_the_least_that_helps(domains: dict[str, int], per_domain: int, step: int) -> None:
    shape = Shape(Sizes(per_domain, per_domain * (1 + 8 * step), per_domain * step), LABEL, per_domain)
    fit = explain(domains, shape)
    assert fit.usable == largest_size(domains, shape)
    assert (fit.next_size == 0) == is_complete(domains, shape)
    if fit.next_size and fit.missing <= 5:
        assert fit.missing == fewest_to_make(domains, shape, fit.next_size)
    for domain in fit.fill:
        filled = {**domains, domain: domains[domain] + fit.missing}
        assert largest_size(filled, shape) == fit.next_size
    if fit.missing == 1 and per_domain > 1:
        helps = {d for d in domains if largest_size({**domains, d: domains[d] + 1}, shape) > fit.usable}
        assert set(fit.fill) == helps


# Ranks


def test_whole_domains_get_contiguous_ranks_and_survivors_keep_their_order() -> None:
    nodes = [*newcomers("CBCCCA"), *survivors(B0=4, B1=5, B3=7, A0=0, A2=2, A3=3)]
    chosen = choose(nodes, shaped("4:12:4", 4))
    ranks = assign_ranks(Settings(1, 12, f"label:{LABEL}"), chosen)
    by_rank = sorted(chosen, key=lambda candidate: ranks[candidate.node])
    assert "".join(candidate.labels[LABEL] for candidate in by_rank) == "AAAABBBBCCCC"
    assert [candidate.rank for candidate in by_rank] == [0, 2, 3, None, 4, 5, 7, None, None, None, None, None]


# Everything against trying every set of nodes


def check_populations(seed: int, count: int, most: int) -> Counter[str]:
    """Compare ``choose`` and what goes with it to the oracle for that many populations; return what was met."""
    rng = random.Random(seed)
    met: Counter[str] = Counter()
    for _ in range(count):
        shape, nodes = random_shape(rng), random_nodes(rng, most)
        wanted = best_world(nodes, shape)
        chosen = choose(nodes, shape)
        assert chosen == wanted, (shape, nodes)
        assert not chosen or is_valid(chosen, shape)
        domains = count_domains(nodes, shape)
        assert largest_size(domains, shape) == len(wanted)
        assert (explain(domains, shape).next_size == 0) == is_complete(domains, shape) == (len(wanted) == shape.most)
        met["populations"] += 1
        met["nobody fits"] += not chosen
        met["everybody fits"] += len(chosen) == len(nodes) > 0
        met["a survivor is dropped"] += kept(chosen) < kept(nodes)
        met["whole domains"] += bool(chosen) and shape.per_domain > 1
        met["some domains of more"] += (
            bool(chosen) and {shape.domain_of(n) for n in chosen} < domains.keys() and shape.per_domain > 1
        )
    return met


def test_a_few_thousand_populations_agree_with_the_oracle() -> None:
    met = check_populations(seed=7, count=4000, most=9)
    assert min(met.values()) > 300, met


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_million_populations_agree_with_the_oracle(seed: int) -> None:
    met = check_populations(seed, count=100_000, most=11)
    print(dict(met))


def test_the_rules_one_by_one() -> None:
    """Each rule by itself, so that an oracle that is wrong in the same way as ``choose`` would show."""
    rng = random.Random(11)
    for _ in range(1000):
        shape, nodes = random_shape(rng), random_nodes(rng, 8)
        chosen = choose(nodes, shape)
        valid = [w for size in range(1, len(nodes) + 1) for w in valid_worlds(nodes, shape, size)]
        assert bool(chosen) == bool(valid), "a population waits for ever"
        if not valid:
            continue
        assert {node.node for node in chosen} in [{node.node for node in world} for world in valid]
        assert len(chosen) == max(map(len, valid)), "a larger world was possible"
        same = [world for world in valid if len(world) == len(chosen)]
        assert kept(chosen) == max(map(kept, same)), "a survivor was dropped that another choice keeps"
        mine = {node.node for node in chosen}
        for world in same:
            if kept(world) == kept(chosen):
                differing = [n for n in nodes if (n.node in mine) != (n in world)]
                first = min(
                    differing, key=lambda n: (n.rank is None, n.order if n.rank is None else n.rank), default=None
                )
                assert first is None or first.node in mine, "somebody who came first was passed over"


def test_growing_is_what_choosing_again_would_show() -> None:
    rng = random.Random(13)
    seen = Counter[bool]()
    for _ in range(2000):
        shape, nodes = random_shape(rng), random_nodes(rng, 12)
        members, others = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
        members = [msgspec.structs.replace(node, rank=rank) for rank, node in enumerate(members)]
        others = [msgspec.structs.replace(node, rank=None) for node in others]
        more = count_newcomers(count_domains(members, shape), count_domains(others, shape), shape)
        world = choose([*members, *others], shape)
        grows = len(world) > len(choose(members, shape))
        assert more == (len(world) - kept(world) if grows else 0)
        seen[grows] += 1
    assert min(seen.values()) > 300


def test_the_choice_does_not_depend_on_the_order_of_the_roster() -> None:
    rng = random.Random(17)
    for _ in range(500):
        shape, nodes = random_shape(rng), random_nodes(rng, 12)
        assert choose(nodes, shape) == choose(rng.sample(nodes, len(nodes)), shape)


# How long it takes, in lines of the module that run


def lines_run(call: Callable[[], Any]) -> int:
    """Return how many lines of ``core/shape.py`` a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != module.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def crowd(count: int) -> list[Candidate]:
    """Return nodes of many domains, half of them survivors."""
    rng = random.Random(count)
    return [
        Candidate(f"n{n}", n, n if n % 2 else None, labels={LABEL: f"d{rng.randrange(count // 8)}"})
        for n in rng.sample(range(count), count)
    ]


@pytest.mark.parametrize("shape", [shaped("4:1024:4"), shaped("4:1024:4", 4), shaped("4,16,64,512", 4)], ids=str)
def test_the_work_grows_with_the_number_of_candidates(shape: Shape) -> None:
    some, many = crowd(512), crowd(1024)
    few_lines, lines = lines_run(lambda: choose(some, shape)), lines_run(lambda: choose(many, shape))
    assert lines < 20 * 1024
    assert lines < 2.5 * few_lines
