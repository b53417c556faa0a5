"""What stands in the value: it comes back as it was, damage is refused, writes are found again by their marks."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest

from rendezvous_async.backends.cas.image import MAX_DELETIONS, MAX_MARKS, Draft, Image
from rendezvous_async.backends.observer import Look
from rendezvous_async.backends.values import Delete, Put, Token
from rendezvous_async.errors import RendezvousSessionError, RendezvousStateError, RendezvousVersionError


def mark(number: int) -> bytes:
    return b"%08d" % number


def a_value() -> tuple[Image, str]:
    """Return a value with an entry, a deletion, and a session that has a key and was kept alive twice."""
    draft = Draft(Image.empty("epoch"))
    session, commit = draft.open_session(5.0, (Put("run/a", b"1", ""), Put("run/b", b"2")), ())
    assert commit.won
    draft.commit((Delete("run/b"), Put("run/c", b"3")), ())
    draft.keep_alive(session)
    draft.keep_alive(session)
    return draft.image(mark(1)), session


def test_a_value_comes_back_as_it_was() -> None:
    image, session = a_value()
    again = Image.decode(image.data)
    assert (again.number, again.mark, again.beats, again.epoch) == (1, mark(1), {session: 2}, "epoch")
    assert again.table.list("run/") == image.table.list("run/")
    assert [entry.session for entry in again.table.list("run/").entries] == [session, None]
    changes = again.table.changes(("run/",), Token("epoch", 1))
    assert changes is not None
    assert [(entry.key, entry.value) for entry in changes.entries] == [("run/b", None), ("run/c", b"3")]
    assert again.table.open_sessions() == [(session, 5.0)]


def test_every_changed_byte_is_noticed() -> None:
    image, _ = a_value()
    for place in range(len(image.data)):
        bad = bytearray(image.data)
        bad[place] ^= 1
        with pytest.raises(RendezvousStateError):
            Image.decode(bytes(bad))
    for length in range(len(image.data)):
        with pytest.raises(RendezvousStateError):
            Image.decode(image.data[:length])


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode([1, [], {"no such": 1}, []])])
def test_a_sound_frame_around_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="damaged"):
        Image.decode(struct.pack(">7sBI", b"rdzvcas", 1, zlib.crc32(body)) + body)


def test_what_others_wrote_is_refused_in_words() -> None:
    with pytest.raises(RendezvousStateError, match="not written by rendezvous_async"):
        Image.decode(b"\x80\x04a pickled state of the classic")
    with pytest.raises(RendezvousVersionError, match="version 2, this one reads up to 1"):
        Image.decode(b"rdzvcas\x02" + bytes(4))


def test_fields_of_later_versions_are_passed_over() -> None:
    image, session = a_value()
    fields = msgspec.msgpack.decode(image.data[12:])
    body = msgspec.msgpack.encode([*fields, "something new"])
    again = Image.decode(struct.pack(">7sBI", b"rdzvcas", 1, zlib.crc32(body)) + body)
    assert again.beats == {session: 2}


def test_sessions_and_counters_belong_together() -> None:
    image, _ = a_value()
    number, marks, _, snapshot = msgspec.msgpack.decode(image.data[12:])
    body = msgspec.msgpack.encode([number, marks, {}, snapshot])
    with pytest.raises(RendezvousStateError, match="sessions"):
        Image.decode(struct.pack(">7sBI", b"rdzvcas", 1, zlib.crc32(body)) + body)


def test_a_keep_alive_leaves_the_table_alone() -> None:
    image, session = a_value()
    known = Image.decode(image.data)
    draft = Draft(known)
    draft.keep_alive(session)
    after = draft.image(mark(2))
    seen = Image.decode(after.data, known)
    assert seen.snapshot == known.snapshot
    assert seen.table is known.table, "it is not decoded again"
    assert seen.look(session) != known.look(session)


def test_a_draft_that_loses_leaves_no_trace() -> None:
    image, session = a_value()
    before = image.table.list("run/")
    draft = Draft(image)
    draft.commit((Put("run/lost", b""),), ())
    draft.end_session(session)
    draft.drop()
    assert image.table.list("run/") == before
    assert image.beats == {session: 2}


def test_a_call_that_is_refused_changes_nothing() -> None:
    image, _ = a_value()
    draft = Draft(image)
    with pytest.raises(RendezvousSessionError):
        draft.keep_alive("nobody")
    with pytest.raises(RendezvousSessionError):
        draft.commit((Put("run/x", b"", "nobody"),), ())
    draft.end_session("nobody")
    assert not draft.is_changed


def test_only_a_session_that_still_looks_the_same_is_ended() -> None:
    image, session = a_value()
    old = {session: image.look(session)}
    draft = Draft(image)
    draft.keep_alive(session)
    assert draft.end_silent(old) == []
    assert draft.end_silent({session: Look(b"3"), "nobody": Look(b"-1")}) == [session]
    assert draft.image(mark(2)).beats == {}


def test_a_write_is_found_by_its_mark_until_it_is_forgotten() -> None:
    image, session = a_value()
    for number in range(2, MAX_MARKS + 2):
        assert image.has_mark(1, mark(1)) is True
        draft = Draft(image)
        draft.keep_alive(session)
        image = Image.decode(draft.image(mark(number)).data, image)
    assert image.has_mark(1, mark(1)) is None, "too many have followed"
    assert image.has_mark(2, mark(2)) is True
    assert image.has_mark(2, mark(3)) is False
    assert image.has_mark(image.number + 1, mark(1)) is None, "it may still come"


def test_the_history_is_short() -> None:
    """Who has missed few deletions is told of each; who has missed many gets all that is left."""
    draft = Draft(Image.empty("epoch"))
    keys = [f"run/{number}" for number in range(2 * MAX_DELETIONS)]
    draft.commit(tuple(Put(key, b"") for key in keys), ())
    for key in keys:
        draft.commit((Delete(key),), ())
    table = Image.decode(draft.image(mark(1)).data).table
    few = table.changes(("run/",), Token("epoch", table.revision - MAX_DELETIONS))
    assert few is not None
    assert not few.complete
    assert len(few.entries) == MAX_DELETIONS
    many = table.changes(("run/",), Token("epoch", table.revision - MAX_DELETIONS - 1))
    assert many is not None
    assert many.complete


def test_another_history_has_other_tokens() -> None:
    image, session = a_value()
    other = image.renamed("another", 7)
    assert not other.is_written
    assert (other.epoch, other.number, other.beats) == ("another", 7, {session: 2})
    commit = Draft(other).commit((Put("run/a", b"new", session),), ())
    assert commit.token.epoch == "another"
