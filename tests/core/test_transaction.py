"""Cutting writes into batches that fit, and reading what can be read."""

from __future__ import annotations

import pytest

from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import Node, Seat
from rendezvous_async.core.transaction import MOST_WRITES, Capacity, Save, readable
from tests.core.make import record

SAVES = [Save(f"k{number}", b"1234567") for number in range(5)]
"""With a prefix of one byte, ten bytes each."""


@pytest.mark.parametrize(
    ("writes", "bytes", "spare", "sizes"),
    [
        (7, 1000, 2, [5]),
        (6, 1000, 2, [4, 1]),
        (4, 1000, 2, [2, 2, 1]),
        (3, 1000, 2, [1, 1, 1, 1, 1]),
        (1, 1000, 2, [1, 1, 1, 1, 1]),
        (1000, 100, 2, [5]),
        (1000, 99, 2, [4, 1]),
        (1000, 40, 2, [2, 2, 1]),
        (1000, 1, 2, [1, 1, 1, 1, 1]),
        (4, 60, 0, [3, 2]),
    ],
)
def test_each_batch_fits_with_what_comes_beside_it(writes: int, bytes: int, spare: int, sizes: list[int]) -> None:
    batches = list(Capacity(writes, bytes, prefix=1).batches(SAVES, spare))
    assert [len(batch) for batch in batches] == sizes
    assert [save for batch in batches for save in batch] == SAVES


def test_a_backend_that_takes_more_is_not_given_more_than_it_does_in_a_moment() -> None:
    seats = [Save(f"seats/{number}", b"") for number in range(MOST_WRITES + 10)]
    assert [len(batch) for batch in Capacity(10**9, 10**9).batches(seats, spare=3)] == [MOST_WRITES - 3, 13]


def test_of_nothing_there_is_one_batch_with_nothing_in_it() -> None:
    assert list(Capacity(10, 100).batches([], 1)) == [()]


def test_what_cannot_be_read_is_passed_over() -> None:
    node, seat = record("a1"), Seat(round=1, attempt="x", arrival="a1", rank=0)
    rows = [("nodes/c", b"?", 5), ("nodes/d", encode(seat), 6), ("nodes/e", None, 7), ("nodes/a%2Fb", encode(node), 4)]
    assert list(readable(Node, rows)) == [("a/b", node, 4)]
