"""The append-only log of a table, with a snapshot at its head: what the TCP server and the file backend keep on disk.

One file is a whole history: a header, a snapshot, then frames of records (``frames.py``). Compaction writes the next
file beside it, with the present as its snapshot and a generation one higher, and renames it into place: a reader finds
either file whole. ``Log.table`` is what the file holds.

Everything here blocks, so callers run it on a thread; one call at a time. Whoever calls anything but ``read_new`` must
be the only writer at that moment: either for good (``exclusive=True``, the TCP server) or between ``hold`` and
``let_go`` (the file backend, whose processes call ``read_new`` to follow each other's appends). What is locked is the
log itself, and when it is compacted the next file is locked before it takes its place: there is no lock file whose
removal would let a second writer in. An exclusive log also looks, before a write counts as done, whether its path still
leads to it: a restart would not find what is in a file that was moved away.

What is acknowledged is on the disk: ``append`` returns after fdatasync. When a write fails, what it left is cut off
again. When a *sync* fails nobody knows what is on the disk, and the kernel may forget that it owed us anything: the log
is ``broken`` and takes no more records until ``compact`` has put everything in a new file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Sequence
from typing import NoReturn

from rendezvous_async.backends.files import identity, read_at, try_lock, unlock, write_at
from rendezvous_async.backends.frames import Record, frames, is_torn, read_records, replay, unframe
from rendezvous_async.backends.head import HEADER_SIZE, VERSIONS, head_of_log, read_header, read_snapshot
from rendezvous_async.backends.table import Snapshot, Table
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError

__all__ = ["Log", "LogInUseError"]

logger = logging.getLogger("rendezvous_async.log")

_SMALL = 512 * 1024
_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class LogInUseError(RendezvousStateError):
    """Another process, or another ``Log``, has the log open for itself; it may let go of it."""


class Log:
    """A table and the file that it is kept in; see this module's opening for who may call what when.

    Attributes:
        table: What the file holds. ``append`` does not touch it: the caller has applied its records already, or applies
            them then. ``read_new`` and ``reload`` may put a new table in its place.
        broken: A sync failed; only ``compact`` helps.
    """

    table: Table

    def __init__(self, path: str, directory: int, *, sync: bool = True, mode: int = 0o600, now: float = 0.0) -> None:
        self.path = path
        self.broken = False
        self._name = os.path.basename(path)
        self._directory = directory
        self._sync = sync
        self._mode = mode
        self._now = now
        self._fd = -1
        self._exclusive = False
        self._held = False
        self._file: tuple[int, int] | None = None
        self._generation = 0
        self._head_end = 0
        self._end = 0
        self._size = 0

    def __repr__(self) -> str:
        state = " broken" if self.broken else ""
        return f"<Log {self.path} generation={self._generation} bytes={self._end}{state}>"

    @classmethod
    def open(
        cls,
        path: str,
        *,
        directory: int | None = None,
        epoch: str | None = None,
        exclusive: bool = False,
        writer: bool = True,
        sync: bool = True,
        mode: int = 0o600,
        now: float = 0.0,
    ) -> Log:
        """Open the log at ``path``, or begin one; ``.table`` is what it holds.

        Args:
            path: Of the file; its directory is created, for this user alone, if there is none.
            directory: A descriptor of that directory, if the caller has one; the log makes its own copy.
            epoch: Names the history that is begun if there is none; by default a random name.
            exclusive: Hold the log, and its directory, until it is closed; refuse one that another process, or another
                Log, holds.
            writer: Whether to begin a log if there is none, and to cut a torn last frame.
            sync: Whether ``append`` waits for the disk. Without it a power cut may take, or damage, what was
                acknowledged; a crash of the process does not.
            mode: Who may read and write the file.
            now: By the clock of the table's leases; every session gets its full TTL from there.

        Raises:
            RendezvousStateError: The file is damaged, not a log, or of a newer version.
            LogInUseError: It is in use.
            RendezvousConnectionError: The file cannot be read or written.
        """
        path = os.path.abspath(path)
        where = os.path.dirname(path)
        try:
            if directory is None:
                os.makedirs(where, mode=0o700, exist_ok=True)
                directory = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            else:
                directory = os.dup(directory)
        except OSError as error:
            raise RendezvousConnectionError(f"cannot open the directory of the log {path}: {error.strerror}") from error
        log = cls(path, directory, sync=sync, mode=mode, now=now)
        try:
            log._held = log._exclusive = exclusive
            if exclusive and not try_lock(directory):
                log._in_use()
            try:
                log._switch(log._open_file())
                log._check_current()
                if writer:
                    log.trim()
            except FileNotFoundError:
                if not writer:
                    raise
                log.table = Table(epoch or secrets.token_hex(8))
                log.compact(log.table.snapshot())
        except RendezvousError:
            log.close()
            raise
        except OSError as error:
            log.close()
            log._fail("open", error)
        return log

    def close(self) -> None:
        """Let go of the file; closing twice is no error."""
        for descriptor in (self._fd, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._directory = -1

    @property
    def is_long(self) -> bool:
        """Whether the records outweigh the snapshot, or what it would be now, so that ``compact`` is worth its cost."""
        return self._end - self._head_end > max(_SMALL, min(self._head_end, self.table.size))

    @property
    def unread(self) -> int:
        """How many bytes the last ``read_new`` left behind the last whole frame: a write under way, torn, or damage."""
        return max(self._size - self._end, 0)

    def hold(self) -> bool:
        """Lock the file, so that nobody else writes; False if another has locked it, or it is not the log any more."""
        self._held = try_lock(self._fd)
        if self._held and not self._is_current():
            self.let_go()
        return self._held

    def let_go(self) -> None:
        """Let others write."""
        if self._held:
            self._held = False
            unlock(self._fd)

    # Reading

    def reload(self) -> None:
        """Read the file from its beginning into a new table, and cut a torn last frame; only for the writer.

        Raises:
            FileNotFoundError: There is no file.
        """
        was_held = self._held
        self.let_go()
        self._switch(self._open_file())
        if not was_held or self.hold():
            self.trim()

    def read_new(self) -> bool:
        """Apply to the table what others have appended; for readers too, at any time.

        A frame that is not whole is left for later: its writer may still be at it.

        Returns:
            Whether the table is a new object, since the file was compacted or this log was behind a reload.

        Raises:
            FileNotFoundError: The file has been removed.
        """
        # A fresh open, not a stat: over NFS only an open is sure to ask the server.
        descriptor = self._open_file()
        try:
            status = os.fstat(descriptor)
            self._size = status.st_size
            same = (status.st_dev, status.st_ino) == self._file
            if same and status.st_size == self._end:
                return False
            if same and self._read_header(descriptor)[1] == self._generation and status.st_size > self._end:
                self._apply(memoryview(read_at(self._fd, self._end, status.st_size)), self._end)
                return False
            descriptor, fresh = -1, descriptor
            self._switch(fresh)
            return True
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def trim(self) -> None:
        """Cut a last frame that a dead writer left unfinished; only for the writer.

        Raises:
            RendezvousStateError: What follows the last sound frame is damage, not a torn frame.
        """
        size = os.fstat(self._fd).st_size
        if size == self._end:
            return
        if size < self._end:
            self._damaged(size, "the file has become shorter than what was read of it")
        tail = memoryview(read_at(self._fd, self._end, size))
        assert unframe(tail) is None, "read_new() comes before every write"
        if not is_torn(tail, self._end):
            self._damaged(self._end, "a frame here is damaged")
        logger.warning("%s: cut %d bytes of an unfinished write at offset %d", self.path, len(tail), self._end)
        os.ftruncate(self._fd, self._end)

    # Writing

    def append(self, records: Sequence[Record]) -> None:
        """Write the records behind all others, and wait until they are on the disk.

        Raises:
            RendezvousConnectionError: They could not be written, and are not in the log; or, if the log is ``broken``
                now, they may or may not be.
            RendezvousStateError: The file has been damaged since it was read; or it was moved away or removed.
            ValueError: One record is larger than a frame may be; nothing was written.
        """
        if not records:
            return
        if self.broken:
            raise RendezvousConnectionError(f"{self.path}: an earlier sync failed; the log takes no more records")
        for data in frames(records):
            try:
                self.trim()
                end = write_at(self._fd, data, self._end)
            except OSError as error:
                with contextlib.suppress(OSError):  # the next writer trims it otherwise
                    os.ftruncate(self._fd, self._end)
                self._fail("write to", error)
            self._end = end
            if self._sync:
                try:
                    os.fdatasync(self._fd)
                except OSError as error:
                    self.broken = True
                    self._fail("sync", error)
        self._check_current()

    def compact(self, snapshot: Snapshot) -> None:
        """Put a new file with this snapshot in the place of the old one; it mends a broken log.

        Everything that the snapshot holds is on the disk afterwards: records that were applied before it was taken and
        are not appended yet must not be appended any more.

        Raises:
            RendezvousConnectionError: It failed, and the log is what it was before; or, if it is ``broken`` now, the
                new file is in place but may not survive a power cut.
            RendezvousStateError: The old one was moved away or removed.
        """
        generation = self._generation + 1
        beside = f"{self._name}.new"
        fd, end = -1, 0
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=self._directory)
            fd = os.open(beside, _FILE_FLAGS | os.O_CREAT | os.O_EXCL, self._mode, dir_fd=self._directory)
            os.fchmod(fd, self._mode)  # whatever the umask says
            for piece in head_of_log(generation, snapshot):
                end = write_at(fd, piece, end)
            os.fsync(fd)
            if self._held:
                try_lock(fd)
            if self._fd >= 0:
                self._check_current()
            os.rename(beside, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except (OSError, RendezvousError) as error:
            if fd >= 0:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(beside, dir_fd=self._directory)
            self._fail("compact", error)
        self._adopt(fd, generation, end)
        try:
            os.fsync(self._directory)
        except OSError as error:
            self.broken = True
            self._fail("sync the directory of", error)
        self.broken = False
        self._check_current()

    # Inside

    def _is_current(self) -> bool:
        """Tell whether the path still leads to this file."""
        # By its whole path for a server: another directory may have been put in the place of this one.
        where = (self.path,) if self._exclusive else (self._name, self._directory)
        return identity(*where) == self._file

    def _check_current(self) -> None:
        if self._exclusive and not self._is_current():
            self.broken = True
            raise RendezvousStateError(
                f"{self.path} was moved, removed or replaced while this process used it; what was written since is not "
                "acknowledged. Put the file, or its directory, back in its place to go on with what it holds"
            )

    def _in_use(self) -> NoReturn:
        raise LogInUseError(f"{self.path} is in use by another process; stop that one, or choose another directory")

    def _open_file(self) -> int:
        fd = os.open(self._name, _FILE_FLAGS, dir_fd=self._directory)
        if self._exclusive and not try_lock(fd):
            os.close(fd)
            self._in_use()
        return fd

    def _switch(self, fd: int) -> None:
        """Read the file behind ``fd`` from its beginning, and make it the log's."""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise RendezvousStateError(f"{self.path} is not a regular file")
            version, generation = self._read_header(fd)
            data = memoryview(read_at(fd, 0, status.st_size))
            try:
                snapshot, end = read_snapshot(data, version)
                table = Table.restore(snapshot, self._now)
            except ValueError as error:
                self._damaged(HEADER_SIZE, str(error))
            except KeyError as error:
                self._damaged(HEADER_SIZE, f"the snapshot has a key of session {error}, which is not in it")
            self.table = table
        except BaseException:
            os.close(fd)
            raise
        self._adopt(fd, generation, end)
        self._apply(data[end:], end)
        self.table.take_changed()  # it is all new

    def _adopt(self, fd: int, generation: int, head_end: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._file = identity(fd)
        self._generation = generation
        self._head_end = self._end = head_end

    def _apply(self, data: memoryview, start: int) -> None:
        """Apply the whole frames at the beginning of ``data``, which lies at ``start`` in the file."""
        at = 0
        while (found := unframe(data, at)) is not None:
            payload, end = found
            try:
                replay(self.table, read_records(payload), self._now)
            except RendezvousStateError as error:
                self._damaged(start + at, str(error))
            at = end
            self._end = start + at

    def _read_header(self, fd: int) -> tuple[int, int]:
        try:
            header = read_header(read_at(fd, 0, HEADER_SIZE))
        except ValueError as error:
            self._damaged(0, str(error))
        if header is None:
            raise RendezvousStateError(f"{self.path} is not a log of rendezvous_async; choose another directory")
        if header[0] not in VERSIONS:
            raise RendezvousStateError(
                f"{self.path} is a log of version {header[0]}; this rendezvous_async reads up to version {VERSIONS[-1]}"
            )
        return header

    def _damaged(self, offset: int, what: str) -> NoReturn:
        raise RendezvousStateError(
            f"{self.path} is damaged: {what} (offset {offset}, generation {self._generation}). Nothing was changed. "
            f"Restore the file from a copy, or move it away to begin a new history: all runs in it start over"
        )

    def _fail(self, what: str, error: OSError | RendezvousError) -> NoReturn:
        if isinstance(error, RendezvousError):
            raise error
        raise RendezvousConnectionError(f"cannot {what} the log {self.path}: {error.strerror or error}") from error
