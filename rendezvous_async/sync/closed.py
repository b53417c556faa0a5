"""Runs that this process knows to be closed, for as long as a handler that knows it is there.

A server without a data directory goes with its host, and the next one at that endpoint has never heard of the run. As
in the classic, where handlers of one process share their store, a run stays closed for the others of that process.
"""

from __future__ import annotations

from typing import TypeAlias
from weakref import WeakValueDictionary

__all__ = ["ClosedRun", "find_closed", "remember_closed"]

RunKey: TypeAlias = tuple[str, str, str]
"""An endpoint, a namespace and a run id."""


class ClosedRun:
    """That a run is closed: why, and by which node. Whoever holds it remembers it for the whole process."""

    def __init__(self, reason: str, by: str) -> None:
        self.reason = reason
        self.by = by

    def __repr__(self) -> str:
        return f"<ClosedRun by {self.by!r}: {self.reason!r}>"


_known: WeakValueDictionary[RunKey, ClosedRun] = WeakValueDictionary()


def find_closed(key: RunKey) -> ClosedRun | None:
    """Return what is known of a run that is closed; None if nobody knows that it is."""
    return _known.get(key)


def remember_closed(key: RunKey, reason: str, by: str) -> ClosedRun:
    """Remember that a run is closed, for as long as the result is held."""
    return _known.setdefault(key, ClosedRun(reason, by))
