"""The ways of choosing that ours is compared with: what each does by example, and that the comparison finds it."""

from __future__ import annotations

import pytest

from rendezvous_async.core.ranks import Candidate
from rendezvous_async.core.shape import Shape, choose
from rendezvous_async.sizes import parse_sizes
from tests.core.baselines import CHOOSERS, WISHES, compare, compare_restarts, node_unit, report, segments, verdict
from tests.core.populations import LABEL


def nodes_in(domains: str, held: str = "") -> list[Candidate]:
    """Return nodes n0, n1, n2... in these domains, who came in this order; the digits of ``held`` were members."""
    return [
        Candidate(f"n{number}", number, held.find(str(number)) if str(number) in held else None, labels={LABEL: domain})
        for number, domain in enumerate(domains)
    ]


def numbers(chosen: list[Candidate]) -> str:
    return "".join(node.node[1:] for node in chosen)


WHOLE = Shape(parse_sizes("2:6:2"), LABEL, 2)


def test_segments_are_taken_in_the_platforms_order() -> None:
    assert numbers(segments(nodes_in("ABABCC"), 4, 2)) == "0213"


def test_segments_refuse_where_a_smaller_world_is_there() -> None:
    nodes = nodes_in("AABC")
    assert segments(nodes, 4, 2) == []
    assert numbers(choose(nodes, WHOLE)) == "01"
    assert verdict([], nodes, WHOLE) == "refuses though a world is there"


def test_segments_drop_survivors_for_a_domain_that_stands_first() -> None:
    nodes = nodes_in("AABBCC", held="2345")
    assert numbers(segments(nodes, 4, 2)) == "0123"
    assert numbers(choose(nodes, Shape(parse_sizes(4), LABEL, 2))) == "2345"
    assert verdict(segments(nodes, 4, 2), nodes, Shape(parse_sizes(4), LABEL, 2)) == "drops a survivor needlessly"


def test_segments_never_grow() -> None:
    nodes = nodes_in("AABB")
    assert verdict(segments(nodes, 2, 2), nodes, WHOLE) == "smaller than possible"


def test_a_node_unit_rounds_down_by_node_rank() -> None:
    assert numbers(node_unit(nodes_in("AAAAA")[::-1], 2, 6, 2)) == "0123"


def test_a_node_unit_knows_no_domains() -> None:
    nodes = nodes_in("ABBBA")
    assert verdict(node_unit(nodes, 2, 6, 2), nodes, WHOLE) == "invalid world"
    assert numbers(choose(nodes, WHOLE)) == "0124"


def test_a_node_unit_can_end_above_max_and_below_min() -> None:
    assert len(node_unit(nodes_in("A" * 9), 2, 6, 2)) == 8
    assert len(node_unit(nodes_in("A" * 3), 3, 9, 2)) == 2


def test_who_came_first_is_passed_over_for_a_lower_number() -> None:
    early, late = Candidate("n9", 1), Candidate("n0", 2)
    assert verdict([late], [early, late], Shape(parse_sizes(1))) == "passes over who came first"


@pytest.mark.parametrize("wish", WISHES)
def test_the_comparison_finds_nothing_better_than_ours_and_a_lot_that_is_worse(wish: str) -> None:
    assert set(compare(wish, "rendezvous_async", 500, seed=7)) == {"as good", "nobody fits"}
    for chooser in CHOOSERS:
        found = compare(wish, chooser, 500, seed=7)
        worse = found.total() - found["as good"] - found["nobody fits"]
        assert (worse > 0) == (chooser != "rendezvous_async")
    restarts = compare_restarts(wish, 500, seed=7)
    assert 0 < restarts["nothing comes of it"] <= restarts["restarts"]


def test_the_report_has_a_line_for_each() -> None:
    lines = list(report(200, seed=3))
    assert [line for line in lines if not line.startswith(" ")] == [f"{wish}, 200 populations" for wish in WISHES]
    assert sum("NVRx" in line for line in lines) == 4
    print("\n".join(lines))
