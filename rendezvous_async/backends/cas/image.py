"""The contents of the value: the table, a counter for each session, the marks of the last writes. No I/O, no clock.

    magic (7)  version (1)  CRC-32 of the rest (4)  msgpack of ``Stored``

Each write has a number and a random mark. So a client that got no answer to a write learns from the next value that it
reads whether the write was made, and no two values are equal.

An ``Image`` is a value that was read or written. A ``Draft`` is to replace it: calls are made on the draft, which
becomes the next image only if the store accepts it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import msgspec

from rendezvous_async.backends.observer import Look
from rendezvous_async.backends.table.table import Snapshot, Table
from rendezvous_async.backends.values import Commit, Condition, Write, owned
from rendezvous_async.causes import Cause
from rendezvous_async.errors import RendezvousSessionError, RendezvousStateError, RendezvousVersionError

__all__ = ["Draft", "Image"]

VERSION = 1
MAX_MARKS = 64
"""How many writes are remembered; the fate of a write without an answer is unknown once that many have followed."""
MAX_DELETIONS = 64
"""How many deletions are remembered; a watch that missed more gets a complete listing, which costs no traffic."""
_MAGIC = b"rdzvcas"
_HEAD = struct.Struct(">7sBI")


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The stored record.

    Attributes:
        number: The number of writes so far.
        marks: The marks of the last ones, the newest last.
        beats: The counter of each open session; each keep-alive increments it.
        snapshot: The table, a ``Snapshot``; it is decoded only when it has changed.
    """

    number: int
    marks: tuple[bytes, ...]
    beats: dict[str, int]
    snapshot: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode
_decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class Image:
    """A value that was read or written.

    Attributes:
        data: The whole value; empty until it is written.
        number: The number of the write that made it.
        beats: The counter of each session.
        snapshot: The encoded table.
    """

    def __init__(
        self, data: bytes, number: int, marks: tuple[bytes, ...], beats: Mapping[str, int], snapshot: bytes
    ) -> None:
        self.data = data
        self.number = number
        self.beats = beats
        self.snapshot = snapshot
        self._marks = marks
        self._table: Table | None = None

    def __repr__(self) -> str:
        return f"<Image {self.number} bytes={len(self.data)} sessions={len(self.beats)}>"

    @classmethod
    def empty(cls, epoch: str) -> Image:
        """Return the first image of a new history; it is not written yet."""
        return cls(b"", 0, (), {}, _encode(Table(epoch).snapshot()))

    @classmethod
    def decode(cls, data: bytes, last: Image | None = None) -> Image:
        """Return the image in a value; ``last`` is the previous one, whose decoded table is reused if it is the same.

        Raises:
            RendezvousStateError: It is damaged, or was not written by this library.
            RendezvousVersionError: A newer version wrote it.
        """
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise RendezvousStateError(f"the value was not written by rendezvous_async: it begins with {data[:16]!r}")
        _, version, checksum = _HEAD.unpack_from(data)
        if version > VERSION:
            raise RendezvousVersionError(
                f"the value was written by a newer rendezvous_async (version {version}, this one reads up to "
                f"{VERSION}): upgrade"
            )
        body = memoryview(data)[_HEAD.size :]
        try:
            if version == 0 or zlib.crc32(body) != checksum:
                raise ValueError("its checksum is wrong")
            stored = _decode(body)
            snapshot = bytes(stored.snapshot)
            image = cls(data, stored.number, stored.marks, stored.beats, snapshot)
            if last is not None and last.snapshot == snapshot:
                image._table = last._table
            elif {session for session, _ in image.table.open_sessions()} != stored.beats.keys():
                raise ValueError("its sessions are not those of its table")
        # In older versions of msgspec, its errors are not ValueErrors.
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RendezvousStateError(f"the value is damaged: {error}") from None
        return image

    @property
    def is_written(self) -> bool:
        """Whether the store holds it, or has held it."""
        return bool(self.data)

    @property
    def table(self) -> Table:
        """The table; read-only."""
        if self._table is None:
            self._table = Table.restore(_decode_snapshot(self.snapshot), 0.0)
        return self._table

    @property
    def epoch(self) -> str:
        """The name of its history."""
        return self.table.epoch

    @property
    def mark(self) -> bytes:
        """The mark of the write that made it."""
        return self._marks[-1]

    def look(self, session: str) -> Look:
        """Return what an observer of a session sees now."""
        return Look(b"%d" % self.beats.get(session, -1))

    def has_mark(self, number: int, mark: bytes) -> bool | None:
        """Tell whether a write with this number and this mark was made; None if that is no longer known."""
        back = self.number - number
        if not 0 <= back < len(self._marks):
            return None
        return self._marks[-1 - back] == mark

    def renamed(self, epoch: str, number: int) -> Image:
        """Return an image with the same entries that begins another history; it is not written yet."""
        snapshot = msgspec.structs.replace(_decode_snapshot(self.snapshot), epoch=epoch)
        return Image(b"", number, (), self.beats, _encode(snapshot))

    def lend_table(self) -> Table:
        """Give the table away to be changed; if this image is asked for it again, it decodes another."""
        table, self._table = self.table, None
        return table

    def take_back(self, table: Table) -> None:
        """Take back a table that was not changed."""
        self._table = table

    def next(self, mark: bytes, beats: Mapping[str, int], changed: Table | None) -> Image:
        """Return the next image, with a changed table or with the same one."""
        if changed is not None:
            changed.take_changed()  # Nothing here reads this list, so keep it empty.
        snapshot = self.snapshot if changed is None else _encode(_shortened(changed.snapshot()))
        marks = (*self._marks, mark)[-MAX_MARKS:]
        body = _encode(Stored(self.number + 1, marks, dict(beats), msgspec.Raw(snapshot)))
        data = _HEAD.pack(_MAGIC, VERSION, zlib.crc32(body)) + body
        image = Image(data, self.number + 1, marks, beats, snapshot)
        image._table = self._table if changed is None else changed
        return image


class Draft:
    """The value under construction; a call that raises has changed nothing.

    Attributes:
        base: The image that it will replace.
        is_changed: Whether there is anything to write.
    """

    def __init__(self, base: Image) -> None:
        self.base = base
        self.is_changed = not base.is_written
        self._beats = dict(base.beats)
        self._table: Table | None = None
        self._has_new_table = False

    @property
    def table(self) -> Table:
        """The table; only the methods below change it."""
        if self._table is None:
            self._table = self.base.lend_table()
        return self._table

    def image(self, mark: bytes) -> Image:
        """Return the finished draft as the next image."""
        self.drop()
        return self.base.next(mark, self._beats, self.table if self._has_new_table else None)

    def drop(self) -> None:
        """Give the table back, unless it was changed."""
        if self._table is not None and not self._has_new_table:
            self.base.take_back(self._table)
            self._table = None

    def commit(self, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> Commit:
        before = self.table.revision
        commit = self.table.commit(writes, when)
        if self.table.revision != before:
            self._note_change()
        return commit

    def open_session(self, ttl: float, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> tuple[str, Commit]:
        """Open a session and make its first commit."""
        session = self.table.open_session(ttl, 0.0)
        self._beats[session] = 0
        self._note_change()
        return session, self.commit(owned(writes, session), when)

    def keep_alive(self, session: str) -> None:
        """Increment the counter of a session.
        Raises:
            RendezvousSessionError: The session has ended.
        """
        if session not in self._beats:
            raise RendezvousSessionError(f"session {session} has ended")
        self._beats[session] += 1
        self.is_changed = True

    def end_session(self, session: str, cause: str = "") -> None:
        """End a session, if it is open."""
        if self._beats.pop(session, None) is not None:
            self.table.end_session(session, cause)
            self._note_change()

    def end_silent(self, over: Mapping[str, Look]) -> list[str]:
        """End those of these sessions that still look as they did when their time was over; return them."""
        ended = [session for session, look in over.items() if Look(b"%d" % self._beats.get(session, -2)) == look]
        for session in ended:
            self.end_session(session, Cause.SILENT)
        return ended

    def _note_change(self) -> None:
        self.is_changed = self._has_new_table = True


def _shortened(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the last deletions only."""
    extra = len(snapshot.graves) - MAX_DELETIONS
    if extra <= 0:
        return snapshot
    return msgspec.structs.replace(snapshot, graves=snapshot.graves[extra:], horizon=snapshot.graves[extra - 1][1])
