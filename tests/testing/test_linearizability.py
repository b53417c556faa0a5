"""The checker accepts what can be explained and refuses what cannot."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.testing.linearizability import Operation, check_linearizable


def write(begin: float, end: float, value: bytes) -> Operation:
    return Operation("k", "write", begin, end, value)


def read(begin: float, end: float, value: bytes | None) -> Operation:
    return Operation("k", "read", begin, end, value)


def swap(begin: float, end: float, expected: bytes | None, value: bytes, done: bool = True) -> Operation:
    return Operation("k", "swap", begin, end, value, expected, done)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [read(0, 1, None)],
        [write(0, 1, b"a"), read(2, 3, b"a")],
        [write(0, 3, b"a"), read(1, 2, None), read(1, 2, b"a")],
        [write(0, 9, b"a"), write(0, 9, b"b"), read(1, 2, b"b"), read(3, 4, b"a")],
        [write(0, math.inf, b"a"), read(5, 6, None), read(7, 8, b"a")],
        [write(0, math.inf, b"a"), read(5, 6, None)],
        [swap(0, 1, None, b"a"), swap(2, 3, None, b"b", done=False), read(4, 5, b"a")],
        [swap(0, math.inf, None, b"a"), swap(2, 3, None, b"b"), read(4, 5, b"b")],
        [swap(0, math.inf, None, b"a"), swap(2, 3, b"a", b"b"), read(4, 5, b"b")],
        [read(0, math.inf, b"whatever"), write(0, 1, b"a")],
    ],
)
def test_what_can_be_explained_is_accepted(history: list[Operation]) -> None:
    check_linearizable(history)


@pytest.mark.parametrize(
    "history",
    [
        [read(0, 1, b"a")],
        [write(0, 1, b"a"), read(2, 3, None)],
        [write(0, 1, b"a"), write(2, 3, b"b"), read(4, 5, b"a")],
        [write(0, 9, b"a"), read(1, 2, b"a"), read(3, 4, None)],
        [write(0, math.inf, b"a"), read(5, 6, b"a"), read(7, 8, None)],
        [swap(0, 1, None, b"a"), swap(2, 3, None, b"b")],
        [swap(0, 1, None, b"a", done=False)],
        [swap(0, math.inf, None, b"a"), swap(2, 3, None, b"b"), read(4, 5, b"a")],
    ],
)
def test_what_cannot_be_explained_is_refused(history: list[Operation]) -> None:
    with pytest.raises(AssertionError, match="not linearizable"):
        check_linearizable(history)


def test_keys_are_looked_at_one_by_one() -> None:
    check_linearizable([Operation("a", "write", 0, 1, b"1"), Operation("b", "read", 2, 3, None)])


@given(st.integers(0, 2**32), st.booleans())
def test_a_real_register_is_linearizable_and_a_planted_stale_read_is_found(seed: int, plant: bool) -> None:
    """Calls that happen at a random moment between call and return; then one read is made to see the past."""
    rng = random.Random(seed)
    history: list[Operation] = []
    calls = sorted((begin, begin + rng.random() * 3, rng.random()) for begin in (rng.random() * 30 for _ in range(60)))
    moments = sorted((begin + (end - begin) * part, begin, end) for begin, end, part in calls)
    state: bytes | None = None
    for number, (_, begin, end) in enumerate(moments):
        match rng.choice(("read", "write", "swap")):
            case "read":
                history.append(read(begin, end, state))
            case "write":
                state = b"%d" % number
                history.append(write(begin, end, state))
            case _:
                value, old = b"%d" % number, state
                if rng.random() < 0.5:
                    state = value
                    history.append(swap(begin, end, old, value))
                else:
                    history.append(swap(begin, end, b"never", value, done=False))
    if plant:
        history += [write(100, 101, b"x"), write(102, 103, b"y"), read(104, 105, b"x")]
        with pytest.raises(AssertionError, match="not linearizable"):
            check_linearizable(history)
    else:
        check_linearizable(history)
