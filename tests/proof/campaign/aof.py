"""What was written to the value of a Redis, read from its append-only file: every write of the value, in order.

Redis writes a command to this file before it answers it (``appendfsync always``). It begins another file now and then,
with the next number in its name, and removes the last one once nothing in it is needed any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rendezvous_async.backends.base import Entry
from rendezvous_async.backends.cas.image import Image
from tests.proof.campaign.follower import CommitSeen, Follower

__all__ = ["AofFollower", "read_command"]

NUMBER = re.compile(r"\.(\d+)\.incr\.aof$")


class AofFollower(Follower):
    """Follows the value that ``RedisBackend`` keeps in one key.

    Args:
        folder: Where Redis has its append-only files.
        key: Which key.
        prefix: How many bytes of what the key holds come before the value.
        namespace: The namespace to follow.
    """

    def __init__(self, folder: Path, key: str, prefix: int, namespace: str) -> None:
        self._folder = folder
        self._key = key.encode()
        self._prefix = prefix
        self._namespace = namespace
        self._number = 0
        self._file: AppendedFile | None = None
        self._image: Image | None = None
        self._keys: set[str] = set()
        self._revision = 0

    def __repr__(self) -> str:
        return f"<AofFollower {self._folder} file {self._number} {self._image!r}>"

    def poll(self) -> list[CommitSeen]:
        found: list[CommitSeen] = []
        while True:
            later = self._later_file()  # Before the last one is read: then that is read to its end.
            if self._file is not None:
                found.extend(self._follow(self._file))
            if later is None:
                return found
            self.close()
            self._number, path = later
            self._file = AppendedFile(path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _later_file(self) -> tuple[int, Path] | None:
        """Return the first file after the one that is read, if there is one, and its number."""
        numbered = ((NUMBER.search(path.name), path) for path in self._folder.glob("*.incr.aof"))
        files = sorted((int(match[1]), path) for match, path in numbered if match is not None)
        return next((file for file in files if file[0] > self._number), None)

    def _follow(self, file: AppendedFile) -> Iterator[CommitSeen]:
        for words in file.read():
            if len(words) >= 3 and words[0].upper() == b"SET" and words[1] == self._key:
                commit = self._take(Image.decode(words[2][self._prefix :], self._image))
                if commit is not None:
                    yield commit

    def _take(self, image: Image) -> CommitSeen | None:
        """Return what a write changed; None if it was only keep-alives."""
        before, self._image = self._image, image
        if before is not None and before.snapshot == image.snapshot:
            return None
        listing = image.table.list(f"{self._namespace}/")
        last, revision = self._revision, image.table.revision
        keys = {entry.key for entry in listing.entries}
        entries = [entry for entry in listing.entries if entry.token.revision > last]
        entries += [Entry(key, None, listing.token) for key in self._keys - keys]
        self._keys, self._revision, self.epoch = keys, revision, image.epoch
        if revision == last:
            return None  # A session was opened or ended that had no keys.
        gap = last if revision > last + 1 else None  # Several commits in one write.
        return CommitSeen(revision, tuple(sorted(entries, key=lambda entry: entry.key)), gap)


class AppendedFile:
    """A file of commands, which grows; opened once, so that it can be read to its end after it was removed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._position = 0

    def read(self) -> Iterator[Sequence[bytes]]:
        """Yield the whole commands since the last time; what comes after them may be cut off and written anew."""
        self._file.seek(self._position)
        data = self._file.read()
        at = 0
        while (command := read_command(data, at)) is not None:
            words, at = command
            yield words
        self._position += at

    def close(self) -> None:
        self._file.close()


def read_command(data: bytes, at: int) -> tuple[Sequence[bytes], int] | None:
    """Return the command at a position and where the next one begins; None if it is not whole."""
    head = _read_line(data, at)
    if head is None:
        return None
    line, at = head
    if line.startswith(b"#"):  # A comment, such as the time.
        return [], at
    assert line.startswith(b"*"), f"no command in an append-only file: {line[:40]!r}"
    words = []
    for _ in range(int(line[1:])):
        head = _read_line(data, at)
        if head is None:
            return None
        line, at = head
        size = int(line[1:])
        if len(data) < at + size + 2:
            return None
        words.append(data[at : at + size])
        at += size + 2
    return words, at


def _read_line(data: bytes, at: int) -> tuple[bytes, int] | None:
    end = data.find(b"\r\n", at)
    return None if end < 0 else (data[at:end], end + 2)
