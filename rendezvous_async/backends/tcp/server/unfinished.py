"""A bound on the memory for partly received requests.

A request may be as long as a frame. A tenant with many connections could fill the memory with partial ones, so they are
counted together for all connections whose secrets have the same scope.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["MAX_UNFINISHED", "Unfinished"]

MAX_UNFINISHED: Final = 128 * 1024 * 1024


class Unfinished:
    """The buffered bytes by scope."""

    def __init__(self) -> None:
        self._kept: Counter[str] = Counter()

    def kept(self, scope: str) -> int:
        """Return the number of bytes buffered for a scope."""
        return self._kept[scope]

    def is_too_much(self, scope: str, growth: int) -> bool:
        """Count a change; tell whether it is a growth beyond the limit."""
        self._kept[scope] += growth
        if self._kept[scope] <= 0:
            del self._kept[scope]
        return growth > 0 and self._kept[scope] > MAX_UNFINISHED
