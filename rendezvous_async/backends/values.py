"""What goes into a backend and comes out of it: tokens, entries, listings, writes and conditions. Frozen values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

__all__ = [
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
    "owned",
]

OWN = ""
"""As the session of a put: the one that ``begin`` opens along with it."""


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fencing token: which history (epoch), and where in it (revision)."""

    epoch: str
    revision: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.revision}"

    def is_news_to(self, known: Token | None) -> bool:
        """Tell whether what was written with this token is unknown to somebody who knows the key as of another one."""
        return known is None or known.epoch != self.epoch or known.revision < self.revision


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key and what it holds; in a watch, ``value`` None is a deletion and the token tells when."""

    key: str
    value: bytes | None
    token: Token
    session: str | None = None

    def relative_to(self, prefix: str) -> Entry:
        """Return the same entry with ``prefix`` taken off its key."""
        return Entry(self.key[len(prefix) :], self.value, self.token, self.session)


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """Entries in the order of their keys, as of one moment.

    Attributes:
        entries: What there is, or, from a watch, what has changed.
        token: The moment: the newest revision that this listing takes into account.
        complete: Whether these are all entries there are. From a watch, False: only the changes since the last one.
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
    """How a commit went.

    Attributes:
        won: Whether all conditions held, so that all writes happened.
        token: Of the writes if it won, else of the moment at which it lost.
        entries: If it lost, the current entries of the keys in ``when`` (those that exist).
    """

    won: bool
    token: Token
    entries: tuple[Entry, ...] = ()

    @property
    def revision(self) -> int:
        return self.token.revision

    def entry(self, key: str) -> Entry | None:
        """Return what stands at ``key``, one of the keys in ``when``, after a commit that lost."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def relative_to(self, prefix: str) -> Commit:
        """Return the same with ``prefix`` taken off every key."""
        if not self.entries:
            return self
        return Commit(self.won, self.token, tuple([entry.relative_to(prefix) for entry in self.entries]))


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put", gc=False):
    """Write a value; with a session, the key goes when the session ends."""

    key: str
    value: bytes
    session: str | None = None

    def entry(self, token: Token) -> Entry:
        """Return what stands at the key after a commit that has won with this token."""
        return Entry(self.key, self.value, token, self.session)


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete", gc=False):
    """Delete one key, or with a name that ends in ``/`` a whole subtree. Deleting nothing is no error."""

    name: str


Write: TypeAlias = Put | Delete


def owned(writes: Iterable[Write], session: str) -> tuple[Write, ...]:
    """Return the writes with this session in the place of ``OWN``."""
    return tuple(
        [
            Put(write.key, write.value, session) if isinstance(write, Put) and write.session == OWN else write
            for write in writes
        ]
    )


def names_session(writes: Iterable[Write]) -> bool:
    """Tell whether any of the writes is a put under a session that is open already."""
    for write in writes:  # noqa: SIM110 - for the one or two that there are, any() costs twice as much
        if isinstance(write, Put) and write.session:
            return True
    return False


class Condition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key's entry has this token; with token None, there is no such key."""

    key: str
    token: Token | None
