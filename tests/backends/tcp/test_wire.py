"""Frames and messages, without any socket."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.base import Commit, Condition, Delete, Entry, Listing, Put, Token
from rendezvous_async.backends.tcp import versions, wire

ids = st.integers(0, 2**63)
numbers = st.integers(0, 255)
names = st.text(max_size=20)
tokens = st.builds(Token, names, st.integers(0, 2**53))
entries = st.builds(Entry, names, st.none() | st.binary(max_size=50), tokens, st.none() | names)
listings = st.builds(Listing, st.lists(entries, max_size=4).map(tuple), tokens, st.booleans())
writes = st.lists(
    st.builds(Put, names, st.binary(max_size=50), st.none() | names) | st.builds(Delete, names), max_size=4
)
conditions = st.lists(st.builds(Condition, names, st.none() | tokens), max_size=4)
commits = st.builds(Commit, st.booleans(), tokens, st.lists(entries, max_size=3).map(tuple))
requests = st.one_of(
    st.builds(wire.Get, ids, names),
    st.builds(wire.List, ids, names),
    st.builds(wire.Transact, ids, ids, ids, writes.map(tuple), conditions.map(tuple)),
    st.builds(wire.Follow, ids, st.lists(names, max_size=3).map(tuple), st.none() | tokens),
    st.builds(wire.Unfollow, ids),
    st.builds(
        wire.OpenSession, ids, st.floats(0, 100), writes.map(tuple), conditions.map(tuple), st.lists(names).map(tuple)
    ),
    st.builds(wire.Renew, ids, names),
    st.builds(wire.Resume, ids, names),
    st.builds(wire.EndSession, ids, names),
    st.builds(wire.Ping, ids),
    st.builds(wire.Goodbye),
)
answers = st.one_of(
    st.builds(wire.Challenge, st.binary(max_size=40), numbers),
    st.builds(wire.Welcome, numbers, names, ids, st.binary(max_size=40), names),
    st.builds(wire.Refused, names, names),
    st.builds(wire.Found, ids, st.none() | entries),
    st.builds(wire.Listed, ids, listings),
    st.builds(wire.Transacted, ids, commits),
    st.builds(wire.Changed, ids, st.none() | listings),
    st.builds(wire.SessionOpened, ids, names, st.floats(0, 100), st.none() | commits, st.none() | listings),
    st.builds(wire.Done, ids),
    st.builds(wire.Failed, ids, names, names),
)


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    """The stream in pieces."""
    borders = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[begin:end] for begin, end in pairwise(borders)]


@given(st.lists(requests, max_size=6), st.lists(st.integers(0, 10_000), max_size=12))
def test_requests_arrive_as_they_were_sent_however_the_stream_is_cut(
    messages: list[wire.Request], places: list[int]
) -> None:
    decoder = wire.FrameDecoder(1_000_000)
    seen = []
    for piece in cut(b"".join(map(wire.frame, messages)), places):
        decoder.feed(piece)
        while (body := decoder.next()) is not None:
            seen.append(wire.decode_request(body))
    assert seen == messages


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.booleans(), max_size=20))
def test_frames_may_be_taken_late(bodies: list[bytes], takes: list[bool]) -> None:
    """A reader that is held back takes some frames, gets more bytes, and takes the rest: none is lost or swapped."""
    decoder = wire.FrameDecoder(100)
    seen = []
    for number, body in enumerate(bodies):
        stream = len(body).to_bytes(4, "big") + body
        decoder.feed(stream[:3])
        decoder.feed(stream[3:])
        if takes[number : number + 1] == [True] and (taken := decoder.next()) is not None:
            seen.append(taken)
    while (taken := decoder.next()) is not None:
        seen.append(taken)
    assert seen == bodies


@given(answers)
def test_answers_arrive_as_they_were_sent(message: wire.FromServer) -> None:
    decoder = wire.FrameDecoder(1_000_000)
    decoder.feed(wire.frame(message))
    body = decoder.next()
    assert body is not None
    assert wire.decode_answer(body) == message


@given(listings, ids)
def test_a_listing_that_was_encoded_before_is_the_same_push(listing: Listing, id: int) -> None:
    assert wire.frame(wire.EncodedChanged(id, wire.encode_listing(listing))) == wire.frame(wire.Changed(id, listing))


@given(st.binary(max_size=200))
def test_what_is_no_message_is_a_frame_error_and_nothing_else(body: bytes) -> None:
    for decode in (wire.decode_greeting, wire.decode_request, wire.decode_answer):
        try:
            decode(body)
        except wire.FrameError as error:
            assert str(error)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_the_decoder_holds_no_more_than_a_frame(stream: bytes, limit: int) -> None:
    decoder = wire.FrameDecoder(limit)
    try:
        for byte in stream:
            decoder.feed(bytes([byte]))
            while (body := decoder.next()) is not None:
                assert len(body) <= limit
            assert sum(map(len, decoder._parts)) + len(decoder._data) - decoder._at <= limit + 4
    except wire.FrameError:
        pass


def test_a_frame_that_is_too_long_is_refused_by_its_length_alone() -> None:
    decoder = wire.FrameDecoder(100)
    decoder.feed((101).to_bytes(4, "big"))
    with pytest.raises(wire.FrameError, match="101 bytes"):
        decoder.next()


def test_deep_nesting_does_not_break_the_decoder() -> None:
    with pytest.raises(wire.FrameError):
        wire.decode_request(b"\x9b\x0a\x01\xa1k" + b"\x91" * 100_000)
    with pytest.raises(wire.FrameError):  # in a field that is passed over
        wire.decode_request(b"\x94\x0a\x01\xa1k" + b"\x91" * 100_000)


def test_a_newer_hello_is_still_a_hello() -> None:
    """Fields that a newer version adds at the end are left alone, so that its version can be read and refused."""
    body = wire.frame(wire.Hello((9, 10), "client", 1, 0, b"nonce"))[4:]
    longer = bytes([body[0] + 1]) + body[1:] + b"\xa3new"
    assert wire.decode_greeting(longer) == wire.Hello((9, 10), "client", 1, 0, b"nonce")


def test_a_welcome_of_a_server_that_does_not_say_where_it_sees_the_client() -> None:
    """Such servers came first; and their clients ignore what a newer one adds."""
    old = msgspec.msgpack.encode([3, 1, "epoch", 7, b"proof"])
    assert wire.decode_answer(old) == wire.Welcome(1, "epoch", 7, b"proof", peer="")
    new = msgspec.msgpack.decode(wire.frame(wire.Welcome(1, "epoch", 7, b"proof", "10.1.2.3"))[4:])
    assert new == [3, 1, "epoch", 7, b"proof", "10.1.2.3"]


def with_later_fields(value: object, later: object) -> object:
    """Return a message as a newer version would write it: with one more field at the end, at every level."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [with_later_fields(getattr(value, name), later) for name in value.__struct_fields__]
        return [*([] if tag is None else [tag]), *fields, later]
    if isinstance(value, tuple):
        return [with_later_fields(item, later) for item in value]
    return value


LATER = st.sampled_from([None, 7, "text", b"bytes", [1, [2, {"a": None}]], {"a": [b""]}])
greetings = st.one_of(
    st.builds(wire.Hello, st.lists(numbers, max_size=16).map(tuple), names, ids, ids, st.binary(max_size=40), names),
    st.builds(wire.Proof, st.binary(max_size=40)),
)


@given(greetings, LATER)
def test_fields_of_a_greeting_that_are_not_known_are_passed_over(
    message: wire.Hello | wire.Proof, later: object
) -> None:
    assert wire.decode_greeting(msgspec.msgpack.encode(with_later_fields(message, later))) == message


@given(requests, LATER)
def test_fields_of_a_request_that_are_not_known_are_passed_over(message: wire.Request, later: object) -> None:
    assert wire.decode_request(msgspec.msgpack.encode(with_later_fields(message, later))) == message


@given(answers, LATER)
def test_fields_of_an_answer_that_are_not_known_are_passed_over(message: wire.FromServer, later: object) -> None:
    assert wire.decode_answer(msgspec.msgpack.encode(with_later_fields(message, later))) == message


@pytest.mark.parametrize("number", [5, 21, 29, 37, 999, -1, 2**64 - 1])
@pytest.mark.parametrize("decode", [wire.decode_request, wire.decode_answer], ids=["request", "answer"])
def test_a_kind_of_message_that_is_not_known_is_refused(decode: Callable[[bytes], object], number: int) -> None:
    """A peer may send it only in a version of the protocol that has it, so it is no field to be passed over."""
    with pytest.raises(wire.FrameError, match=r"not an? \w+ of this version of the protocol: Invalid value"):
        decode(msgspec.msgpack.encode([number, 1, "text"]))


@pytest.mark.parametrize(
    ("offered", "picked"),
    [((1,), 1), ((1, 2, 3), 1), ((3, 1), 1), ((1, 1), 1), ((), None), ((0,), None), ((2, 255), None)],
)
def test_the_server_picks_the_newest_version_that_both_speak(offered: tuple[int, ...], picked: int | None) -> None:
    assert versions.pick_version(offered) == picked


def test_the_newest_common_version_is_picked_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PROTOCOLS", (2, 3, 5))
    assert versions.pick_version((5, 3, 1)) == 5
    assert versions.pick_version((4, 3, 2, 1)) == 3
    assert versions.pick_version((4, 1)) is None


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ((1,), "the client speaks version 1 of the protocol, the server versions 3, 4; upgrade .* the client's side"),
        (
            (6, 5),
            "the client speaks versions 5, 6 of the protocol, the server versions 3, 4; upgrade .* the server's side",
        ),
        ((), "the client speaks no version of the protocol, the server versions 3, 4; upgrade .* the client's side"),
        ((1, 9), "the client speaks versions 1, 9 of the protocol, .* the server's side"),
    ],
)
def test_where_no_version_is_common_the_older_side_is_named(
    offered: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "PROTOCOLS", (3, 4))
    assert re.fullmatch(said, versions.no_common_version(offered))


@pytest.mark.parametrize("versions", [[1] * 17, [256], [-1], 1, ["1"], None, [[1]]])
def test_the_versions_of_a_hello_are_bounded(versions: object) -> None:
    def hello(versions: object) -> bytes:
        return msgspec.msgpack.encode([0, versions, "client", 1, 0, b"nonce"])

    assert wire.decode_greeting(hello([0] * 15 + [255])) == wire.Hello((0,) * 15 + (255,), "client", 1, 0, b"nonce")
    with pytest.raises(wire.FrameError, match="not a greeting"):
        wire.decode_greeting(hello(versions))


NUMBERS: dict[type[msgspec.Struct], int] = {
    wire.Hello: 0,
    wire.Challenge: 1,
    wire.Proof: 2,
    wire.Welcome: 3,
    wire.Refused: 4,
    wire.Get: 10,
    wire.List: 11,
    wire.Transact: 12,
    wire.Follow: 13,
    wire.Unfollow: 14,
    wire.OpenSession: 15,
    wire.Renew: 16,
    wire.EndSession: 17,
    wire.Ping: 18,
    wire.Goodbye: 19,
    wire.Resume: 20,
    wire.Found: 30,
    wire.Listed: 31,
    wire.Transacted: 32,
    wire.Changed: 33,
    wire.SessionOpened: 34,
    wire.Done: 35,
    wire.Failed: 36,
    wire.EncodedChanged: 33,
}


def test_messages_keep_their_numbers_for_as_long_as_the_protocol_keeps_its_own() -> None:
    """Peers of other versions know them by these numbers; whoever changes one must change the protocol's."""
    assert versions.PROTOCOLS == (1,)
    assert set(NUMBERS) == set(get_args(wire.AnyMessage))
    for kind, number in NUMBERS.items():
        assert kind.__struct_config__.tag == number, kind
        assert kind.__struct_config__.array_like, kind


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.__name__)
def test_messages_are_frozen(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize(("length", "does"), [(99, True), (100, True), (101, False)])
def test_an_answer_is_measured_by_its_keys_and_values(length: int, does: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_ANSWER", 100)
    token = Token("epoch", 1)
    last = Entry("k" * 10, b"x" * (length - 90), token)
    assert wire.fits([Entry("k" * 30, b"x" * 40, token), Entry("k" * 10, None, token), last]) is does


def test_an_answer_may_be_megabytes() -> None:
    assert wire.fits([Entry("key", bytes(2**20), Token("epoch", 1))])


def test_a_frame_in_many_pieces_is_joined_once() -> None:
    """A reader asks after every piece; a long frame was copied every second time that it did."""
    decoder = wire.FrameDecoder(1000)
    stream = wire.frame(wire.Get(1, "k" * 500))
    decoder.feed(stream[:10])
    assert decoder.next() is None
    for number in range(10, len(stream) - 1):
        decoder.feed(stream[number : number + 1])
        assert decoder.next() is None
        assert len(decoder._parts) == number - 8, "it was put together before it is whole"
    decoder.feed(stream[-1:])
    assert decoder.next() == stream[4:]
    assert decoder.next() is None


def test_a_reader_may_ask_before_anything_has_come() -> None:
    decoder = wire.FrameDecoder(100)
    assert decoder.next() is None
    decoder.feed(bytes(4))
    assert decoder.next() == b""


def test_a_short_frame_behind_a_long_one_is_there_as_soon_as_it_is_whole() -> None:
    decoder = wire.FrameDecoder(100)
    long, short = (100).to_bytes(4, "big") + b"x" * 100, (1).to_bytes(4, "big") + b"y"
    decoder.feed(long[:50])
    assert decoder.next() is None
    decoder.feed(long[50:] + short[:2])
    assert decoder.next() == long[4:], "as long as a frame may be"
    assert decoder.next() is None
    decoder.feed(short[2:])
    assert decoder.next() == b"y"


def test_frames_follow_each_other_in_one_buffer() -> None:
    messages: list[wire.AnyMessage] = [wire.Get(1, "a"), wire.Get(2, "b" * 300), wire.Goodbye()]
    out = bytearray()
    for message in messages:
        wire.frame_into(out, message)
    assert bytes(out) == b"".join(map(wire.frame, messages))


def test_a_frame_that_is_left_over_does_not_wait_for_more() -> None:
    decoder = wire.FrameDecoder(100)
    long, short = (100).to_bytes(4, "big") + b"x" * 100, (1).to_bytes(4, "big") + b"y"
    decoder.feed(long[:50])
    assert decoder.next() is None
    decoder.feed(long[50:] + short)
    assert decoder.next() == long[4:]
    decoder.feed(short[:2])
    assert decoder.next() == b"y"
    decoder.feed(short[2:])
    assert decoder.next() == b"y"


def test_an_empty_frame_is_whole_with_its_length() -> None:
    decoder = wire.FrameDecoder(100)
    decoder.feed(bytes(2))
    assert decoder.next() is None
    decoder.feed(bytes(2))
    assert decoder.next() == b""


@pytest.mark.parametrize("decode", [wire.decode_greeting, wire.decode_request, wire.decode_answer])
def test_nonsense_is_refused(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(wire.FrameError, match="not a"):
        decode(b"\xc1")
