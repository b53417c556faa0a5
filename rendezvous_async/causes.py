"""Why a leased key is gone: what the backend knows of the end of its session. Pure.

A cause is noted where it is known: by the one who ends a session, or by the store that sees its time run out. Nobody
guesses. Where a store cannot tell (etcd), or an older version did not note it, the cause is empty: the key is gone.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Cause", "known_cause"]


class Cause(StrEnum):
    """Why a session has ended, the members in the words of the wire."""

    LEFT = "left"
    CUT = "cut"
    DIED = "died"
    SILENT = "silent"
    EVICTED = "evicted"
    STALLED = "stalled"


_KNOWN = frozenset(Cause)


def known_cause(text: str) -> str:
    """Return a cause that came from outside; empty if it is none of this version's."""
    return text if text in _KNOWN else ""
