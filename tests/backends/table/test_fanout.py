"""The index of watchers: whoever watches a name that covers a changed key is told, once, and nobody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.names import covers
from rendezvous_async.backends.table.fanout import Fanout

KEYS = ["a", "a/b", "a/b/c", "ab", "b", "b/x/y/z"]
NAMES = [*KEYS, "a/", "a/b/", "b/", "b/x/", "b/x/y/"]
names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)
keys = st.lists(st.sampled_from(KEYS), max_size=4)


@given(st.lists(st.tuples(st.integers(0, 5), names, st.booleans()), max_size=20), keys)
def test_against_a_plain_search(steps: list[tuple[int, list[str], bool]], changed: list[str]) -> None:
    fanout: Fanout[int] = Fanout()
    model: set[tuple[str, int]] = set()
    for watcher, watched, add in steps:
        if add:
            fanout.add(watched, watcher)
            model |= {(name, watcher) for name in watched}
        else:
            fanout.remove(watched, watcher)
            model -= {(name, watcher) for name in watched}
    concerned = fanout.concerned(changed)
    assert len(concerned) == len(set(concerned))
    assert set(concerned) == {watcher for name, watcher in model if any(covers(name, key) for key in changed)}
    assert len(fanout) == len(model)


def test_the_order_is_repeatable() -> None:
    """That of the keys, then of the names from the key outwards, then of the watchers' coming."""
    fanout: Fanout[str] = Fanout()
    fanout.add(["a/"], "subtree")
    fanout.add(["b"], "b")
    fanout.add(["a/x"], "first")
    fanout.add(["a/x"], "second")
    assert fanout.concerned(["a/x", "b", "a/x"]) == ["first", "second", "subtree", "b"]
    assert fanout.concerned(["b", "a/x"]) == ["b", "first", "second", "subtree"]


def test_nothing_is_left_when_all_have_gone() -> None:
    fanout: Fanout[int] = Fanout()
    for watcher in range(100):
        fanout.add(["a/", f"b/{watcher}"], watcher)
    for watcher in range(100):
        fanout.remove(["a/", f"b/{watcher}", "never added"], watcher)
    assert len(fanout) == 0
    assert fanout.concerned(["a/x", "b/7"]) == []
    assert not fanout._watchers
