"""What watchers are told of changes: each change costs only those it concerns, and no turn of the loop is long.

At the end of a turn in which something has changed, its watchers are told, all changes at once. A watcher has a
position and a mark, no queue: what it is told is made when its peer reads, and made once for all that watch the same
and know as much. Pushes to very many take several turns, and each is of the table as it is at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from rendezvous_async.backends.fanout import Fanout
from rendezvous_async.backends.table import Table
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.limits import Limits
from rendezvous_async.backends.tcp.turns import Turns

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.connection import Connection
    from rendezvous_async.backends.tcp.requests import Watcher

__all__ = ["TOO_LONG", "Pushes"]

TOO_LONG: Final = Raw(b"")
"""Instead of news: they are more than an answer may have."""


class Pushes:
    """The watchers of a table, and the connections that wait for their news.

    Args:
        table: What is watched.
        limits: What one push may have.
        turns: Where pushes go on that take long.
    """

    def __init__(self, table: Table, limits: Limits, turns: Turns) -> None:
        self.fanout: Fanout[Watcher] = Fanout()
        self.listeners: list[Callable[[Sequence[str]], None]] = []
        self._table = table
        self._limits = limits
        self._turns = turns
        self._settled = table.token
        self._touched: dict[Connection, None] = {}
        self._round: Iterator[Connection] = iter(())
        self._pushing = False
        self._made: dict[tuple[tuple[str, ...], int], Raw | None] = {}
        self._made_at = -1

    def settle(self) -> None:
        """Mark the watchers of what has changed; they are told at the end of this turn of the loop, all at once."""
        if not self._table.has_changed:
            return
        changed = self._table.take_changed()
        for listener in self.listeners:
            listener(changed)
        for watcher in self.fanout.concerned(changed):
            watcher.connection.mark(watcher, self._settled)
            self._touched[watcher.connection] = None
        self._settled = self._table.token
        if self._touched and not self._pushing:
            self._pushing = True
            asyncio.get_running_loop().call_soon(self._turns.do, self._push)

    def push_later(self, connection: Connection) -> None:
        """Push to a connection in a later turn, after all others that wait for it."""
        self._touched[connection] = None
        if not self._pushing:
            self._pushing = True
            self._turns.do_later(self._push)

    def news_for(self, watcher: Watcher) -> Raw | None:
        """Return the listing that is news to a watcher, encoded; None if there is none, ``TOO_LONG`` if it is."""
        table = self._table
        if self._made_at != table.revision:
            self._made, self._made_at = {}, table.revision
        place = (watcher.names, watcher.seen.revision)
        if place in self._made:
            return self._made[place]
        news: Raw | None = None
        if table.has_more(self._limits.listed, watcher.names):
            news = TOO_LONG
        elif (changes := table.changes(watcher.names, watcher.seen)) is not None:
            news = wire.encode_listing(changes) if wire.fits(changes.entries) else TOO_LONG
        self._made[place] = news
        return news

    def _push(self, end: float) -> bool:
        """Push to those whose round it is; who is touched meanwhile is in the next one."""
        self._pushing = False
        while True:
            for connection in self._round:
                connection.push(end)
                if self._turns.now() >= end:
                    break
            else:
                if self._touched:
                    self._round, self._touched = iter(self._touched), {}
                    continue
                self._made = {}
                return False
            if self._pushing:
                return False
            self._pushing = True
            return True
