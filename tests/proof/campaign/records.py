"""What the processes of a campaign write down: one line of JSON for each thing, at the moment it happens.

A line is written with one ``write`` before the next thing is done, so that a process that is killed leaves all that it
did: a call is noted before it is sent, and its return after it was answered; a call without a return may have happened
or not. Nodes also write the records of ``rendezvous_async.testing.history``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from rendezvous_async.testing.history import Believed, CloseCalled, Left, Record, Released

__all__ = [
    "Called",
    "Done",
    "Failed",
    "Heard",
    "Line",
    "Members",
    "Notebook",
    "Returned",
    "Saw",
    "Tail",
    "Up",
    "Watching",
]


class Up(msgspec.Struct, frozen=True, tag=True):
    """A process has come up."""

    at: float
    who: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """A process ends in good order, because of this."""

    at: float
    who: str
    why: str


class Heard(msgspec.Struct, frozen=True, tag=True):
    """A node: this event reached it in this round."""

    at: float
    node: str
    kind: str
    round: int
    detail: str = ""


class Members(msgspec.Struct, frozen=True, tag=True):
    """A node: these are the members of the world that it holds, as (rank, node)."""

    at: float
    node: str
    round: int
    token: str
    members: tuple[tuple[int, str], ...]


class Called(msgspec.Struct, frozen=True, tag=True):
    """A client is about to call: the keys are all set to ``value`` (None: deleted), or read.

    Attributes:
        number: Counts the calls of this process.
        expected: Of a swap, what the key must hold.
    """

    at: float
    who: str
    number: int
    kind: Literal["read", "write", "swap", "list"]
    keys: tuple[str, ...]
    value: str | None = None
    expected: str | None = None


class Returned(msgspec.Struct, frozen=True, tag=True):
    """A call was answered.

    Attributes:
        revision: Of a commit or a listing.
        values: What a read or listing saw: (key, value).
    """

    at: float
    who: str
    number: int
    epoch: str = ""
    won: bool = True
    revision: int = 0
    values: tuple[tuple[str, str], ...] = ()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A call was given up, or failed: nobody knows what became of it."""

    at: float
    who: str
    number: int
    why: str


class Watching(msgspec.Struct, frozen=True, tag=True):
    """A client has begun a watch of all keys, from the beginning or from after a revision."""

    at: float
    who: str
    watch: int
    after: int | None = None


class Saw(msgspec.Struct, frozen=True, tag=True):
    """A watch delivered this: (key, revision, value), with value None for a deletion."""

    at: float
    who: str
    watch: int
    epoch: str
    revision: int
    complete: bool
    entries: tuple[tuple[str, int, str | None], ...]


Own: TypeAlias = Up | Done | Heard | Members | Called | Returned | Failed | Watching | Saw
Line: TypeAlias = Own | Believed | Released | Left | CloseCalled

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class Notebook:
    """Where a process writes its lines."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, line: Own | Record) -> None:
        """Write one line; it is there when this returns, whatever happens to the process."""
        data = _encode(line) + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


class Tail:
    """Reads what is added to a notebook."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Line]:
        """Return the whole lines since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [_decode(line) for line in whole.splitlines()]
