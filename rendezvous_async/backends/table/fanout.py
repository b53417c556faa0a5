"""An index from names to watchers: the cost of a change depends only on the watchers it concerns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        """Register ``watcher`` for changes to ``names``."""
        for name in names:
            watchers = self._watchers.get(name)
            if watchers is None:
                watchers = self._watchers[name] = {}
            watchers[watcher] = None

    def remove(self, names: Iterable[str], watcher: W) -> None:
        """Undo ``add``; does nothing for an unknown watcher."""
        for name in names:
            watchers = self._watchers.get(name)
            if watchers is not None:
                watchers.pop(watcher, None)
                if not watchers:
                    del self._watchers[name]

    def concerned(self, keys: Sequence[str]) -> list[W]:
        """Return the watchers of any of ``keys``, each once, in a deterministic order."""
        if not self._watchers:
            return []
        found: dict[W, None] = {}
        for name in _names_of(keys):
            watchers = self._watchers.get(name)
            if watchers is not None:
                found.update(watchers)
        return list(found)


def _names_of(keys: Sequence[str]) -> Iterable[str]:
    """Return the keys and all subtrees that hold one of them, each once."""
    if len(keys) == 1:
        return (keys[0], *subtrees_of(keys[0]))
    names: dict[str, None] = {}
    for key in keys:
        names[key] = None
        if key[: key.rfind("/") + 1] not in names:
            for subtree in subtrees_of(key):
                names[subtree] = None
    return names
