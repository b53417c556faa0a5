"""The values that go into a backend and come out of it: tokens, entries, listings, writes and conditions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

__all__ = [
    "FIRST_WRITES",
    "OWN",
    "Commit",
    "Condition",
    "Delete",
    "Entry",
    "Listing",
    "Put",
    "Token",
    "Write",
    "names_session",
    "news_of",
    "owned",
]

FIRST_WRITES = 64
"""Upper bound on the writes, and on the conditions, of a session's first commit, which is a node's arrival."""
OWN = ""
"""As the session of a put in an ``Opening``: the session that it opens."""


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fencing token: a history (epoch) and a position in it (revision)."""

    epoch: str
    revision: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.revision}"

    def is_news_to(self, known: Token | None) -> bool:
        """Return whether a write with this token is newer than the known token of the same key."""
        return known is None or known.epoch != self.epoch or known.revision < self.revision


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key and its value. In a watch, ``value`` None is a deletion, and the token says when.

    The ``cause`` of a deletion is why the key's session ended, as far as that is known (``rendezvous_async.causes``).
    That of a put is the cause of the deletion before it, which a watch may have skipped.
    """

    key: str
    value: bytes | None
    token: Token
    session: str | None = None
    cause: str = ""

    def relative_to(self, prefix: str) -> Entry:
        """Return the same entry with ``prefix`` taken off its key."""
        return Entry(self.key[len(prefix) :], self.value, self.token, self.session, self.cause)


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """Entries in the order of their keys, as of one revision.

    Attributes:
        entries: The current entries or, from a watch, the changed ones.
        token: The newest revision that this listing includes.
        complete: Whether these are all entries. False, from a watch: the changes since the previous listing.
    """

    entries: tuple[Entry, ...]
    token: Token
    complete: bool = True

    @property
    def revision(self) -> int:
        return self.token.revision

    def relative_to(self, prefix: str) -> Listing:
        """Return the same listing with ``prefix`` taken off every key."""
        return Listing(tuple([entry.relative_to(prefix) for entry in self.entries]), self.token, self.complete)


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """The result of a commit.

    Attributes:
        won: Whether all conditions held and so all writes were applied.
        token: The token of the writes if it won; otherwise the revision at which it lost.
        entries: If it lost, the current entries of the keys in ``when`` that exist.
    """

    won: bool
    token: Token
    entries: tuple[Entry, ...] = ()

    @property
    def revision(self) -> int:
        return self.token.revision

    def entry(self, key: str) -> Entry | None:
        """Return the current entry at ``key``, one of the keys in ``when``, after a commit that lost."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def relative_to(self, prefix: str) -> Commit:
        """Return the same result with ``prefix`` taken off every key."""
        if not self.entries:
            return self
        return Commit(self.won, self.token, tuple([entry.relative_to(prefix) for entry in self.entries]))


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put", gc=False):
    """Write a value; with a session, the key is deleted when the session ends."""

    key: str
    value: bytes
    session: str | None = None

    def entry(self, token: Token) -> Entry:
        """Return the entry that this put creates in a commit with this token."""
        return Entry(self.key, self.value, token, self.session)


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete", gc=False):
    """Delete one key, or a subtree if the name ends in ``/``. What does not exist is ignored."""

    name: str


Write: TypeAlias = Put | Delete


def owned(writes: Iterable[Write], session: str) -> tuple[Write, ...]:
    """Return the writes with ``OWN`` replaced by this session."""
    return tuple(
        [
            Put(write.key, write.value, session) if isinstance(write, Put) and write.session == OWN else write
            for write in writes
        ]
    )


def news_of(writes: Iterable[Write], commit: Commit) -> tuple[Entry, ...]:
    """Return the entries known from the answer to a commit: its puts if it won, else the current entries."""
    if not commit.won:
        return commit.entries
    return tuple([write.entry(commit.token) for write in writes if isinstance(write, Put)])


def names_session(writes: Iterable[Write]) -> bool:
    """Return whether any write is a put under a session that is already open."""
    for write in writes:  # noqa: SIM110 - any() costs twice as much for one or two writes
        if isinstance(write, Put) and write.session:
            return True
    return False


class Condition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key's entry has this token; with token None, the key does not exist."""

    key: str
    token: Token | None
