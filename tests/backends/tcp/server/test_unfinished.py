"""Requests that are not all there are counted by scope, and refused where they grow too many."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.tcp.server import unfinished
from rendezvous_async.backends.tcp.server.unfinished import MAX_UNFINISHED, Unfinished


def test_each_scope_has_its_own_count() -> None:
    counts = Unfinished()
    assert not counts.is_too_much("a", 100)
    assert not counts.is_too_much("a", 50)
    assert not counts.is_too_much("b", 7)
    assert not counts.is_too_much("a", -120)
    assert [counts.kept(scope) for scope in ("a", "b", "c")] == [30, 7, 0]


def test_there_are_too_many_when_they_are_over_the_bound_and_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "MAX_UNFINISHED", 1000)
    counts = Unfinished()
    outcomes = [counts.is_too_much("a", growth) for growth in (1000, 1, -1, 0, 500, -499, -500, 499)]
    assert outcomes == [False, True, False, False, True, False, False, False]
    assert not counts.is_too_much("b", 1000), "what others keep does not count"


def test_nothing_is_left_of_a_scope_that_keeps_nothing() -> None:
    counts = Unfinished()
    for scope in map(str, range(1000)):
        counts.is_too_much(scope, 10)
        counts.is_too_much(scope, -10)
    assert not counts._kept


def test_a_scope_may_keep_many_whole_requests() -> None:
    assert MAX_UNFINISHED == 128 * 1024 * 1024
