"""Who must be told of a change: an index from names to watchers, so that a change costs only those it concerns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from rendezvous_async.backends.names import subtrees_of

__all__ = ["Fanout"]

W = TypeVar("W")


class Fanout(Generic[W]):
    """Watchers by the names they watch; a watcher is any hashable thing."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[W, None]] = {}

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    def add(self, names: Iterable[str], watcher: W) -> None:
        """Let ``watcher`` be told of changes to ``names``."""
        for name in names:
            watchers = self._watchers.get(name)
            if watchers is None:
                watchers = self._watchers[name] = {}
            watchers[watcher] = None

    def remove(self, names: Iterable[str], watcher: W) -> None:
        """Undo ``add``; a watcher that is not there is no error."""
        for name in names:
            watchers = self._watchers.get(name)
            if watchers is not None:
                watchers.pop(watcher, None)
                if not watchers:
                    del self._watchers[name]

    def concerned(self, keys: Iterable[str]) -> list[W]:
        """Return the watchers of any of ``keys``, each once, in a repeatable order."""
        found: dict[W, None] = {}
        if not self._watchers:
            return []
        for key in keys:
            for name in (key, *subtrees_of(key)):
                watchers = self._watchers.get(name)
                if watchers is not None:
                    found.update(watchers)
        return list(found)
