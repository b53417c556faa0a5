"""Records survive the trip through bytes, and nothing else gets through."""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core.codec import FORMAT, MAX_RECORD, decode, encode
from rendezvous_async.core.state import Closed, Head, Node, Post, Seat
from rendezvous_async.errors import RendezvousStateError, RendezvousVersionError
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
    with pytest.raises(RendezvousVersionError, match=rf"'x'.*newer.*format {version}.*reads {FORMAT}.*upgrade"):
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


def with_later_fields(value: Any, later: object) -> Any:
    """Return a record's fields as a newer version would write them: with one more at every level."""
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: with_later_fields(getattr(value, name), later) for name in value.__struct_fields__}
    return fields | {"later": later}


LATER = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(records, LATER)
def test_fields_that_are_not_known_are_passed_over_at_every_level(value: Record, later: object) -> None:
    assert decode(kind_of(value), packed(kind_of(value), with_later_fields(value, later))) == value


def test_every_level_of_a_head_may_have_later_fields() -> None:
    """What the test above counts on: that it reaches the inner records."""
    closed = msgspec.structs.replace(HEAD, closed=Closed("done", "a"))
    fields = with_later_fields(closed, 1)
    assert fields["later"] == fields["settings"]["later"] == fields["closed"]["later"] == 1
    assert with_later_fields(record("a1", (1, 0)), 1)["last"]["later"] == 1


@given(records, LATER)
def test_a_rewrite_drops_a_field_that_is_not_known_and_keeps_the_others(value: Record, later: object) -> None:
    """So a new field has a default that is right for an older version's rewrite; where none is, ``requires`` has it."""
    kind = kind_of(value)
    assert encode(decode(kind, packed(kind, with_later_fields(value, later)))) == encode(value)


@given(records)
def test_fields_with_a_default_may_be_absent(value: Record) -> None:
    """An older version did not write them: each can be left out, and has its default then."""
    fields = msgspec.to_builtins(value)
    assert isinstance(fields, dict)
    kind = kind_of(value)
    for field in msgspec.structs.fields(value):
        if not field.required:
            found = decode(kind, packed(kind, {name: fields[name] for name in fields if name != field.name}))
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            assert found == msgspec.structs.replace(value, **{field.name: default})


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


def record_of_size(size: int) -> Node:
    """Return a record of exactly ``size`` bytes."""
    small = record("a1", labels={str(number): "x" * 1000 for number in range(64)})
    spare = size - len(encode(small))
    assert 0 < spare < 64 * 24
    labels = dict(small.labels)
    for name in labels:
        more = min(spare, 24)
        labels[name] += "x" * more
        spare -= more
    return msgspec.structs.replace(small, labels=labels)


def test_a_record_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert MAX_RECORD == 65536
    largest = record_of_size(MAX_RECORD)
    data = encode(largest)
    assert len(data) == MAX_RECORD
    assert decode(Node, data) == largest
    with pytest.raises(ValueError, match="at most 65536 bytes, not 65537"):
        encode(record_of_size(MAX_RECORD + 1))
    with pytest.raises(RendezvousStateError, match="has 65537 bytes, more than the 65536"):
        decode(Node, data + b"x")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (None, "is cut short: None"),
        (b"\x01", "is cut short"),
        (b"\x01N", "is damaged"),
        (b"\x02N", "was written by a newer rendezvous_async"),
        (b"\x01S", "is not a Node record"),
        (b"\x02S", "is not a Node record"),
        (b"\x01S" + b"x" * (MAX_RECORD - 2), "is not a Node record"),
    ],
)
def test_what_is_wrong_is_told(data: bytes | None, complaint: str) -> None:
    with pytest.raises(RendezvousStateError, match=complaint) as refused:
        decode(Node, data)
    assert isinstance(refused.value, RendezvousVersionError) == ("newer" in complaint), "only an upgrade helps there"


def test_the_limits_of_a_record_are_these() -> None:
    """Whatever is over them is refused, and what is at them is not: other versions count on it."""
    seat = Seat(round=2**53, attempt="x" * 1024, arrival="a", rank=0, labels={str(n): "" for n in range(64)})
    assert decode(Seat, encode(seat)) == seat
    fields = msgspec.to_builtins(seat)
    assert isinstance(fields, dict)
    for wrong in (
        {"round": 2**53 + 1},
        {"round": -1},
        {"attempt": "x" * 1025},
        {"labels": {str(n): "" for n in range(65)}},
    ):
        with pytest.raises(RendezvousStateError, match="is damaged"):
            decode(Seat, packed(Seat, fields | wrong))


@pytest.mark.parametrize("requires", [["x"] * 33, ["x" * 65], [""], [1], "shape", None])
def test_the_features_that_a_head_requires_are_bounded(requires: object) -> None:
    assert decode(Head, packed(Head, head_fields() | {"requires": ["x" * 64] * 32})).requires == ("x" * 64,) * 32
    with pytest.raises(RendezvousStateError, match="is damaged"):
        decode(Head, packed(Head, head_fields() | {"requires": requires}))


@pytest.mark.parametrize(
    "later", [b"\x91" * (MAX_RECORD - 400), b"\x81\xa1x" * 20_000, b"\xc1", b"\xdf\xff\xff\xff\xff"]
)
def test_a_field_that_is_not_known_may_not_be_just_anything(later: bytes) -> None:
    """Passed over means read to its end: one that is nested too deep, or has no end, is damage."""
    hostile = msgspec.msgpack.encode(head_fields() | {"later": msgspec.Raw(later)})
    with pytest.raises(RendezvousStateError, match="is damaged"):
        decode(Head, bytes((FORMAT,)) + b"H" + hostile)
