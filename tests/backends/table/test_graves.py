"""Deletions that are remembered: the last ones, as many and as large as the bounds say, and from when on all are."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.table import graves as module
from rendezvous_async.backends.table.graves import Graves
from rendezvous_async.backends.table.usage import cost_of_key


def test_who_was_deleted_since_when() -> None:
    graves = Graves(3)
    graves.dig(["a/1", "a/2"], 5)
    graves.dig(["b/1"], 7)
    graves.dig(["a/3"], 9)
    assert [graves.get(key) for key in ("a/1", "a/2", "b/1", "a/3", "never")] == [5, 5, 7, 9, 0]
    assert [list(graves.under("a/", since)) for since in (4, 5, 8, 9)] == [["a/3", "a/2", "a/1"], ["a/3"], ["a/3"], []]
    assert list(graves.under("none/", 0)) == []
    assert graves.as_value() == (("a/1", 5), ("a/2", 5), ("b/1", 7), ("a/3", 9))
    assert graves.horizon == 3


def test_what_is_put_again_is_no_grave() -> None:
    graves = Graves(3)
    graves.dig(["a/1", "a/2"], 5)
    graves.close("a/1")
    graves.close("never")
    assert (graves.get("a/1"), graves.get("a/2")) == (0, 5)
    assert list(graves.under("a/", 0)) == ["a/2"]
    assert graves.as_value() == (("a/2", 5),)


def test_more_than_may_be_remembered_moves_the_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GRAVES", 3)
    graves = Graves(1)
    graves.dig(["a/1", "a/2", "a/3"], 5)
    assert (len(graves.as_value()), graves.horizon) == (3, 1)
    graves.dig(["b/1"], 8)
    assert graves.as_value() == (("a/2", 5), ("a/3", 5), ("b/1", 8))
    assert graves.horizon == 5
    assert list(graves.under("a/", 4)) == ["a/3", "a/2"]
    graves.dig(["c/1", "c/2", "c/3"], 9)
    assert (graves.as_value(), graves.horizon) == ((("c/1", 9), ("c/2", 9), ("c/3", 9)), 8)


def test_too_many_at_once_are_not_remembered_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GRAVES", 3)
    room = 4 * cost_of_key("d/1")
    monkeypatch.setattr(module, "MAX_BYTES", room)
    graves = Graves(1)
    graves.dig(["a/1"], 5)
    graves.dig(["b/1", "b/2", "b/3", "b/4"], 8)
    assert (graves.as_value(), graves.horizon) == ((), 8)
    assert list(graves.under("a/", 0)) == []
    graves.dig(["d/1", "d/2", "d/3"], 9)
    assert (len(graves.as_value()), graves.horizon) == (3, 8), "nothing of those before is counted any more"


def test_bytes_are_bounded_and_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = "a/1", "a/" + "x" * 100
    monkeypatch.setattr(module, "MAX_BYTES", cost_of_key(short) + cost_of_key(long))
    for known in ((), ((short, 2), (long, 3))):
        graves = Graves(1, known)
        for revision in range(4, 30, 2):  # What was forgotten and what was put again does not count.
            graves.close(short)
            graves.dig([short], revision)
            graves.close(long)
            graves.dig([long], revision + 1)
            assert graves.as_value() == ((short, revision), (long, revision + 1))
            assert graves.horizon == 1
        graves.dig(["b"], 40)
        assert graves.as_value() == ((long, 29), ("b", 40))
        assert graves.horizon == 28
        graves.dig([short], 41)
        assert graves.as_value() == (("b", 40), (short, 41))
        assert graves.horizon == 29


def test_a_value_is_all_there_is() -> None:
    graves = Graves(1)
    graves.dig(["a/1", "a/2"], 5)
    again = Graves(graves.horizon, graves.as_value())
    assert (again.horizon, again.as_value()) == (graves.horizon, graves.as_value())
    assert list(again.under("a/", 0)) == ["a/2", "a/1"]


def test_as_many_are_remembered_as_a_large_run_deletes_at_once() -> None:
    assert (module.MAX_GRAVES, module.MAX_BYTES) == (4096, 16 * 1024 * 1024)
