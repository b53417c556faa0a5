"""What goes over the wire: messages, and frames that hold them. Pure: no sockets, no clock.

A frame is four bytes of length (big-endian) and a body in msgpack: an array that starts with the message's number.
After the handshake a client sends requests, each with an id of its own choice; the server answers each request on that
connection in the order in which they came, and in between pushes ``Changed`` with the id of the ``Follow``, or of the
``OpenSession``, that started the watch. A frame that is too long, or is no message, ends the connection
(``FrameError``).

::

    client                                server
    Hello        ───────────────────────►
                 ◄───────────────────────  Challenge       only if the server has a secret
    Proof        ───────────────────────►
                 ◄───────────────────────  Welcome         or Refused, and the end
    Get, List, Transact, Follow, ...  ──►
                 ◄───────────────────────  Found, Listed, Committed, Changed, ..., Failed

Messages are arrays whose tail may grow: a peer ignores the fields that it does not know, so that a newer version can
still be told apart by its ``Hello``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Annotated, Final, TypeAlias

import msgspec

from rendezvous_async.backends.base import Commit, Condition, Delete, Entry, Listing, Put, Token

__all__ = ["HANDSHAKE_FRAME", "MAX_ANSWER", "PROTOCOL", "FrameDecoder", "FrameError", "frame", "frame_into"]

PROTOCOL: Final = 1
"""The version of this protocol; both sides must have the same."""
HANDSHAKE_FRAME: Final = 4096
"""How long a frame may be before the peer is known."""
MAX_ANSWER: Final = 32 * 1024 * 1024
"""How long an answer or a push may be."""
MAX_ITEMS: Final = 65_536
"""How many writes, conditions or names a request may have; with more it is not even decoded."""

_LENGTH = struct.Struct(">I")
_NO_LENGTH = bytes(_LENGTH.size)
_FEW = msgspec.Meta(max_length=MAX_ITEMS)
_Writes: TypeAlias = Annotated[tuple[Put | Delete, ...], _FEW]
_Conditions: TypeAlias = Annotated[tuple[Condition, ...], _FEW]
_Names: TypeAlias = Annotated[tuple[str, ...], _FEW]


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


# The handshake.


class Hello(_Message, frozen=True, tag=0):
    """The client's first words.

    Attributes:
        version: The protocol that it speaks.
        client: Names the client, on all its connections.
        connection: Counts this client's connections: the newest one counts, older ones are cut.
        revision: The highest revision that it has seen.
        nonce: Makes this handshake unlike any other.
        scope: What its secret is restricted to; see ``auth``.
    """

    version: int
    client: str
    connection: int
    revision: int
    nonce: bytes
    scope: str = ""


class Challenge(_Message, frozen=True, tag=1):
    """The server asks for a proof that the client knows the secret."""

    nonce: bytes


class Proof(_Message, frozen=True, tag=2):
    """The client's answer to the challenge."""

    proof: bytes


class Welcome(_Message, frozen=True, tag=3):
    """The handshake is over; the proof is the server's own, and ``peer`` is the address it sees the client at."""

    version: int
    epoch: str
    revision: int
    proof: bytes = b""
    peer: str = ""


class Refused(_Message, frozen=True, tag=4):
    """The end of this connection, and why; ``code`` is one of the ``REFUSED_...`` words."""

    code: str
    message: str


REFUSED_VERSION: Final = "version"
REFUSED_SECRET: Final = "secret"
REFUSED_LIMIT: Final = "limit"
REFUSED_PROTOCOL: Final = "protocol"
REFUSED_STORAGE: Final = "storage"
REFUSED_LATE: Final = "late"
REFUSED_STALE: Final = "stale"
REFUSED_CLOSING: Final = "closing"


# Requests.


class Get(_Message, frozen=True, tag=10):
    id: int
    key: str


class List(_Message, frozen=True, tag=11):
    id: int
    name: str


class Transact(_Message, frozen=True, tag=12):
    """A commit; ``number`` and ``settled`` are those of the table's ``CommitId``."""

    id: int
    number: int
    settled: int
    writes: _Writes
    when: _Conditions


class Follow(_Message, frozen=True, tag=13):
    """Start a watch; it is answered once with ``Changed``, if need be an empty one, and then whenever there is news."""

    id: int
    names: _Names
    after: Token | None


class Unfollow(_Message, frozen=True, tag=14):
    """End a watch; there is no answer."""

    id: int


class OpenSession(_Message, frozen=True, tag=15):
    """Open a session, with ``writes`` make its first commit, and with ``names`` start a watch on how things stand then.

    A put under ``OWN`` belongs to the new session. The watch has the id of this request.
    """

    id: int
    ttl: float
    writes: _Writes = ()
    when: _Conditions = ()
    names: _Names = ()


class KeepAlive(_Message, frozen=True, tag=16):
    """Give a session its full time again, and make it one of this connection's."""

    id: int
    session: str


class EndSession(_Message, frozen=True, tag=17):
    id: int
    session: str


class Ping(_Message, frozen=True, tag=18):
    id: int


class Goodbye(_Message, frozen=True, tag=19):
    """The client will not come back; there is no answer."""


class Resume(_Message, frozen=True, tag=20):
    """Make a session one of this connection's; it gets no more time than it had."""

    id: int
    session: str


# Answers.


class Found(_Message, frozen=True, tag=30):
    id: int
    entry: Entry | None


class Listed(_Message, frozen=True, tag=31):
    id: int
    listing: Listing


class Committed(_Message, frozen=True, tag=32):
    id: int
    commit: Commit


class Changed(_Message, frozen=True, tag=33):
    id: int
    listing: Listing | None


class Opened(_Message, frozen=True, tag=34):
    """The session is open, whether its first commit has won or lost; the listing is what its watch shows first."""

    id: int
    session: str
    ttl: float
    commit: Commit | None = None
    listing: Listing | None = None


class Done(_Message, frozen=True, tag=35):
    id: int


class Failed(_Message, frozen=True, tag=36):
    """The request changed nothing; ``code`` is one of the ``FAILED_...`` words."""

    id: int
    code: str
    message: str


FAILED_SESSION: Final = "session"
FAILED_LIMIT: Final = "limit"
FAILED_DENIED: Final = "denied"
FAILED_INVALID: Final = "invalid"


class EncodedChanged(_Message, frozen=True, tag=33):
    """``Changed`` with a listing that was encoded before, once for all its watchers."""

    id: int
    listing: msgspec.Raw


Request: TypeAlias = (
    Get | List | Transact | Follow | Unfollow | OpenSession | KeepAlive | Resume | EndSession | Ping | Goodbye
)  # fmt: skip
Answer: TypeAlias = Found | Listed | Committed | Changed | Opened | Done | Failed
FromServer: TypeAlias = Challenge | Welcome | Refused | Answer
Message: TypeAlias = Hello | Challenge | Proof | Welcome | Refused | Request | Answer | EncodedChanged

_encoder = msgspec.msgpack.Encoder()
_greeting_decoder: msgspec.msgpack.Decoder[Hello | Proof] = msgspec.msgpack.Decoder(Hello | Proof)
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_server_decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


_NO_MESSAGE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""What the decoders raise: text that is no UTF-8 has an error of its own."""


class FrameError(ValueError):
    """Bytes that are no frame of ours; the connection they came on is of no more use."""


class FrameDecoder:
    """Cuts a stream of bytes into the bodies of frames, whatever pieces it comes in.

    Args:
        max_frame: How long a body may be; may be raised later, as an attribute.
    """

    __slots__ = ("_at", "_data", "_parts", "_parts_length", "_wanted", "max_frame")

    def __init__(self, max_frame: int) -> None:
        self.max_frame = max_frame
        self._data = b""
        self._at = 0
        # A frame that comes in many pieces is joined once, when it is whole.
        self._parts: list[bytes] = []
        self._parts_length = 0
        self._wanted = 0

    @property
    def unfinished(self) -> int:
        """How many bytes of a frame that is not all there are kept."""
        return self._parts_length if self._parts else 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._at < len(self._data):
            self._parts.append(self._data[self._at :])
            self._parts_length = len(self._parts[0])
            self._wanted = 0
            self._data, self._at = b"", 0
        if self._parts:
            self._parts.append(data)
            self._parts_length += len(data)
            if self._parts_length < self._wanted:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        self._data, self._at = data, 0

    def next(self) -> bytes | None:
        """Return the body of the next frame, or None if it is not all there yet.

        Raises:
            FrameError: The next frame is longer than ``max_frame``.
        """
        data, at = self._data, self._at
        left = len(data) - at
        if not left:
            return None
        if left >= 4:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self.max_frame:
                raise FrameError(f"a frame of {length} bytes; at most {self.max_frame} are allowed")
            end = at + 4 + length
            if end <= len(data):
                self._at = end
                return data[at + 4 : end]
            self._wanted = 4 + length
        else:
            self._wanted = 4
        self._parts = [data[at:]]
        self._parts_length = left
        self._data, self._at = b"", 0
        return None


def frame(message: Message) -> bytes:
    """Return ``message`` as a frame."""
    out = bytearray()
    frame_into(out, message)
    return bytes(out)


def frame_into(out: bytearray, message: Message) -> None:
    """Append ``message`` as a frame to ``out``."""
    start = len(out)
    out += _NO_LENGTH
    _encoder.encode_into(message, out, start + 4)
    _LENGTH.pack_into(out, start, len(out) - start - 4)


def encode_listing(listing: Listing) -> msgspec.Raw:
    """Return a listing's bytes for ``EncodedChanged``."""
    return msgspec.Raw(_encoder.encode(listing))


def fits(entries: Collection[Entry]) -> bool:
    """Tell, before they are encoded, whether an answer may have these entries."""
    return sum([len(entry.key) + len(entry.value or b"") for entry in entries]) <= MAX_ANSWER


def decode_greeting(body: bytes) -> Hello | Proof:
    """Return what a client says before it is known."""
    try:
        return _greeting_decoder.decode(body)
    except _NO_MESSAGE as error:
        raise FrameError(f"not a greeting: {error}") from None


def decode_request(body: bytes) -> Request:
    """Return what a client asks."""
    try:
        return _request_decoder.decode(body)
    except _NO_MESSAGE as error:
        raise FrameError(f"not a request: {error}") from None


def decode_answer(body: bytes) -> FromServer:
    """Return what a server says."""
    try:
        return _server_decoder.decode(body)
    except _NO_MESSAGE as error:
        raise FrameError(f"not an answer: {error}") from None
