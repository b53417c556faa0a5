"""What goes into a backend and comes out of it, as values."""

from __future__ import annotations

import msgspec
import pytest

from rendezvous_async.backends.values import (
    OWN,
    Commit,
    Condition,
    Delete,
    Entry,
    Listing,
    Put,
    Token,
    names_session,
    owned,
)

TOKEN = Token("epoch", 5)


def entry(key: str, value: bytes | None = b"v", session: str | None = None) -> Entry:
    return Entry(key, value, TOKEN, session)


def test_a_token_is_shown_as_its_epoch_and_revision() -> None:
    assert str(TOKEN) == "epoch:5"


@pytest.mark.parametrize(
    ("known", "is_news"),
    [
        (None, True),
        (Token("epoch", 4), True),
        (Token("epoch", 5), False),
        (Token("epoch", 6), False),
        (Token("other", 4), True),
        (Token("other", 6), True),
    ],
)
def test_what_is_news_to_whom(known: Token | None, is_news: bool) -> None:
    assert TOKEN.is_news_to(known) is is_news


def test_what_is_read_is_relative_to_where_it_was_asked() -> None:
    assert entry("run/a/b", b"v", "s").relative_to("run/") == entry("a/b", b"v", "s")
    for complete in (True, False):
        listing = Listing((entry("run/a"), entry("run/b")), TOKEN, complete)
        assert listing.relative_to("run/") == Listing((entry("a"), entry("b")), TOKEN, complete)
    lost = Commit(False, TOKEN, (entry("run/a"),))
    assert lost.relative_to("run/") == Commit(False, TOKEN, (entry("a"),))
    won = Commit(True, TOKEN)
    assert won.relative_to("run/") == won


def test_a_listing_and_a_commit_have_the_revision_of_their_token() -> None:
    listing = Listing((), TOKEN)
    assert listing.complete
    assert listing.revision == Commit(True, TOKEN).revision == 5


def test_a_commit_that_lost_tells_what_stands_at_a_key() -> None:
    lost = Commit(False, TOKEN, (entry("a"), entry("b")))
    assert [lost.entry(key) for key in "abc"] == [entry("a"), entry("b"), None]


def test_a_put_is_an_entry_once_it_has_won() -> None:
    assert Put("a", b"v", "s").entry(TOKEN) == entry("a", b"v", "s")


def test_who_owns_what_a_session_begins_with() -> None:
    writes = (Put("a", b"", OWN), Put("b", b"", "other"), Put("c", b""), Delete("d"))
    assert owned(writes, "mine") == (Put("a", b"", "mine"), *writes[1:])


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ((), False),
        ((Put("a", b""), Put("b", b"", OWN), Delete("c")), False),
        ((Delete("c"), Put("b", b"", "session")), True),
    ],
)
def test_whether_a_commit_is_under_a_session_that_is_open(writes: tuple[Put | Delete, ...], expected: bool) -> None:
    assert names_session(writes) is expected


VALUES = [
    (TOKEN, ["epoch", 5]),
    (entry("a"), ["a", b"v", ["epoch", 5], None, ""]),
    (Listing((), TOKEN), [[], ["epoch", 5], True]),
    (Commit(True, TOKEN), [True, ["epoch", 5], []]),
    (Condition("a", None), ["a", None]),
    (Put("a", b"v", "s"), ["put", "a", b"v", "s"]),
    (Delete("a"), ["delete", "a"]),
]


@pytest.mark.parametrize(("value", "written"), VALUES, ids=lambda each: type(each).__name__)
def test_values_are_frozen_and_are_written_as_lists(value: msgspec.Struct, written: list[object]) -> None:
    """On the wire and in logs; a list costs half of what an object with names costs."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == written
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], None)


def test_values_compare_by_what_they_hold() -> None:
    assert Condition("a", TOKEN) == Condition("a", Token("epoch", 5)) != Condition("a", None)
    assert len({TOKEN, Token("epoch", 5), entry("a"), entry("a")}) == 2
