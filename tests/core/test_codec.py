"""Records survive the trip through bytes, and nothing else gets through."""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core.codec import FORMAT, MAX_RECORD, decode, encode
from rendezvous_async.core.state import Head, Node, Post, Seat
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.settings import Settings
from tests.core.make import TWO_TO_FOUR, record, records

LETTERS: dict[type, bytes] = {Head: b"H", Node: b"N", Seat: b"S", Post: b"C"}
KINDS = list(LETTERS)
kinds = st.sampled_from(KINDS)
HEAD = Head(settings=TWO_TO_FOUR)
Record: TypeAlias = Head | Node | Seat | Post


def kind_of(value: Record) -> Any:
    return type(value)


def packed(kind: type, fields: object, version: int = FORMAT) -> bytes:
    """Return bytes with the opening of a record of that kind, and anything at all behind it."""
    return bytes((version,)) + LETTERS[kind] + msgspec.msgpack.encode(fields)


def head_fields(**settings: object) -> dict[str, object]:
    """Return the fields of a head, with some of its settings changed."""
    fields = msgspec.to_builtins(HEAD)
    assert isinstance(fields, dict)
    fields["settings"] |= settings
    return fields


@given(records)
def test_every_record_survives_the_round_trip(value: Record) -> None:
    assert decode(kind_of(value), encode(value)) == value


@given(records)
def test_equal_records_have_equal_bytes(value: Record) -> None:
    assert encode(decode(kind_of(value), encode(value))) == encode(value)


@given(kinds, st.binary(max_size=200))
def test_garbage_is_a_state_error(kind: Any, data: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        decode(kind, data)


@given(kinds, st.binary(max_size=200))
def test_garbage_with_a_good_opening_is_a_state_error(kind: Any, data: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        decode(kind, bytes((FORMAT,)) + LETTERS[kind] + data)


@given(records, st.data())
def test_truncated_bytes_are_a_state_error(value: Record, data: st.DataObject) -> None:
    whole = encode(value)
    with pytest.raises(RendezvousStateError):
        decode(kind_of(value), whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(records, st.binary(min_size=1, max_size=20))
def test_bytes_behind_the_record_are_a_state_error(value: Record, more: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        decode(kind_of(value), encode(value) + more)


@given(records, st.data())
def test_damaged_bytes_are_a_state_error_or_another_record(value: Record, data: st.DataObject) -> None:
    damaged = bytearray(encode(value))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RendezvousStateError):
        assert isinstance(decode(kind_of(value), bytes(damaged)), type(value))


@given(records, kinds)
def test_a_record_of_another_kind_is_a_state_error(value: Record, kind: Any) -> None:
    if kind is not type(value):
        with pytest.raises(RendezvousStateError, match=f"is not a {kind.__name__} record"):
            decode(kind, encode(value))


@pytest.mark.parametrize("version", [FORMAT + 1, 255])
@pytest.mark.parametrize("kind", KINDS)
def test_a_future_version_is_a_state_error_that_says_to_upgrade(kind: Any, version: int) -> None:
    with pytest.raises(RendezvousStateError, match=rf"'x'.*newer.*format {version}.*reads {FORMAT}.*upgrade"):
        decode(kind, packed(kind, {}, version), "x")


def test_version_zero_is_a_state_error() -> None:
    with pytest.raises(RendezvousStateError, match="is not a Post record"):
        decode(Post, packed(Post, {"node": "a"}, 0))


@pytest.mark.parametrize("data", [None, b"", b"\x01"])
def test_nothing_at_all_is_a_state_error(data: bytes | None) -> None:
    with pytest.raises(RendezvousStateError, match="the record at 'state' is cut short"):
        decode(Head, data, "state")


def test_oversized_bytes_are_a_state_error() -> None:
    with pytest.raises(RendezvousStateError, match=f"{MAX_RECORD + 1} bytes, more than the {MAX_RECORD}"):
        decode(Head, encode(HEAD).ljust(MAX_RECORD + 1, b"\0"))


def test_an_oversized_record_is_refused_before_it_is_written() -> None:
    huge = record("a", labels={"note": "x" * MAX_RECORD})
    with pytest.raises(ValueError, match=f"a Node record has at most {MAX_RECORD} bytes, not 65"):
        encode(huge)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Head, msgspec.to_builtins(HEAD) | {"extra": 1}),
        (Head, head_fields(extra=1)),
        (Head, msgspec.to_builtins(HEAD) | {"closed": {"reason": "", "by": "", "extra": 1}}),
        (Node, {"arrival": "a", "fingerprint": "", "extra": 1}),
        (Node, {"arrival": "a", "fingerprint": "", "last": {"round": 1, "rank": 0, "extra": 1}}),
        (Seat, {"round": 1, "attempt": "", "arrival": "", "rank": 0, "extra": 1}),
        (Post, {"node": "a", "extra": 1}),
    ],
)
def test_an_unknown_field_is_a_state_error(kind: Any, fields: object) -> None:
    with pytest.raises(RendezvousStateError, match="unknown field `extra`"):
        decode(kind, packed(kind, fields))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Head, {}),
        (Head, []),
        (Head, head_fields(min_nodes=5)),
        (Head, head_fields(max_nodes=0)),
        (Head, head_fields(min_nodes=True)),
        (Head, head_fields(ranks="by age")),
        (Head, head_fields(last_call=float("nan"))),
        (Head, head_fields(regroup=-1.0)),
        (Head, head_fields() | {"round": -1}),
        (Head, head_fields() | {"phase": "resting"}),
        (Head, head_fields() | {"token": ["epoch"]}),
        (Head, head_fields() | {"attempt": "x" * 1025}),
        (Node, {"arrival": "a"}),
        (Node, {"arrival": 1, "fingerprint": ""}),
        (Node, {"arrival": "a", "fingerprint": "", "labels": {str(number): "" for number in range(65)}}),
        (Node, {"arrival": "a", "fingerprint": "", "labels": {"rack": 1}}),
        (Node, {"arrival": "a", "fingerprint": "", "last": {"round": 1, "rank": -1}}),
        (Seat, {"round": 1, "attempt": "", "arrival": "", "rank": "0"}),
        (Post, {"node": None}),
        (Post, {"node": b"\xff"}),
    ],
)
def test_a_wrong_field_is_a_state_error(kind: Any, fields: object) -> None:
    with pytest.raises(RendezvousStateError, match="the record at 'there' is damaged"):
        decode(kind, packed(kind, fields), "there")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"\x81\xa1x" + b"\x91" * (MAX_RECORD - 16), id="deep"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="a map that claims four billion fields"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="bytes that claim four GiB"),
        pytest.param(b"\x81\xa1\xff\x00", id="a name that is no UTF-8"),
        pytest.param(b"\xc1", id="a byte that msgpack never uses"),
    ],
)
def test_a_hostile_value_is_a_state_error(kind: Any, bomb: bytes) -> None:
    with pytest.raises(RendezvousStateError):
        decode(kind, bytes((FORMAT,)) + LETTERS[kind] + bomb)


def test_text_that_is_no_utf8_is_a_state_error() -> None:
    with pytest.raises(RendezvousStateError, match="damaged"):
        decode(Post, encode(Post("abc")).replace(b"abc", b"a\xffc"))


def test_equal_settings_have_equal_fingerprints() -> None:
    assert Settings(2, 4).fingerprint == Settings(2, 4, "sticky", 30.0, 3.0).fingerprint
    assert len({Settings(2, 4).fingerprint, Settings(2, 5).fingerprint, Settings(2, 4, "sorted").fingerprint}) == 3
