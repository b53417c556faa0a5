"""The write-ahead log of a table, with a snapshot at its head: what the TCP server and the file backend keep on disk.

One file is a whole history: a header, a snapshot, then frames of records (``frames.py``). Compaction writes the current
table as the snapshot of a new file, with the next generation, and renames it into place, so a reader always finds a
whole file. ``Log.table`` is what the file holds.

Everything here blocks, so callers run it on a thread, one call at a time. All calls except ``read_new`` are for the
only writer: either permanently (``exclusive=True``, the TCP server) or between ``hold`` and ``let_go`` (the file
backend, whose processes follow each other's appends with ``read_new``). The log itself is locked, and compaction locks
the new file before the rename, so there is no lock file whose removal would admit a second writer. An exclusive log
also checks, before it acknowledges a write, that its path still leads to its file: a restart would not find a file that
was moved away.

Acknowledged records are on disk: ``append`` returns after fdatasync. When a write fails, the partial frame is cut off.
When a *sync* fails, the state of the disk is unknown, and the kernel may drop unwritten pages. The log is then
``broken`` and takes no more records until ``compact`` has written everything to a new file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Sequence
from typing import NoReturn

from rendezvous_async.backends.table.files import FILES, Files
from rendezvous_async.backends.table.frames import LogRecord, frames, is_torn, read_records, replay, unframe
from rendezvous_async.backends.table.head import HEADER_SIZE, head_of_log, read_header, read_snapshot
from rendezvous_async.backends.table.table import Snapshot, Table
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError

__all__ = ["Log", "LogInUseError"]

logger = logging.getLogger("rendezvous_async.log")

_SMALL = 512 * 1024
_FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW


class LogInUseError(RendezvousStateError):
    """Another process, or another ``Log``, holds the log; it may release it later."""


class Log:
    """A table and its file; see this module's docstring for who may call what when.

    Attributes:
        table: What the file holds. ``append`` does not change it: the caller applies its own records. ``read_new`` and
            ``reload`` may replace it.
        broken: A sync failed; only ``compact`` helps.
    """

    table: Table

    def __init__(
        self, path: str, directory: int, files: Files, *, exclusive: bool, sync: bool, mode: int, now: float
    ) -> None:
        self.path = path
        self.broken = False
        self._files = files
        self._name = os.path.basename(path)
        self._directory = directory
        self._sync = sync
        self._mode = mode
        self._now = now
        self._fd = -1
        self._held = self._exclusive = exclusive
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
        files: Files = FILES,
    ) -> Log:
        """Open the log at ``path``, or create it.

        Args:
            path: The file; its directory is created, with access for this user only, if there is none.
            directory: A descriptor of that directory, if the caller has one; the log duplicates it.
            epoch: The name of the new history if the log is created; random by default.
            exclusive: Hold the log and its directory until the log is closed, or fail if either is held.
            writer: Whether to create a missing log and to cut a torn last frame.
            sync: Whether ``append`` waits for the disk. Without it a power cut may lose or damage acknowledged records;
                a crash of the process does not.
            mode: The file's permissions.
            now: The time by the clock of the leases; every session gets its full TTL from then.
            files: The file system that it is in.

        Raises:
            RendezvousStateError: The file is damaged, or not a log.
            RendezvousVersionError: A newer version wrote the file, which is left unchanged.
            LogInUseError: The log is in use.
            RendezvousConnectionError: The file cannot be read or written.
        """
        path = os.path.abspath(path)
        where = os.path.dirname(path)
        try:
            if directory is None:
                files.makedirs(where, 0o700)
                directory = files.open(where, os.O_DIRECTORY)
            else:
                directory = files.dup(directory)
        except OSError as error:
            raise RendezvousConnectionError(f"cannot open the directory of the log {path}: {error.strerror}") from error
        log = cls(path, directory, files, exclusive=exclusive, sync=sync, mode=mode, now=now)
        try:
            if exclusive and not files.try_lock(directory):
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
        """Close the file and release its lock; may be called more than once."""
        for descriptor in (self._fd, self._directory):
            if descriptor >= 0:
                self._files.close(descriptor)
        self._fd = self._directory = -1

    @property
    def is_long(self) -> bool:
        """Whether ``compact`` pays: the records outweigh the snapshot, or the one that would replace it."""
        return self._end - self._head_end > max(_SMALL, min(self._head_end, self.table.size))

    @property
    def unread(self) -> int:
        """The bytes after the last whole frame at the last ``read_new``: a write in progress, a torn one, or damage."""
        return max(self._size - self._end, 0)

    def hold(self) -> bool:
        """Lock the file for writing; False if another holds it, or it is no longer the log."""
        self._held = self._files.try_lock(self._fd)
        if self._held and not self._is_current():
            self.let_go()
        return self._held

    def let_go(self) -> None:
        """Release the lock of ``hold``."""
        if self._held:
            self._held = False
            self._files.unlock(self._fd)

    # Reading

    def reload(self) -> None:
        """Read the whole file into a new table, and cut a torn last frame; only for the writer.

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

        An incomplete frame is left for later: its writer may still be writing it.

        Returns:
            Whether the table is a new object, because the file was replaced.

        Raises:
            FileNotFoundError: The file has been removed.
        """
        # Open, not stat: over NFS only an open is certain to ask the server.
        descriptor = self._open_file()
        try:
            status = self._files.fstat(descriptor)
            self._size = status.st_size
            same = (status.st_dev, status.st_ino) == self._file
            if same and status.st_size == self._end:
                return False
            if same and self._read_header(descriptor)[1] == self._generation and status.st_size > self._end:
                self._apply(memoryview(self._files.read_at(self._fd, self._end, status.st_size)), self._end)
                return False
            descriptor, fresh = -1, descriptor
            self._switch(fresh)
            return True
        finally:
            if descriptor >= 0:
                self._files.close(descriptor)

    def trim(self) -> None:
        """Cut a last frame that a dead writer left incomplete; only for the writer.

        Raises:
            RendezvousStateError: The bytes after the last sound frame are damage, not a torn frame.
        """
        size = self._files.fstat(self._fd).st_size
        if size == self._end:
            return
        if size < self._end:
            self._damaged(size, "the file has become shorter than what was read from it")
        tail = memoryview(self._files.read_at(self._fd, self._end, size))
        assert unframe(tail) is None, "read_new() comes before every write"
        if not is_torn(tail, self._end):
            self._damaged(self._end, "a frame here is damaged")
        logger.warning("%s: cut %d bytes of an unfinished write at offset %d", self.path, len(tail), self._end)
        self._files.ftruncate(self._fd, self._end)

    # Writing

    def append(self, records: Sequence[LogRecord]) -> None:
        """Append records and wait until they are on disk.

        Raises:
            RendezvousConnectionError: The records are not in the log; or, if the log is ``broken`` now, their fate is
                unknown.
            RendezvousStateError: The file was damaged since it was read, moved away or removed.
            ValueError: A record is larger than a frame may be; nothing was written.
        """
        if not records:
            return
        if self.broken:
            raise RendezvousConnectionError(f"{self.path}: an earlier sync failed; the log takes no more records")
        for data in frames(records):
            try:
                self.trim()
                end = self._files.write_at(self._fd, data, self._end)
            except OSError as error:
                with contextlib.suppress(OSError):  # otherwise the next writer trims it
                    self._files.ftruncate(self._fd, self._end)
                self._fail("write to", error)
            self._end = end
            if self._sync:
                try:
                    self._files.fdatasync(self._fd)
                except OSError as error:
                    self.broken = True
                    self._fail("sync", error)
        self._check_current()

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the file with a new one that starts with this snapshot; this repairs a broken log.

        The snapshot is on disk afterwards, so records that it already includes must not be appended any more.

        Raises:
            RendezvousConnectionError: It failed, and the log is unchanged; or, if it is ``broken`` now, the new file is
                in place but may not survive a power cut.
            RendezvousStateError: The old file was moved away or removed.
        """
        generation = self._generation + 1
        beside = f"{self._name}.new"
        fd, end = -1, 0
        try:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(beside, self._directory)
            fd = self._files.open(beside, _FILE_FLAGS | os.O_CREAT | os.O_EXCL, self._mode, dir_fd=self._directory)
            self._files.fchmod(fd, self._mode)  # regardless of the umask
            for piece in head_of_log(generation, snapshot):
                end = self._files.write_at(fd, piece, end)
            self._files.fsync(fd)
            if self._held:
                self._files.try_lock(fd)
            if self._fd >= 0:
                self._check_current()
            self._files.rename(beside, self._name, self._directory)
        except (OSError, RendezvousError) as error:
            if fd >= 0:
                self._files.close(fd)
                with contextlib.suppress(OSError):
                    self._files.unlink(beside, self._directory)
            self._fail("compact", error)
        self._adopt(fd, generation, end)
        try:
            self._files.fsync(self._directory)
        except OSError as error:
            self.broken = True
            self._fail("sync the directory of", error)
        self.broken = False
        self._check_current()

    # Inside

    def _is_current(self) -> bool:
        """Tell whether the path still leads to this file."""
        # An exclusive log checks the whole path: its directory may have been replaced.
        where = (self.path,) if self._exclusive else (self._name, self._directory)
        return self._files.identity(*where) == self._file

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
        fd = self._files.open(self._name, _FILE_FLAGS, dir_fd=self._directory)
        if self._exclusive and not self._files.try_lock(fd):
            self._files.close(fd)
            self._in_use()
        return fd

    def _switch(self, fd: int) -> None:
        """Read the whole file behind ``fd``, and use it from now on."""
        try:
            status = self._files.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise RendezvousStateError(f"{self.path} is not a regular file")
            version, generation = self._read_header(fd)
            data = memoryview(self._files.read_at(fd, 0, status.st_size))
            try:
                snapshot, end = read_snapshot(data, version)
                table = Table.restore(snapshot, self._now)
            except ValueError as error:
                self._damaged(HEADER_SIZE, str(error))
            except KeyError as error:
                self._damaged(HEADER_SIZE, f"the snapshot has a key of session {error}, which is not in it")
            self.table = table
        except BaseException:
            self._files.close(fd)
            raise
        self._adopt(fd, generation, end)
        self._apply(data[end:], end)
        self.table.take_changed()  # the whole table is new

    def _adopt(self, fd: int, generation: int, head_end: int) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
        self._fd = fd
        self._file = self._files.identity(fd)
        self._generation = generation
        self._head_end = self._end = head_end

    def _apply(self, data: memoryview, start: int) -> None:
        """Apply the whole frames at the start of ``data``, which is at offset ``start`` of the file."""
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
            header = read_header(self.path, self._files.read_at(fd, 0, HEADER_SIZE))
        except ValueError as error:
            self._damaged(0, str(error))
        if header is None:
            raise RendezvousStateError(f"{self.path} is not a log of rendezvous_async; choose another directory")
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
