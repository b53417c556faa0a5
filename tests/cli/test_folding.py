"""Nodes in few lines."""

from __future__ import annotations

import pytest

from rendezvous_async.cli.folding import Row, fold, ranges


def members(*ranks: int, host: str = "n") -> list[Row]:
    return [(f"{host}{rank:02}", "member", str(rank), "here") for rank in ranks]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([2, 0, 1], "0-2"), ([0, 1, 5, 7, 8, 9], "0-1, 5, 7-9")],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_what_fits_is_not_folded() -> None:
    rows: list[Row] = [*members(0, 1), ("late", "waiting", "-", "")]
    assert fold(rows, 3, "member") == rows


def test_the_healthy_are_folded_first_and_come_last() -> None:
    rows: list[Row] = [("gone", "absent", "2", ""), *members(0, 1, 3, 4), ("late", "waiting", "-", "there")]
    assert fold(rows, 3, "member") == [
        ("gone", "absent", "2", ""),
        ("late", "waiting", "-", "there"),
        ("4 nodes: n00 to n04", "member", "0-1, 3-4", "here"),
    ]


def test_then_each_state_is_one_row() -> None:
    rows: list[Row] = [(f"gone{rank}", "absent", str(rank), "") for rank in range(9)]
    rows += [*members(*range(9, 50)), *((f"late{number}", "waiting", "-", str(number)) for number in range(9))]
    assert fold(rows, 5, "member") == [
        ("9 nodes: gone0 to gone8", "absent", "0-8", ""),
        ("9 nodes: late0 to late8", "waiting", "-", ""),
        ("41 nodes: n09 to n49", "member", "9-49", "here"),
    ]
    assert len(fold(rows, 1, "member")) == 1


def test_of_long_names_the_part_that_differs_is_shown() -> None:
    rows = members(*range(64), host="training-cluster-eu-west-")
    assert fold(rows, 5, "member")[0][0] == "64 nodes: …est-00 to …est-63"


def test_rows_are_bounded_whatever_the_names() -> None:
    rows: list[Row] = [(f"{number}{'x' * 300}", "member", str(2 * number), "") for number in range(200)]
    ((names, _, ranks, _),) = fold(rows, 3, "member")
    assert len(names) <= 50
    assert len(ranks) <= 24
