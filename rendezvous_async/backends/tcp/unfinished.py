"""Requests that were begun and are not all there: how many bytes of them a server keeps, and for whom.

One is as long as a frame may be. A tenant with many connections could fill the memory with halves of them, so they are
counted together for all connections whose secrets have one scope.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["MAX_UNFINISHED", "Unfinished"]

MAX_UNFINISHED: Final = 128 * 1024 * 1024


class Unfinished:
    """The bytes that are kept, by scope."""

    def __init__(self) -> None:
        self._kept: Counter[str] = Counter()

    def kept(self, scope: str) -> int:
        """Return how many bytes are kept for a scope."""
        return self._kept[scope]

    def is_too_much(self, scope: str, growth: int) -> bool:
        """Count a change; tell whether there are too many now, and more than before."""
        self._kept[scope] += growth
        if self._kept[scope] <= 0:
            del self._kept[scope]
        return growth > 0 and self._kept[scope] > MAX_UNFINISHED
