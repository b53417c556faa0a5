"""Names of keys and subtrees: which are allowed, which cover which, and whose they are."""

from __future__ import annotations

import re

import pytest

from rendezvous_async.backends import names as module
from rendezvous_async.backends.names import (
    MAX_KEY_LENGTH,
    check_key,
    check_name,
    covers,
    name_size,
    place_of,
    subtrees_of,
    widest,
)

LONG = "x" * (module.REMEMBERED_LENGTH + 10)


def test_the_size_of_a_name_is_its_bytes() -> None:
    assert [name_size(name) for name in ("", "abc", "\N{GREEK SMALL LETTER ALPHA}b", "\N{SNOWMAN}")] == [0, 3, 3, 3]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("ns/job/state", ("ns/job", False)),
        ("ns/job/nodes/a", ("ns/job", False)),
        ("ns/job/seats/a", ("ns/job", False)),
        ("ns/job/rounds/7", ("ns/job", False)),
        ("ns/job/rounds/7/key", ("ns/job", True)),
        ("ns/job/rounds/7/a/b/nodes/c", ("ns/job", True)),
        ("ns/job/nodes/rounds/7/key", ("ns/job", False)),
        ("a/b/c/job/nodes/x", ("a/b/c/job", False)),
        ("a/b/c/job/rounds/1/x", ("a/b/c/job", True)),
        ("a/b/c/job/state", ("a/b", False)),
        ("nodes/seats/rounds/1/key", ("nodes/seats", True)),
        ("rounds/1/nodes/x", ("rounds/1", False)),
        ("ns/key", ("ns/key", False)),
        ("key", ("key", False)),
        (f"ns/{LONG}/rounds/1/key", (f"ns/{LONG}", True)),
        (f"ns/{LONG}/nodes/x", (f"ns/{LONG}", False)),
        (f"{LONG}/key", (f"{LONG}/key", False)),
    ],
)
def test_whose_a_key_is_and_whether_it_is_data(key: str, place: tuple[str, bool]) -> None:
    assert place_of(key) == place


def test_a_run_is_looked_for_as_deep_as_people_nest_namespaces() -> None:
    for depth in (2, 5, 7):
        assert place_of("/".join("abcdefgh"[:depth]) + "/nodes/x")[0] == "/".join("abcdefgh"[:depth])
    assert place_of("a/b/c/d/e/f/g/h/i/j/nodes/x") == ("a/b", False)


@pytest.mark.parametrize("first", ["a", LONG])
def test_what_holds_a_key(first: str) -> None:
    assert subtrees_of("key") == ()
    assert subtrees_of(f"{first}/key") == (f"{first}/",)
    assert subtrees_of(f"{first}/b/key") == subtrees_of(f"{first}/b/") == (f"{first}/", f"{first}/b/")


def test_what_covers_what() -> None:
    pairs = [("a", "a"), ("a", "ab"), ("a", "a/b"), ("a/", "a/b"), ("a/", "a/b/c"), ("a/", "ab"), ("a/", "a"), ("", "")]
    assert [covers(*pair) for pair in pairs] == [True, False, False, True, True, False, False, True]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ()),
        (("a", "b", "a"), ("a", "b", "a")),
        (("a/", "a/b", "ab"), ("a/", "ab")),
        (("a/b/c", "a/b/", "a/", "b/", "b/"), ("a/", "b/")),
        (("a/", "a"), ("a/", "a")),
        (("b/x/", "a/x", "b/x"), ("b/x/", "a/x", "b/x")),
    ],
)
def test_names_that_another_one_covers_are_left_out(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert widest(names) == expected


GOOD = ["a", "a/b", "a b/c", "\N{SNOWMAN}", "a.b/..", "x" * MAX_KEY_LENGTH]


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert check_key(name) == name
    assert check_name(name) == name
    if len(name) < MAX_KEY_LENGTH:
        assert check_name(f"{name}/") == f"{name}/"


def test_the_whole_run_is_a_name_and_no_key() -> None:
    assert check_name("") == ""
    for wrong in ("", "a/", "/"):
        with pytest.raises(ValueError, match=f"a key must not be empty or end in a slash: {wrong!r}"):
            check_key(wrong)


@pytest.mark.parametrize("name", ["/", "/a", "a//b", "a//", "a\n", "a\tb", "\x00", "\ud800"])
def test_names_that_are_not_allowed(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"between single slashes, unlike {name!r}")):
        check_name(name)


def test_a_name_that_is_too_long_is_shown_by_its_beginning() -> None:
    name = "abcdefgh" * 200
    with pytest.raises(ValueError, match=f"at most {MAX_KEY_LENGTH} characters, not 1600: {name[:64]!r}\\.\\.\\.$"):
        check_name(name)
    with pytest.raises(ValueError, match=f"not {MAX_KEY_LENGTH + 1}"):
        check_name("x" * (MAX_KEY_LENGTH + 1))
