"""Advisory locks on files: for appending to the log, and for proving that an owner is alive.

On Linux they are open file description (OFD) locks. These also exclude each other within a process, and are not lost
when another descriptor of the file is closed. Elsewhere they are POSIX locks, which a process loses as soon as it
closes any descriptor of the file; so it keeps a single descriptor of a lock file and never closes it.

Either way, the system releases the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import queue
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from rendezvous_async.backends.file.directory import open_file
from rendezvous_async.backends.table.files import identity

__all__ = ["FileLock", "PatientLock", "hold", "is_held"]

HAS_OFD_LOCKS = hasattr(fcntl, "F_OFD_SETLK") and sys.platform == "linux" and sys.maxsize > 2**32
_FLOCK = struct.Struct("@hhqqi4x")
_DOOR = 0
_HUNGER = 1
_NEXT_TRY = 0.003
_HUNGRY_AFTER = 0.3
"""Seconds of waiting until a waiter is hungry. Serving hungry waiters is slow: the lock is idle until one wakes up."""
_PAUSES = (0.0001, 0.0003, 0.001, 0.003)
"""Seconds between the first attempts; handing the wait to a thread costs about as much."""


class FileLock:
    """A fair, exclusive lock file.

    The system grants a released lock to the first process that asks, which is often the one that released it. That is
    fast, but can starve the others. So a process that has waited for a while becomes hungry: it takes a shared lock on
    another byte. While any process is hungry, no other takes the lock without queueing.

    If the lock file is removed, the next holder switches to its replacement, or creates one.

    Args:
        fd: The descriptor of the lock file.
        is_current: Returns whether a descriptor still refers to the lock file.
        reopen: Opens the current lock file.
    """

    def __init__(
        self,
        fd: int,
        is_current: Callable[[int], bool] = lambda _: True,
        reopen: Callable[[], int] | None = None,
    ) -> None:
        self._is_current = is_current
        self._reopen = reopen
        self._use(fd)

    @classmethod
    def open(cls, name: str, directory: int, mode: int) -> FileLock:
        """Open a lock file; create it if it does not exist."""
        reopen = partial(open_file, name, directory, mode)
        return cls(reopen(), lambda fd: identity(fd) == identity(name, directory), reopen)

    def _use(self, fd: int) -> None:
        self._between_threads: threading.Lock | None = None
        if not HAS_OFD_LOCKS:
            fd, self._between_threads = _share(fd)
        self._fd = fd

    def acquire(self, *, wait: bool) -> bool:
        """Take the lock; without ``wait``, return False if another process holds it or is hungry for it."""
        while self._acquire(wait):
            if self._reopen is None or self._is_current(self._fd):
                return True
            self.release()
            fd = self._reopen()
            self.close()
            self._use(fd)
        return False

    def _acquire(self, wait: bool) -> bool:
        if self._between_threads is not None and not self._between_threads.acquire(wait):
            return False
        taken = False
        try:
            taken = self._wait_for_it() if wait else self._take_in_passing()
        finally:
            if not taken and self._between_threads is not None:
                self._between_threads.release()
        return taken

    def _take_in_passing(self) -> bool:
        return not _is_locked(self._fd, _HUNGER) and _lock(self._fd, _DOOR, wait=False)

    def _wait_for_it(self) -> bool:
        hungry_at = time.monotonic() + _HUNGRY_AFTER
        while time.monotonic() < hungry_at:
            if self._take_in_passing():
                return True
            select.select((), (), (), _NEXT_TRY)
        _lock(self._fd, _HUNGER, wait=False, kind=fcntl.F_RDLCK)
        try:
            return _lock(self._fd, _DOOR, wait=True)
        finally:
            _unlock(self._fd, _HUNGER)

    def release(self) -> None:
        _unlock(self._fd, _DOOR)
        if self._between_threads is not None:
            self._between_threads.release()

    def close(self) -> None:
        if HAS_OFD_LOCKS and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PatientLock:
    """A lock that is requested without blocking: after a few quick attempts, a helper thread waits for it.

    Args:
        lock: The lock; closed together with this.
        wake: Called on the helper thread when a requested lock has been granted.
    """

    def __init__(self, lock: FileLock, wake: Callable[[], None]) -> None:
        self._lock = lock
        self._wake = wake
        self._mutex = threading.Lock()
        self._wanted: queue.SimpleQueue[bool] | None = None
        self._is_asked = False
        self._is_granted = False
        self._is_closed = False
        self._error: OSError | None = None

    def get(self) -> bool:
        """Return True with the lock held, or request it and return False; call again after ``wake``."""
        with self._mutex:
            if self._error is not None:
                error, self._error, self._is_asked = self._error, None, False
                raise error
            if self._is_asked:
                granted = self._is_granted
                if granted:
                    self._is_asked = self._is_granted = False
                return granted
        for pause in _PAUSES:
            if self._lock.acquire(wait=False):
                return True
            select.select((), (), (), pause)
        if self._wanted is None:
            self._wanted = queue.SimpleQueue()
            threading.Thread(target=self._wait, args=(self._wanted,), name="rendezvous lock", daemon=True).start()
        self._is_asked = True
        self._wanted.put(True)
        return False

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        """Close the lock file; a pending wait ends by itself and leaves nothing locked."""
        with self._mutex:
            if self._is_closed:
                return
            self._is_closed = True
            if self._is_granted:
                self._lock.release()
            if not self._is_asked or self._is_granted:
                self._lock.close()
        if self._wanted is not None:
            self._wanted.put(False)

    def abandon(self) -> None:
        """Close the lock file in a forked child, where the helper thread does not exist."""
        self._mutex = threading.Lock()
        self._lock.close()

    def _wait(self, wanted: queue.SimpleQueue[bool]) -> None:
        while wanted.get():
            error = None
            try:
                self._lock.acquire(wait=True)
            except OSError as caught:
                error = caught
            with self._mutex:
                if self._is_closed:
                    if error is None:
                        self._lock.release()
                    self._lock.close()
                    return
                self._error = error
                self._is_granted = error is None
            self._wake()


def hold(fd: int) -> None:
    """Lock a file for as long as this process has it open; do nothing without OFD locks."""
    if HAS_OFD_LOCKS:
        _lock(fd, _DOOR, wait=False)


def is_held(fd: int) -> bool:
    """Return whether any process has called ``hold`` on the file; True if that cannot be known."""
    return not HAS_OFD_LOCKS or _is_locked(fd, _DOOR)


def _lock(fd: int, byte: int, *, wait: bool, kind: int = fcntl.F_WRLCK) -> bool:
    """Lock one byte of the file; without ``wait``, return False if another process has locked it."""
    try:
        if HAS_OFD_LOCKS:
            command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
            fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
        else:
            how = fcntl.LOCK_SH if kind == fcntl.F_RDLCK else fcntl.LOCK_EX
            fcntl.lockf(fd, how | (0 if wait else fcntl.LOCK_NB), 1, byte)
    except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that is taken.
        if wait:
            raise
        return False
    return True


def _is_locked(fd: int, byte: int) -> bool:
    """Return whether another process has locked that byte; False if that cannot be known."""
    if not HAS_OFD_LOCKS:
        return False
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    assert isinstance(found, bytes)
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _unlock(fd: int, byte: int) -> None:
    if HAS_OFD_LOCKS:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
    else:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, byte)


_shared: dict[tuple[int, int], tuple[int, threading.Lock]] = {}
_sharing = threading.Lock()


def _share(fd: int) -> tuple[int, threading.Lock]:
    """Return this process's only descriptor of a lock file, and the lock between its threads."""
    status = os.fstat(fd)
    with _sharing:
        found = _shared.setdefault((status.st_dev, status.st_ino), (fd, threading.Lock()))
    if found[0] != fd:
        with found[1]:  # Closing it would release the lock of the thread that holds it.
            os.close(fd)
    return found
