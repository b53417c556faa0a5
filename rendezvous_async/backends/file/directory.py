"""The directory that a file backend lives in: opened with care, and locked by one process at a time.

Everything is opened relative to one descriptor of the directory and never through a symbolic link, so nobody can lead
a process elsewhere after the checks. A directory in which somebody else could write is refused: whoever can write the
log can make every node believe anything.

Locks are "open file description" locks where the system has them: they exclude two backends of one process too, and
other descriptors of the same file may come and go. Elsewhere they are plain POSIX locks, which a process loses with the
first descriptor of the file that it closes; there the descriptor of a lock is shared in the process and never closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
import threading

from rendezvous_async.errors import RendezvousConnectionError, RendezvousError

__all__ = ["Directory", "FileLock", "explain"]

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_FLOCK = struct.Struct("@hhqqi4x")
HAS_OFD_LOCKS = hasattr(fcntl, "F_OFD_SETLK") and sys.platform == "linux" and sys.maxsize > 2**32
_LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs overlay f2fs zfs bcachefs jfs nilfs2 reiserfs exfat vfat ntfs3".split()
)


class Directory:
    """An open directory that only this user can write in, unless ``shared``.

    Attributes:
        path: For messages.
        fd: Its descriptor.
        mode: What files in it are created with.
        key: Tells whether two paths lead to the same directory.
        is_local: Whether it is known to be on a disk of this machine: all its users see a change at once, hear of it
            by inotify, and lose their locks when they die. False for NFS and for whatever is not known.
    """

    def __init__(self, path: str, fd: int, mode: int) -> None:
        status = os.fstat(fd)
        self.path = path
        self.fd = fd
        self.mode = mode
        self.key = (status.st_dev, status.st_ino)
        self.is_local = _file_system(fd) in _LOCAL

    def __repr__(self) -> str:
        return f"<Directory {self.path}{' local' if self.is_local else ''}>"

    @classmethod
    def open(cls, path: str, *, shared: bool = False) -> Directory:
        """Open the directory, and create it for this user alone if there is none.

        Raises:
            RendezvousConnectionError: It cannot be opened, or others could write in it and ``shared`` is false.
        """
        path = os.path.normpath(path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(path):
                raise RendezvousConnectionError(
                    f"{path} is a symbolic link; name the directory itself, so that nobody can lead you elsewhere"
                ) from error
            raise explain(path, "open the directory", error) from error
        status = os.fstat(fd)
        others = stat.S_IMODE(status.st_mode) & 0o022
        if shared:
            return cls(path, fd, 0o600 | (others << 1 | others))
        wrong = None
        if status.st_uid != os.geteuid():
            wrong = f"belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
        elif others:
            wrong = f"can be written by others (its mode is {stat.S_IMODE(status.st_mode):04o}; chmod go-w mends that)"
        if wrong is not None:
            os.close(fd)
            raise RendezvousConnectionError(
                f"{path} {wrong}. Whoever can write there decides what every node believes: use a directory of your "
                f"own, or say shared=true if you trust all who can"
            )
        return cls(path, fd, 0o600)

    def subdirectory(self, name: str) -> int:
        """Return a descriptor of a directory inside, which is created if there is none."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
            os.chmod(name, self.mode | 0o100 | (self.mode & 0o044) >> 2, dir_fd=self.fd)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=self.fd)

    def lock(self, name: str) -> FileLock:
        """Return the lock file of that name."""
        return FileLock(open_file(name, self.fd, self.mode))

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the directory meanwhile."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class FileLock:
    """One process's hold on a lock file; the system releases the lock of a process that dies."""

    def __init__(self, fd: int) -> None:
        self._process_wide = None
        if not HAS_OFD_LOCKS:
            fd, self._process_wide = _share(fd)
        self.fd = fd

    def acquire(self, *, wait: bool) -> bool:
        """Take the lock; without ``wait``, return False if another has it."""
        if self._process_wide is not None and not self._process_wide.acquire(blocking=wait):
            return False
        try:
            if HAS_OFD_LOCKS:
                _ofd_lock(self.fd, fcntl.F_WRLCK, wait=wait)
            else:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):  # POSIX allows either for "another has it"
            if self._process_wide is not None:
                self._process_wide.release()
            return False
        return True

    def release(self) -> None:
        if HAS_OFD_LOCKS:
            _ofd_lock(self.fd, fcntl.F_UNLCK, wait=False)
        else:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
        if self._process_wide is not None:
            self._process_wide.release()

    def close(self) -> None:
        if HAS_OFD_LOCKS and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def hold(fd: int) -> None:
    """Lock a file of one's own for as long as this process keeps it open; nothing without OFD locks."""
    if HAS_OFD_LOCKS:
        _ofd_lock(fd, fcntl.F_WRLCK, wait=False)


def is_held(fd: int) -> bool:
    """Tell whether anybody has ``hold`` of the file; True when that cannot be known."""
    if not HAS_OFD_LOCKS:
        return True
    try:
        _ofd_lock(fd, fcntl.F_RDLCK, wait=False)
    except (BlockingIOError, PermissionError):
        return True
    return False


def open_file(name: str, directory: int, mode: int, *, new: bool = False) -> int:
    """Open a regular file to read and write, never through a link; create it if there is none, or, if ``new``, anyway."""
    if new:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
    while True:
        try:
            if not new:
                fd = os.open(name, os.O_RDWR | _OPEN, dir_fd=directory)
                break
        except FileNotFoundError:
            pass
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, mode, dir_fd=directory)
        except FileExistsError:
            if new:
                raise
            continue
        os.fchmod(fd, mode)
        break
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{name} is not a regular file")
    return fd


def explain(path: str, what: str, error: OSError) -> RendezvousError:
    """Return what to raise for an error of the system: the one place where those become ours."""
    if isinstance(error, RendezvousError):
        return error
    match error.errno:
        case errno.ENOENT | errno.ESTALE:
            hint = "it has been removed while it was in use"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            hint = f"{error.strerror}; every node must be able to read and write there"
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            hint = f"{error.strerror}; nothing is lost, make room and try again"
        case errno.ENOLCK | errno.EOPNOTSUPP:
            hint = f"{error.strerror}; this file system gives no locks, so it cannot be used"
        case _:
            hint = error.strerror or str(error)
    return RendezvousConnectionError(f"cannot {what} {path}: {hint}")


def _ofd_lock(fd: int, kind: int, *, wait: bool) -> None:
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


_shared: dict[tuple[int, int], tuple[int, threading.Lock]] = {}
_sharing = threading.Lock()


def _share(fd: int) -> tuple[int, threading.Lock]:
    """Return the one descriptor that this process has of a lock file, and the lock between its threads."""
    status = os.fstat(fd)
    with _sharing:
        found = _shared.setdefault((status.st_dev, status.st_ino), (fd, threading.Lock()))
    if found[0] != fd:
        with found[1]:  # closing it would take the lock away from a thread that holds it
            os.close(fd)
    return found


def _file_system(fd: int) -> str:
    """The type of file system that ``fd`` is on, or "" where that cannot be told."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            mount = next(line.split()[1] for line in info if line.startswith("mnt_id:"))
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return next(line.partition(" - ")[2].split()[0] for line in mounts if line.split()[0] == mount)
    except (OSError, StopIteration, IndexError):
        return ""
