"""The wire format: messages and frames. Pure: no sockets, no clock.

A frame is four bytes of length (big-endian) and a body in msgpack: an array that starts with the message's number.
After the handshake a client sends requests, each with an id of its choice. The server answers them in order, and in
between pushes ``Changed`` with the id of the ``Follow`` or ``OpenSession`` that started the watch. A frame that is too
long or not a message ends the connection (``FrameError``).

::

    client                                server
    Hello        ───────────────────────►                  offers versions of the protocol
                 ◄───────────────────────  Challenge       picks one; only if the server has a secret
    Proof        ───────────────────────►
                 ◄───────────────────────  Welcome         picks the same; or Refused, and the end
    Get, List, Transact, Follow, ...  ──►
                 ◄───────────────────────  Found, Listed, Transacted, Changed, ..., Failed

Messages are arrays that may grow at the end: a peer ignores unknown fields, and missing fields have their defaults. A
new kind of message, or a field that must not be ignored, needs a new version of the protocol. The messages of the
handshake are read before a version is picked, so they may only grow.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Annotated, Final, TypeAlias

import msgspec

from rendezvous_async.backends.tcp.versions import MAX_OFFERED
from rendezvous_async.backends.values import Commit, Condition, Delete, Entry, Listing, Put, Token

__all__ = ["HANDSHAKE_FRAME", "MAX_ANSWER", "FrameDecoder", "FrameError", "frame", "frame_into"]

HANDSHAKE_FRAME: Final = 4096
"""Upper bound on a frame during the handshake, in bytes."""
MAX_ANSWER: Final = 32 * 1024 * 1024
"""Upper bound on an answer or a push, in bytes."""
MAX_ITEMS: Final = 65_536
"""Upper bound on the writes, conditions or names in a request; a larger request is not decoded."""

_LENGTH = struct.Struct(">I")
_NO_LENGTH = bytes(_LENGTH.size)
_FEW = msgspec.Meta(max_length=MAX_ITEMS)
_Version: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Versions: TypeAlias = Annotated[tuple[_Version, ...], msgspec.Meta(max_length=MAX_OFFERED)]
_Writes: TypeAlias = Annotated[tuple[Put | Delete, ...], _FEW]
_Conditions: TypeAlias = Annotated[tuple[Condition, ...], _FEW]
_Names: TypeAlias = Annotated[tuple[str, ...], _FEW]


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


# The handshake.


class Hello(_Message, frozen=True, tag=0):
    """The client's first message.

    Attributes:
        versions: All protocol versions that the client supports.
        client: The name of the client, the same on all its connections.
        connection: Counts this client's connections; the server keeps only the newest.
        revision: The highest revision that the client has seen.
        nonce: Makes this handshake unique.
        scope: The scope of a restricted secret; see ``auth``.
    """

    versions: _Versions
    client: str
    connection: int
    revision: int
    nonce: bytes
    scope: str = ""


class Challenge(_Message, frozen=True, tag=1):
    """The server picks a version and asks for a proof of the secret.

    Both proofs cover the Hello and this message, and so the offered versions and the picked one.
    """

    nonce: bytes
    version: _Version


class Proof(_Message, frozen=True, tag=2):
    """The client's answer to the challenge."""

    proof: bytes


class Welcome(_Message, frozen=True, tag=3):
    """The handshake is over; the proof is the server's own, and ``peer`` is the address at which it sees the client."""

    version: _Version
    epoch: str
    revision: int
    proof: bytes = b""
    peer: str = ""


class Refused(_Message, frozen=True, tag=4):
    """The server ends this connection; ``code`` is one of the ``REFUSED_...`` words."""

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
    """Start a watch. The answer is a ``Changed``, possibly empty; more of them follow as there is news."""

    id: int
    names: _Names
    after: Token | None


class Unfollow(_Message, frozen=True, tag=14):
    """End a watch; there is no answer."""

    id: int


class OpenSession(_Message, frozen=True, tag=15):
    """Open a session, make its first commit if there are ``writes``, and then start a watch if there are ``names``.

    A put under ``OWN`` belongs to the new session. The watch has the id of this request.
    """

    id: int
    ttl: float
    writes: _Writes = ()
    when: _Conditions = ()
    names: _Names = ()


class Renew(_Message, frozen=True, tag=16):
    """Renew a session for its full TTL, and assign it to this connection."""

    id: int
    session: str


class EndSession(_Message, frozen=True, tag=17):
    """End a session; ``cause`` is why, as in ``rendezvous_async.causes``; older clients do not say."""

    id: int
    session: str
    cause: str = ""


class Ping(_Message, frozen=True, tag=18):
    id: int


class Goodbye(_Message, frozen=True, tag=19):
    """The client will not come back; there is no answer."""


class Resume(_Message, frozen=True, tag=20):
    """Assign a session to this connection without renewing it."""

    id: int
    session: str


# Answers.


class Found(_Message, frozen=True, tag=30):
    id: int
    entry: Entry | None


class Listed(_Message, frozen=True, tag=31):
    id: int
    listing: Listing


class Transacted(_Message, frozen=True, tag=32):
    id: int
    commit: Commit


class Changed(_Message, frozen=True, tag=33):
    id: int
    listing: Listing | None


class SessionOpened(_Message, frozen=True, tag=34):
    """The session is open, whether its first commit won or lost; the listing is the first one of its watch."""

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
    """``Changed`` with a listing that was encoded once for all its watchers."""

    id: int
    listing: msgspec.Raw


Request: TypeAlias = (
    Get | List | Transact | Follow | Unfollow | OpenSession | Renew | Resume | EndSession | Ping | Goodbye
)  # fmt: skip
Answer: TypeAlias = Found | Listed | Transacted | Changed | SessionOpened | Done | Failed
FromServer: TypeAlias = Challenge | Welcome | Refused | Answer
AnyMessage: TypeAlias = Hello | Challenge | Proof | Welcome | Refused | Request | Answer | EncodedChanged

_encoder = msgspec.msgpack.Encoder()
_greeting_decoder: msgspec.msgpack.Decoder[Hello | Proof] = msgspec.msgpack.Decoder(Hello | Proof)
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_server_decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)
_NO_MESSAGE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""The errors of the decoders; invalid UTF-8 has one of its own."""


class FrameError(ValueError):
    """The stream is not made of valid frames; the connection must be closed."""


class FrameDecoder:
    """Splits a stream of bytes, in any chunks, into the bodies of frames.

    Args:
        max_frame: Upper bound on a body; the attribute may be raised later.
    """

    __slots__ = ("_at", "_data", "_parts", "_parts_length", "_wanted", "max_frame")

    def __init__(self, max_frame: int) -> None:
        self.max_frame = max_frame
        self._data = b""
        self._at = 0
        # A frame that arrives in many pieces is joined once, when it is complete.
        self._parts: list[bytes] = []
        self._parts_length = 0
        self._wanted = 0

    @property
    def unfinished(self) -> int:
        """The number of buffered bytes of an incomplete frame."""
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
        """Return the body of the next frame, or None if it is incomplete.

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


def frame(message: AnyMessage) -> bytes:
    """Return ``message`` as a frame."""
    out = bytearray()
    frame_into(out, message)
    return bytes(out)


def frame_into(out: bytearray, message: AnyMessage) -> None:
    """Append ``message`` as a frame to ``out``."""
    start = len(out)
    out += _NO_LENGTH
    _encoder.encode_into(message, out, start + 4)
    _LENGTH.pack_into(out, start, len(out) - start - 4)


def encode_listing(listing: Listing) -> msgspec.Raw:
    """Encode a listing for ``EncodedChanged``."""
    return msgspec.Raw(_encoder.encode(listing))


def fits(entries: Collection[Entry]) -> bool:
    """Tell, without encoding them, whether these entries fit into an answer."""
    return sum([len(entry.key) + len(entry.value or b"") for entry in entries]) <= MAX_ANSWER


def decode_greeting(body: bytes) -> Hello | Proof:
    """Decode a client's message of the handshake."""
    try:
        return _greeting_decoder.decode(body)
    except _NO_MESSAGE as error:
        raise FrameError(f"not a greeting: {error}") from None


def decode_request(body: bytes) -> Request:
    """Decode a request."""
    try:
        return _request_decoder.decode(body)
    except _NO_MESSAGE as error:
        raise FrameError(f"not a request of this version of the protocol: {error}") from None


def decode_answer(body: bytes) -> FromServer:
    """Decode a server's message."""
    try:
        return _server_decoder.decode(body)
    except _NO_MESSAGE as error:
        raise FrameError(f"not an answer of this version of the protocol: {error}") from None
