"""The index of keys by subtree, against a plain list of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.names import covers, widest
from rendezvous_async.backends.table.trees import Trees

KEYS = ["a", "a/b", "a/b/c", "a/b/d", "ab/c", "b/x", "b/x/y/z", "b/y"]
SUBTREES = ["a/", "a/b/", "ab/", "b/", "b/x/", "b/x/y/", "none/"]


@given(st.lists(st.one_of(st.sampled_from(KEYS), st.tuples(st.sampled_from(SUBTREES))), max_size=40), st.booleans())
def test_against_a_plain_list(steps: list[str | tuple[str]], moving: bool) -> None:
    """A key that is there is moved to the end or removed, another is added; a subtree is cut."""
    trees = Trees()
    model: list[str] = []
    for step in steps:
        if isinstance(step, tuple):
            (subtree,) = step
            assert list(trees.cut(subtree)) == [key for key in model if covers(subtree, key)]
            model = [key for key in model if not covers(subtree, key)]
        elif step not in model:
            trees.add(step)
            model.append(step)
        else:
            model.remove(step)
            if moving:
                trees.move_to_end(step)
                model.append(step)
            else:
                trees.remove(step)
        for name in SUBTREES:
            assert list(trees.under(name)) == [key for key in model if covers(name, key)]
    for key in model:
        trees.remove(key)
    assert not trees._under


def test_a_key_that_moves_is_the_last_one() -> None:
    trees = Trees()
    for key in ("a/b", "a/c", "a/d"):
        trees.add(key)
    trees.move_to_end("a/b")
    assert list(trees.under("a/")) == ["a/c", "a/d", "a/b"]


def test_clear_leaves_nothing() -> None:
    trees = Trees()
    trees.add("a/b/c")
    trees.clear()
    assert not trees.under("a/")
    assert not trees.under("a/b/")


def test_a_subtree_with_a_name_of_one_letter_is_cut_out_of_what_holds_it() -> None:
    trees = Trees()
    for key in ("a/b/c", "a/b/d/e", "a/x"):
        trees.add(key)
    assert list(trees.cut("a/b/")) == ["a/b/c", "a/b/d/e"]
    assert list(trees.under("a/")) == ["a/x"]
    assert not trees.under("a/b/d/")


@given(st.lists(st.sampled_from([*KEYS, *SUBTREES]), min_size=1, max_size=6))
def test_the_widest_names_cover_the_same(names: list[str]) -> None:
    wide = widest(tuple(names))
    assert set(wide) <= set(names)
    for key in KEYS:
        assert any(covers(name, key) for name in wide) == any(covers(name, key) for name in names)
    subtrees = [name for name in wide if name.endswith("/")]
    assert not any(covers(subtree, name) for subtree in subtrees for name in wide if name != subtree)
    assert len(subtrees) == len(set(subtrees))
