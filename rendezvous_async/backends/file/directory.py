"""Opens the directory of a file backend safely.

All files are opened relative to one descriptor of the directory and never through a symbolic link, so no other user can
redirect them after the checks. A directory that other users can write is refused: the log determines what every node
believes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from rendezvous_async.backends.table.files import FILES, Files
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError

__all__ = ["Directory", "explain", "open_file"]

_ADVICE = "use a directory that only you can write, or set shared=true if you trust its writers"
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})


class Directory:
    """An open directory that only this user can write, unless ``shared``.

    Attributes:
        path: The path, for messages.
        fd: The file descriptor.
        mode: The mode of the files created in it.
        key: Equal for two paths of the same directory.
        is_local: Whether it is known to be on a local disk, where changes are visible at once, inotify works, and the
            locks of a dead process are released. False for NFS and unknown file systems.
    """

    def __init__(self, path: str, fd: int, mode: int, files: Files = FILES) -> None:
        status = files.fstat(fd)
        self.path = path
        self.fd = fd
        self.mode = mode
        self.key = (status.st_dev, status.st_ino)
        self.is_local = _file_system(fd) in _LOCAL
        self._files = files

    def __repr__(self) -> str:
        return f"<Directory {self.path}{' local' if self.is_local else ''}>"

    @classmethod
    def open(cls, path: str, *, shared: bool = False, advice: str = _ADVICE, files: Files = FILES) -> Directory:
        """Open the directory; create it for this user only if it does not exist.

        Args:
            path: The path of the directory.
            shared: Whether other users may write in it.
            advice: What the error suggests if they can but may not.
            files: The file system that it is in.

        Raises:
            RendezvousConnectionError: It cannot be opened, or others can write in it and ``shared`` is false.
        """
        path = os.path.normpath(path)
        try:
            files.makedirs(os.path.dirname(path))
            with contextlib.suppress(FileExistsError):
                files.mkdir(path, 0o700)
            fd = files.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except OSError as error:
            if os.path.islink(path):
                raise RendezvousConnectionError(
                    f"{path} is a symbolic link; give the path of the directory itself, so that it cannot be redirected"
                ) from error
            raise explain(path, "open the directory", error, was_open=False) from error
        status = files.fstat(fd)
        others = stat.S_IMODE(status.st_mode) & 0o022
        if shared:
            return cls(path, fd, 0o600 | others << 1 | others, files)
        wrong = None
        if status.st_uid != os.geteuid():
            wrong = f"belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
        elif others:
            wrong = f"can be written by others: its mode is {stat.S_IMODE(status.st_mode):04o} (fix it with chmod go-w)"
        if wrong is not None:
            files.close(fd)
            raise RendezvousConnectionError(
                f"{path} {wrong}. Its content determines what every node believes: {advice}"
            )
        return cls(path, fd, 0o600, files)

    def subdirectory(self, name: str) -> int:
        """Open a subdirectory and return its descriptor; create it if it does not exist."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
            os.chmod(name, self.mode | 0o100 | (self.mode & 0o044) >> 2, dir_fd=self.fd)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=self.fd)

    @property
    def is_removed(self) -> bool:
        """Whether the directory has been removed since."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        if self.fd >= 0:
            self._files.close(self.fd)
            self.fd = -1


def open_file(name: str, directory: int, mode: int) -> int:
    """Open a regular file for reading and writing, never through a link; create it if it does not exist."""
    while True:
        try:
            fd = os.open(name, os.O_RDWR | _OPEN, dir_fd=directory)
        except FileNotFoundError:
            try:
                return create_file(name, directory, mode)
            except FileExistsError:
                continue
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, f"{name} is not a regular file")
        return fd


def create_file(name: str, directory: int, mode: int) -> int:
    """Create a file that must not exist yet, with exactly this mode."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, mode, dir_fd=directory)
    os.fchmod(fd, mode)  # Regardless of the umask.
    return fd


def explain(path: str, what: str, error: OSError | RendezvousError, *, was_open: bool = True) -> RendezvousError:
    """Map a system error to this library's errors; the one place that does so.

    Args:
        path: The path of the directory.
        what: The action that failed, as in "cannot ... the directory".
        error: The error; a RendezvousError is returned unchanged.
        was_open: Whether the directory had been opened before and so must have existed.
    """
    if isinstance(error, RendezvousError):
        return error
    match error.errno:
        case errno.ENOENT if not was_open:
            return RendezvousConnectionError(f"{path} cannot be created or opened: no such file or directory")
        case errno.ENOENT | errno.ESTALE if was_open:
            hint = "it has been removed while in use"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            hint = f"{error.strerror}; every node must be able to read and write there"
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            hint = f"{error.strerror}; nothing is lost, free some space and retry"
        case errno.ENOLCK | errno.EOPNOTSUPP:
            hint = f"{error.strerror}; this file system does not support locks, so it cannot be used"
        case _:
            hint = error.strerror or str(error)
    return RendezvousConnectionError(f"cannot {what} {path}: {hint}")


def _file_system(fd: int) -> str:
    """Return the type of the file system of ``fd``, or "" if unknown."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            mount = next(line.split()[1] for line in info if line.startswith("mnt_id:"))
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return next(line.partition(" - ")[2].split()[0] for line in mounts if line.split()[0] == mount)
    except (OSError, StopIteration, IndexError):
        return ""
