"""Everything that reads bytes or text of others' making, and the only errors that each may answer with.

A target reads one piece of input. An error of its own kind is the right answer to nonsense; any other is a bug.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11
import msgspec

from rendezvous_async.backends.base import OWN, Commit, Condition, Delete, Entry, Listing, Put, Token
from rendezvous_async.backends.etcd.history import key_of
from rendezvous_async.backends.etcd.lease import lease_id, session_id
from rendezvous_async.backends.file.life import Lives
from rendezvous_async.backends.table import frames
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import CommitId, Table
from rendezvous_async.backends.tcp import restrict, wire
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.history import HistoryRecord
from rendezvous_async.core.state import Closed, Head, Last, Node, Phase, Post, Seat
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.page.http import Document, Exchange
from rendezvous_async.page.site import Documents, Site
from rendezvous_async.settings import Settings, decode_segment, encode_segment, parse_endpoint
from rendezvous_async.sizes import parse_sizes

__all__ = ["REQUESTS", "Target", "targets"]


class Target(msgspec.Struct, frozen=True):
    """Something that reads input: how, what it may raise, and what sound input looks like."""

    name: str
    read: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    corpus: tuple[bytes, ...]


_SETTINGS = Settings(2, 4, "sticky", 30.0, 3.0)
_TOKEN = Token("epoch", 7)
_ENTRY = Entry("rendezvous_async/run/key", b"value", _TOKEN, "epoch.1")
RECORDS: tuple[Head | Node | Seat | Post, ...] = (
    Head(settings=_SETTINGS),
    Head(
        settings=_SETTINGS, round=3, phase=Phase.FORMED, attempt="a" * 16, size=3, waiting=1, lost=1, token=("epoch", 7)
    ),
    Head(settings=_SETTINGS, closed=Closed(reason="done", by="node-1")),
    Head(
        settings=Settings(4, 24, step=0, listed=(4, 8, 24), domain="rack", per_domain=4, grow=5.0),
        held_back=3,
        origin="4:8 sticky last_call=30 regroup=3",
        generation=2,
        target=8,
    ),
    Node(arrival="b" * 16, fingerprint=_SETTINGS.fingerprint, last=Last(3, 1), address="host", labels={"rack": "7"}),
    Seat(round=3, attempt="a" * 16, arrival="b" * 16, rank=1, address="host", labels={"rack": "7"}),
    Post(node="node-1"),
)
REQUESTS: tuple[wire.Request, ...] = (
    wire.Get(1, "rendezvous_async/run/key"),
    wire.List(2, "rendezvous_async/run/"),
    wire.Transact(
        3,
        1,
        0,
        (Put("rendezvous_async/run/key", b"value"), Delete("rendezvous_async/run/other/")),
        (Condition("rendezvous_async/run/key", None), Condition("rendezvous_async/run/state", _TOKEN)),
    ),
    wire.Follow(4, ("rendezvous_async/run/", "rendezvous_async/run/state"), _TOKEN),
    wire.Unfollow(4),
    wire.OpenSession(5, 5.0),
    wire.OpenSession(
        5,
        5.0,
        (Put("rendezvous_async/run/key", b"value", OWN),),
        (Condition("rendezvous_async/run/key", None),),
        ("rendezvous_async/run/state", "rendezvous_async/run/seats/node"),
    ),
    wire.Renew(6, "epoch.1"),
    wire.Resume(7, "epoch.1"),
    wire.EndSession(8, "epoch.1"),
    wire.Ping(9),
    wire.Goodbye(),
)
GREETINGS: tuple[wire.AnyMessage, ...] = (
    wire.Hello(PROTOCOLS, "client", 1, 0, b"n" * 32),
    wire.Hello(PROTOCOLS, "client", 1, 0, b"n" * 32, "rendezvous_async/team-a"),
    wire.Proof(b"p" * 32),
)
ANSWERS: tuple[wire.AnyMessage, ...] = (
    wire.Challenge(b"n" * 32, PROTOCOLS[-1]),
    wire.Welcome(PROTOCOLS[-1], "epoch", 7, b"p" * 32),
    wire.Refused(wire.REFUSED_SECRET, "no"),
    wire.Found(1, _ENTRY),
    wire.Listed(2, Listing((_ENTRY,), _TOKEN)),
    wire.Transacted(3, Commit(False, _TOKEN, (_ENTRY,))),
    wire.Changed(4, Listing((Entry("rendezvous_async/run/key", None, _TOKEN),), _TOKEN, complete=False)),
    wire.SessionOpened(5, "epoch.1", 5.0),
    wire.SessionOpened(5, "epoch.1", 5.0, Commit(True, _TOKEN), Listing((_ENTRY,), _TOKEN)),
    wire.Done(6),
    wire.Failed(7, wire.FAILED_DENIED, "no"),
)
LOG_RECORDS: tuple[frames.LogRecord, ...] = (
    frames.Started("epoch.1", 5.0),
    frames.Committed((Put("a/b", b"value", "epoch.1"),), (Condition("a/b", None),), CommitId("client", 1)),
    frames.Committed((Delete("a/"),)),
    frames.Ended("epoch.1"),
    frames.Raised(99),
    frames.Forgotten("client"),
)


def _bodies(messages: tuple[wire.AnyMessage, ...]) -> tuple[bytes, ...]:
    return tuple(wire.frame(message)[4:] for message in messages)


def _stream(data: bytes) -> None:
    decoder = wire.FrameDecoder(wire.HANDSHAKE_FRAME)
    for start in range(0, len(data), 7):
        decoder.feed(data[start : start + 7])
        while (body := decoder.next()) is not None:
            assert len(body) <= wire.HANDSHAKE_FRAME


def _records(data: bytes) -> None:
    table = Table("epoch")
    frames.replay(table, frames.read_records(memoryview(data)), 0.0)
    assert Table.restore(table.snapshot(), 0.0).snapshot() == table.snapshot()


def _frame(data: bytes) -> None:
    view = memoryview(data)
    if frames.unframe(view) is None and data:
        frames.is_torn(view, 3)


def _page(data: bytes) -> None:
    """Whatever comes in whatever pieces, there is at most one answer, and h11's own client can read it."""
    exchange = Exchange(_site().answer)
    answer = b""
    for start in range(0, len(data), 11):
        if answer := exchange.receive(data[start : start + 11]):
            break
    if not answer:
        return
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    reader.receive_data(answer)
    head = reader.next_event()
    assert isinstance(head, h11.Response)
    assert head.status_code in (200, 400, 401, 404, 405, 431, 501)
    assert b"secret page" not in answer or b"AUTHORIZATION" in data.upper()


@functools.cache
def _site() -> Site:
    shown = {"/": lambda query: Document(b"secret page"), "/health": lambda query: Document(b"ok")}
    return Site(Documents(shown, frozenset({"/health"})), "s")


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def _segment(text: str) -> None:
    """A run or node id, whatever is in it, is one step of a key, and never leads anywhere else."""
    try:
        segment = encode_segment(text)
    except UnicodeEncodeError:
        return
    assert decode_segment(segment) == text
    assert "/" not in segment
    assert segment not in (".", "..") or text in (".", "..")
    assert segment.isascii()


def _etcd_pair(data: bytes) -> None:
    class Pair:
        key = data

    key_of(Pair)
    text = data.decode(errors="replace")
    lease = lease_id(text)
    assert lease is None or (session_id(lease) == text and lease < 2**63), f"{text} is no session's id"


class _Files:
    """Damaged logs and odd session files in a directory of their own."""

    def __init__(self, place: Path) -> None:
        self._path = place / "log"
        log = Log.open(str(self._path), epoch="epoch", sync=False)
        for record in LOG_RECORDS[:3]:
            log.append([record])
        log.close()
        self.sound = self._path.read_bytes()
        (place / "sessions").mkdir()
        (place / "outside").write_text("precious")
        self._outside = place / "outside"
        self._lives = Lives(os.open(place / "sessions", os.O_RDONLY), 0o600, is_local=True)

    def read_log(self, data: bytes) -> None:
        self._path.write_bytes(data)
        log = Log.open(str(self._path), sync=False)
        log.close()

    def use_session(self, data: bytes) -> None:
        """A session id of a forged log must not reach a file outside of the directory."""
        session = data.decode("utf-8", "surrogateescape")
        try:
            self._lives.look(session)
            self._lives.remove(session)
            self._lives.create(session)
            self._lives.remove(session)
        finally:
            assert self._outside.exists(), "a file outside of the directory was removed"
            assert self._outside.read_text() == "precious"

    def close(self) -> None:
        self._lives.close()


@contextmanager
def targets() -> Iterator[list[Target]]:
    """Return all targets; some need files, which are removed at the end."""
    place = Path(tempfile.mkdtemp(prefix="rendezvous-hostile-"))
    files = _Files(place)
    records = tuple(map(encode, RECORDS))
    texts = (b"tcp://head:29400?is_host=true", b"etcd://h1:2379,[::1]:2379", b"file:///a/b", b"memory://x", b"2:4")
    host = socket.gethostname().encode()
    requests = (
        b"GET / HTTP/1.1\r\nHost: localhost:1\r\nAuthorization: Basic OnM=\r\n\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n",
        b"GET / HTTP/1.0\r\nAuthorization: Bearer s\r\nHost: [::1]\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n",
    )
    frame = frames.frame(msgspec.msgpack.encode(LOG_RECORDS))
    damaged: tuple[type[Exception], ...] = (RendezvousStateError,)
    names = (b"epoch.1", b"../outside", b"/etc/passwd", b".", b"..", b"a/b", b"7f3a", "é\u202e\0".encode())

    def codec(kind: Any) -> Target:
        return Target(f"core.codec {kind.__name__}", lambda data: decode(kind, data), damaged, records)

    try:
        yield [
            *map(codec, (Head, Node, Seat, Post, HistoryRecord)),
            Target("tcp.wire stream", _stream, (wire.FrameError,), tuple(map(wire.frame, (*GREETINGS, *REQUESTS)))),
            Target("tcp.wire greeting", wire.decode_greeting, (wire.FrameError,), _bodies(GREETINGS)),
            Target("tcp.wire request", wire.decode_request, (wire.FrameError,), _bodies(REQUESTS)),
            Target("tcp.wire answer", wire.decode_answer, (wire.FrameError,), _bodies(ANSWERS)),
            Target("tcp.auth secret", _text(Secret.parse), (ValueError,), (restrict("s", "team-").encode(), b"s")),
            Target("log frame", _frame, (), (frame, frame + frame)),
            Target("log records", _records, damaged, (msgspec.msgpack.encode(LOG_RECORDS),)),
            Target("log file", files.read_log, damaged, (files.sound,)),
            Target("file session names", files.use_session, (OSError, ValueError), names),
            Target(
                "etcd keys and leases",
                _etcd_pair,
                (),
                (*names, b"7F3A", b"0x7f", b"-1", b"0", b"1_0", b" 7", b"f" * 17),
            ),
            Target("http request", _page, (), requests),
            Target("endpoint", _text(parse_endpoint), (ValueError,), texts),
            Target("sizes", _text(parse_sizes), (ValueError,), (b"2:4", b"7", b"4:64:4", b"4,8,16")),
            Target("ids as segments of keys", _text(_segment), (), names),
        ]
    finally:
        files.close()
        shutil.rmtree(place)
