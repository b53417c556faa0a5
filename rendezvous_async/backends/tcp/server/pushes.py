"""Pushes changes to watchers, at a cost that depends only on the watchers concerned, in short turns of the loop.

At the end of a turn in which something has changed, its watchers get all changes at once. A watcher has a position and
a dirty flag, no queue: its news is encoded when its peer reads, and only once for all watchers with the same names and
position. Pushes to many watchers take several turns, and each push reflects the table at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from rendezvous_async.backends.table.fanout import Fanout
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.server.limits import Limits
from rendezvous_async.backends.tcp.server.turns import Turns

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.server.connection import Connection
    from rendezvous_async.backends.tcp.server.requests import Watcher

__all__ = ["TOO_LONG", "Pushes"]

TOO_LONG: Final = Raw(b"")
"""Instead of news that exceed the limit of an answer."""


class Pushes:
    """The watchers of a table, and the connections with news to push.

    Args:
        table: The watched table.
        limits: The bounds on one push.
        turns: Runs what does not fit into one turn.
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
        """Mark the watchers of what has changed, for a push at the end of this turn of the loop."""
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
        """Push to a connection in a later turn, after those already waiting."""
        self._touched[connection] = None
        if not self._pushing:
            self._pushing = True
            self._turns.do_later(self._push)

    def news_for(self, watcher: Watcher) -> Raw | None:
        """Return a watcher's news, encoded; None if there is none, ``TOO_LONG`` if it exceeds the limit."""
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
        """Push to the connections of this round; those touched meanwhile are in the next one."""
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
