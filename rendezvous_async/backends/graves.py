"""Keys that are gone, and since when: so that a watch can be told of deletions without a list of all there is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from rendezvous_async.backends.trees import Trees
from rendezvous_async.backends.usage import cost_of_key

__all__ = ["Graves"]

MAX_GRAVES = 4096
MAX_BYTES = 16 * 1024 * 1024
"""How many deletions are remembered, and what they may cost: long keys in many subtrees would be gigabytes."""


class Graves:
    """The deletions that are remembered: the last ones.

    Args:
        horizon: What was deleted up to this revision is not known. It rises when old graves are dropped.
        graves: Keys, each with the revision of its deletion, the oldest first.
    """

    def __init__(self, horizon: int, graves: Iterable[tuple[str, int]] = ()) -> None:
        self.horizon = horizon
        self._revisions: OrderedDict[str, int] = OrderedDict(graves)
        self._trees = Trees()
        self._bytes = 0
        for key in self._revisions:
            self._trees.add(key)
            self._bytes += cost_of_key(key)

    def dig(self, keys: Collection[str], revision: int) -> None:
        """Remember that keys are gone since this revision."""
        if len(keys) > MAX_GRAVES:  # None of them could be told from those that do not fit.
            self._revisions.clear()
            self._trees.clear()
            self._bytes = 0
            self.horizon = revision
            return
        for key in keys:
            self._revisions[key] = revision
            self._trees.add(key)
            self._bytes += cost_of_key(key)
        while len(self._revisions) > MAX_GRAVES or self._bytes > MAX_BYTES:
            key, self.horizon = self._revisions.popitem(last=False)
            self._forget(key)

    def close(self, key: str) -> None:
        """Forget the deletion of a key that is put again, if it is known."""
        if self._revisions.pop(key, None) is not None:
            self._forget(key)

    def get(self, key: str) -> int:
        """Return since which revision a key is gone; 0 if that is not known."""
        return self._revisions.get(key, 0)

    def under(self, subtree: str, since: int) -> Iterator[str]:
        """Go through the keys under a subtree that were deleted after a revision."""
        for key in reversed(self._trees.under(subtree)):
            if self._revisions[key] <= since:
                break
            yield key

    def _forget(self, key: str) -> None:
        self._trees.remove(key)
        self._bytes -= cost_of_key(key)

    def as_value(self) -> tuple[tuple[str, int], ...]:
        """Return all of it, as ``Graves`` takes it."""
        return tuple(self._revisions.items())
