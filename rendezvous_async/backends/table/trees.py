"""An index of keys by subtree, each in the order of insertion.

A reader that knows everything up to some revision walks back from the end and stops there, so the cost depends only on
what is new.
"""

from __future__ import annotations

from collections.abc import Collection

from rendezvous_async.backends.names import subtrees_of

__all__ = ["Trees"]

_NOTHING: dict[str, None] = {}


class Trees:
    """A set of keys with an index by subtree."""

    __slots__ = ("_under",)

    def __init__(self) -> None:
        self._under: dict[str, dict[str, None]] = {}

    def add(self, key: str) -> None:
        """Add a new key."""
        for subtree in subtrees_of(key):
            keys = self._under.get(subtree)
            if keys is None:
                keys = self._under[subtree] = {}
            keys[key] = None

    def move_to_end(self, key: str) -> None:
        """Move an existing key to the end of its subtrees."""
        for subtree in subtrees_of(key):
            keys = self._under[subtree]
            del keys[key]
            keys[key] = None

    def remove(self, key: str) -> None:
        """Remove an existing key."""
        for subtree in subtrees_of(key):
            keys = self._under[subtree]
            del keys[key]
            if not keys:
                del self._under[subtree]

    def cut(self, subtree: str) -> Collection[str]:
        """Remove and return all keys under a subtree, much faster than one by one."""
        keys = self._under.get(subtree, _NOTHING)
        for inner in {key[: key.rfind("/") + 1] for key in keys}:
            for name in reversed(subtrees_of(inner)):
                if len(name) < len(subtree) or self._under.pop(name, None) is None:
                    break
        for outer in subtrees_of(subtree[:-1]) if keys else ():
            others = self._under[outer]
            for key in keys:
                del others[key]
            if not others:
                del self._under[outer]
        return keys

    def under(self, subtree: str) -> dict[str, None]:
        """Return the keys under a subtree, oldest first; read-only."""
        return self._under.get(subtree, _NOTHING)

    def clear(self) -> None:
        """Remove everything."""
        self._under.clear()
