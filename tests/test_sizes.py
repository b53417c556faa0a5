"""The sizes of a world: every way to write them, one value and one text for each set, and an error for all else."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.sizes import MAX_NODES, MAX_SIZES, Sizes, parse_sizes
from rendezvous_async.texts import quoted

sizes = st.integers(1, MAX_NODES)
lists = st.lists(st.integers(1, 2000), min_size=1, max_size=40, unique=True).map(sorted)


def fails(call: Any, nodes: object) -> str:
    """Return the text of the ValueError that a call raises, which must have the value in it."""
    with pytest.raises(ValueError) as caught:
        call(nodes)
    assert quoted(nodes) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "text", "allowed"),
    [
        (4, "4:4", [4]),
        ("4", "4:4", [4]),
        ([4], "4:4", [4]),
        ("4:4:9", "4:4", [4]),
        ("2:4", "2:4", [2, 3, 4]),
        ((2, 4), "2:4", [2, 3, 4]),
        ("2:4:1", "2:4", [2, 3, 4]),
        ([2, 3, 4], "2:4", [2, 3, 4]),
        ("4:12:4", "4:12:4", [4, 8, 12]),
        ("4,8,12", "4:12:4", [4, 8, 12]),
        ([2, 4], "2:4:2", [2, 4]),
        ("1:7:3", "1:7:3", [1, 4, 7]),
        ("4,8,16", "4,8,16", [4, 8, 16]),
        ([4, 8, 16], "4,8,16", [4, 8, 16]),
    ],
)
def test_all_ways_to_write_them(nodes: Any, text: str, allowed: list[int]) -> None:
    found = parse_sizes(nodes)
    assert str(found) == text
    assert list(found.allowed) == allowed
    assert (found.smallest, found.largest) == (allowed[0], allowed[-1])


@given(sizes, sizes)
def test_a_range_is_every_size_in_it(one: int, other: int) -> None:
    low, high = sorted((one, other))
    for nodes in (f"{low}:{high}", (low, high)):
        found = parse_sizes(nodes)
        assert (found.smallest, found.largest) == (low, high)
        assert str(found) == f"{low}:{high}"
        assert len(found.allowed) == high - low + 1


def test_numbers_have_nine_digits_at_most() -> None:
    assert list(parse_sizes("000000012").allowed) == [12]
    fails(parse_sizes, "0000000012")


@given(st.integers(1, 2000), st.integers(1, 500), st.integers(0, 500))
def test_progressions(low: int, step: int, count: int) -> None:
    found = parse_sizes(f"{low}:{low + step * count}:{step}")
    assert list(found.allowed) == [low + step * number for number in range(count + 1)]


@given(lists)
def test_lists(listed: list[int]) -> None:
    found = parse_sizes(listed)
    assert list(found.allowed) == listed
    if len(listed) > 1:
        assert parse_sizes(",".join(map(str, listed))) == found


@given(lists, lists)
def test_equal_sets_are_equal_values_with_one_text(one: list[int], other: list[int]) -> None:
    assert (parse_sizes(one) == parse_sizes(other)) == (one == other)
    assert (str(parse_sizes(one)) == str(parse_sizes(other))) == (one == other)
    assert hash(parse_sizes(one)) == hash(parse_sizes(str(parse_sizes(one))))


@given(lists | st.tuples(sizes, sizes).map(lambda pair: tuple(sorted(pair))))
def test_the_text_and_the_record_say_the_same(nodes: Any) -> None:
    found = parse_sizes(nodes)
    assert parse_sizes(str(found)) == found
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Sizes) == found


@given(st.text(string.digits + ":,-+ ._ex\n٣²", max_size=9))
def test_any_text_is_sizes_or_an_error_that_quotes_it(text: str) -> None:
    try:
        found = parse_sizes(text)
    except ValueError as error:
        assert repr(text) in str(error)
    else:
        assert 1 <= found.smallest <= found.largest <= MAX_NODES
        assert parse_sizes(str(found)) == found


@pytest.mark.parametrize(
    "nodes",
    [
        1.0, 2.5, None, True, (1,), (1, 2, 3), (1.0, 2.0), (True, 2), ("1", "2"), {}, {4, 8}, b"2", "", ":", ",", "1:",
        ":1", "1:2:3:4", "1::3", "-1:2", "1:-2", " 1", "1 ", "4, 8", "4,", ",4", "4,,8", "4,8:16", "4:8,16", "1_0",
        "+1", "٣", "²", "4,²", "1e3", "0x1", "two", [1.0], [True], [2, True], ["4", "8"], [None], [[4]], "4,8\n",
        "2:4\n", "9" * 5000, "1:" + "9" * 5000, "4," + "9" * 5000, range(2, 5),
    ],
    ids=lambda nodes: repr(nodes)[:20],
)  # fmt: skip
def test_what_is_none_of_them_is_told_what_there_is(nodes: object) -> None:
    text = fails(parse_sizes, nodes)
    assert '"min:max:step"' in text
    assert "1 <= min <= max" in text


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        (0, "1 <= min <= max <= 1000000, not 0:0"),
        (-3, "not -3:-3"),
        ("0", "not 0:0"),
        ("0:4", "not 0:4"),
        ((0, 1), "not 0:1"),
        ((-2, 1), "not -2:1"),
        ("4:2", "not 4:2"),
        ((4, 2), "not 4:2"),
        ("8:4:2", "not 8:4"),
        (MAX_NODES + 1, f"not {MAX_NODES + 1}:"),
        (f"4:{MAX_NODES + 4}:4", f"not 4:{MAX_NODES + 4}"),
        ("0,4,9", "not 0:9"),
        ([-4, 0, 5], "not -4:5"),
        ([4, 9, MAX_NODES + 1], f"not 4:{MAX_NODES + 1}"),
        ("4:8:0", "step must be at least 1, not 0"),
        ("4:4:0", "step must be at least 1, not 0"),
        ("4:66:4", "steps of 4 from 4 do not reach 66, only 64 and 68"),
        ("1:64:4", "steps of 4 from 1 do not reach 64, only 61 and 65"),
        ("4:8:8", "steps of 8 from 4 do not reach 8, only 4 and 12"),
        ([], f"a list must have 1 to {MAX_SIZES} sizes, not 0"),
        ([*range(1, MAX_SIZES + 1), 1000], f"a list must have 1 to {MAX_SIZES} sizes, not {MAX_SIZES + 1}"),
        ("4,4,8", "the size 4 is listed twice"),
        ([4, 8, 8], "the size 8 is listed twice"),
        ("8,4", "increasing order, and 8 is before 4"),
        ([4, 16, 8], "increasing order, and 16 is before 8"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_wrong_with_it(nodes: object, complaint: str) -> None:
    text = fails(parse_sizes, nodes)
    assert text.startswith(f"nodes={quoted(nodes)}: ")
    assert complaint in text


def test_a_list_may_be_as_long_as_the_limit() -> None:
    listed = [*range(1, MAX_SIZES), 1000]
    assert list(parse_sizes(listed).allowed) == listed


@pytest.mark.parametrize(
    "fields",
    [
        {"smallest": 4, "largest": 16, "step": 4, "listed": (4, 8, 16)},
        {"smallest": 2, "largest": 16, "step": 0, "listed": (4, 8, 16)},
        {"smallest": 4, "largest": 20, "step": 0, "listed": (4, 8, 16)},
        {"smallest": 4, "largest": 16, "step": 0, "listed": (4, 16, 8, 16)},
        {"smallest": 4, "largest": 16, "step": 0},
        {"smallest": 4, "largest": 16, "step": -4},
        {"smallest": 4, "largest": 17, "step": 4},
        {"smallest": 0, "largest": 16},
    ],
    ids=str,
)
def test_a_record_that_contradicts_itself_is_not_read(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Sizes)


def test_a_million_sizes_are_not_stored_one_by_one() -> None:
    found = parse_sizes(f"1:{MAX_NODES}")
    assert found.listed == ()
    assert len(found.allowed) == MAX_NODES


@given(st.integers(1, 60), st.integers(0, 30), st.integers(1, 24), st.integers(1, 48))
def test_multiples_of_a_unit(low: int, steps: int, step: int, unit: int) -> None:
    found = parse_sizes(f"{low}:{low + steps * step}:{step}")
    assert list(found.multiples_of(unit)) == [size for size in found.allowed if size % unit == 0]


def test_multiples_of_any_unit_are_found_without_a_search() -> None:
    """A search looks at 999,983 sizes: 80 ms each time. Anybody could make a server or a node do that by a record."""
    found, largest_prime = parse_sizes(f"1:{MAX_NODES}"), 999_983
    for _ in range(10_000):
        assert list(found.multiples_of(largest_prime)) == [largest_prime]
