"""Follows the commits to one run, in whichever table serves it at the time.

Each change is passed on alone and in order. With a log, it is passed on once it is on the disk: until then a loss of
power may undo it, and then it never happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.values import Listing, Token

__all__ = ["RunCommits"]


class RunCommits:
    """The commits to a run.

    Args:
        prefix: The prefix of the run's keys.
        take: Called with each change, with relative keys; a complete one begins a new history.
    """

    def __init__(self, prefix: str, take: Callable[[Listing], None]) -> None:
        self._prefix = prefix
        self._take = take
        self._table: Table | None = None
        self._waits = False
        self._known: Token | None = None
        self._seen: Token | None = None
        self._pending: deque[Listing] = deque()
        self._count = 0

    def __repr__(self) -> str:
        return f"<RunCommits to {self._prefix} at {self._known}>"

    def follow(self, table: Table, *, waits: bool = False) -> bool:
        """Follow another table from now on.

        Args:
            table: The table; what it holds already is certain.
            waits: Whether its changes are certain only when ``mark`` says so.

        Returns:
            Whether this ended a history: the table does not continue the one before.
        """
        if self._table is not None:
            self._table.after_each = None
        is_new = self._known is not None and self._known.epoch != table.epoch
        while self._pending and _is_in(self._pending[0].token, table):
            self._take_next()  # it was on the disk, though nobody had heard of that yet
        self._pending.clear()
        self._table, self._waits, self._seen = table, False, self._known
        self._look()
        self._waits = waits
        table.after_each = self._look
        return is_new

    def mark(self) -> Callable[[], None]:
        """Return what to call when all changes until now are certain."""
        return partial(self._release, self._count)

    def _look(self) -> None:
        assert self._table is not None
        listing = self._table.changes((self._prefix,), self._seen)
        if listing is not None:
            self._seen = listing.token
            self._count += 1
            self._pending.append(listing)
            if not self._waits:
                self._release(self._count)

    def _release(self, count: int) -> None:
        while self._pending and self._count - len(self._pending) < count:
            self._take_next()

    def _take_next(self) -> None:
        listing = self._pending.popleft()
        self._known = listing.token
        self._take(listing.relative_to(self._prefix))


def _is_in(token: Token, table: Table) -> bool:
    return token.epoch == table.epoch and token.revision <= table.revision
