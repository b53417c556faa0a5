"""The relay tells an answer from what else a server sends: a test that takes a ping for an answer looks too early."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.backends.etcd.relay import Relay, Side

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


class Wire:
    """A relayed connection without sockets, over which a client has begun the call 1."""

    def __init__(self, piece: int) -> None:
        self.relay = Relay(0)
        self.client = Side(self.relay, None)
        self.server = Side(self.relay, self.client)
        self.client.other = self.server
        self.relay.sides |= {self.client, self.server}
        self._piece = piece
        assert self.ask(PREFACE + frame(SETTINGS, 0, b"123456") + frame(HEADERS, 1, b"path") + frame(DATA, 1, b"x"))

    def ask(self, data: bytes) -> bool:
        return self._pass(self.client, data)

    def answer(self, data: bytes) -> bool:
        return self._pass(self.server, data)

    def _pass(self, side: Side, data: bytes) -> bool:
        """Hand over the bytes piece by piece; tell whether all of them were passed on, or none."""
        pieces: Sequence[bytes] = [data[at : at + self._piece] for at in range(0, len(data), self._piece)]
        passed = {self.relay.passes(side, piece) for piece in pieces}
        assert len(passed) == 1
        return passed.pop()


@pytest.fixture(params=[1, 7, 10_000])
def wire(request: pytest.FixtureRequest) -> Wire:
    """Return a connection on which TCP cuts what is sent into pieces of this size."""
    return Wire(request.param)


def test_an_answer_is_what_comes_on_a_stream_that_began_since(wire: Wire) -> None:
    wire.relay.drop_answers = True
    assert wire.ask(frame(HEADERS, 3, b"path") + frame(DATA, 3, b"a request"))
    assert not wire.answer(frame(WINDOW_UPDATE, 0, b"1234") + frame(PING, 0, b"12345678"))
    assert not wire.relay.answered.is_set(), "grpc sends these as soon as there is a request"
    assert not wire.answer(frame(DATA, 1, b"a keep-alive's answer") + frame(HEADERS, 1, b"trailers"))
    assert not wire.relay.answered.is_set()
    assert not wire.answer(frame(HEADERS, 3, b"status") + frame(DATA, 3, b"an answer"))
    assert wire.relay.answered.is_set()


def test_each_time_that_answers_are_dropped_counts_for_itself(wire: Wire) -> None:
    wire.relay.drop_answers = True
    assert wire.ask(frame(HEADERS, 3))
    assert not wire.answer(frame(HEADERS, 3))
    wire.relay.drop_answers = False
    assert not wire.relay.answered.is_set()
    assert wire.answer(frame(DATA, 3, b"passed on"))
    wire.relay.drop_answers = True
    assert not wire.answer(frame(HEADERS, 3, b"trailers"))
    assert not wire.relay.answered.is_set()


def test_what_is_not_dropped_is_no_lost_answer(wire: Wire) -> None:
    assert wire.ask(frame(HEADERS, 3))
    assert wire.answer(frame(HEADERS, 3) + frame(DATA, 3, b"an answer"))
    assert not wire.relay.answered.is_set()


def test_only_requests_are_held(wire: Wire) -> None:
    wire.relay.hold_requests = True
    assert wire.ask(frame(PING, 0, b"12345678"))
    assert not wire.relay.requested.is_set()
    wire.relay.hold_requests = False
    assert wire.ask(frame(DATA, 1, b"a request"))
    assert not wire.relay.requested.is_set()
    wire.relay.hold_requests = True
    for side in (wire.client, wire.server):
        assert wire.relay.passes(side, frame(PING, 0, b"12345678"))
    assert not wire.relay.passes(wire.client, frame(DATA, 1, b"the next"))
    assert wire.relay.requested.is_set()
