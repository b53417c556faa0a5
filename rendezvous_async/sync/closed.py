"""The runs that this process knows to be closed, remembered as long as a handler that knows it exists.

A server without a data directory loses its state with its host, and the next server at that endpoint does not know the
run. As in the classic, where the handlers of a process share a store, the run stays closed for this process.
"""

from __future__ import annotations

from typing import TypeAlias
from weakref import WeakValueDictionary

__all__ = ["ClosedRun", "find_closed", "remember_closed"]

RunKey: TypeAlias = tuple[str, str]
"""A place and a run id."""


class ClosedRun:
    """Why a run is closed, and by which node. The process remembers it while any handler holds it."""

    def __init__(self, reason: str, by: str) -> None:
        self.reason = reason
        self.by = by

    def __repr__(self) -> str:
        return f"<ClosedRun by {self.by!r}: {self.reason!r}>"


_known: WeakValueDictionary[RunKey, ClosedRun] = WeakValueDictionary()


def find_closed(key: RunKey) -> ClosedRun | None:
    """Return how a run was closed; None if this process does not know that it is."""
    return _known.get(key)


def remember_closed(key: RunKey, reason: str, by: str) -> ClosedRun:
    """Remember that a run is closed, as long as the result is held."""
    return _known.setdefault(key, ClosedRun(reason, by))
