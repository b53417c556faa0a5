"""Deleted keys and the revisions of their deletions, so that a watch can learn of deletions without a full listing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from rendezvous_async.backends.table.trees import Trees
from rendezvous_async.backends.table.usage import cost_of_key

__all__ = ["Graves"]

MAX_GRAVES = 4096
MAX_BYTES = 16 * 1024 * 1024
"""Bounds on the number and the cost of remembered deletions; long keys in deep subtrees could take gigabytes."""


class Graves:
    """The most recent deletions.

    Args:
        horizon: Deletions up to this revision are not known. It rises when old graves are dropped.
        graves: Deleted keys, each with the revision of its deletion, oldest first.
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
        """Remember that keys were deleted at this revision."""
        if len(keys) > MAX_GRAVES:  # They share a revision, so the horizon would cover all of them anyway.
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
        """Forget the deletion, if known, of a key that is put again."""
        if self._revisions.pop(key, None) is not None:
            self._forget(key)

    def get(self, key: str) -> int:
        """Return the revision at which a key was deleted; 0 if unknown."""
        return self._revisions.get(key, 0)

    def under(self, subtree: str, since: int) -> Iterator[str]:
        """Iterate over the keys under a subtree that were deleted after a revision, latest first."""
        for key in reversed(self._trees.under(subtree)):
            if self._revisions[key] <= since:
                break
            yield key

    def _forget(self, key: str) -> None:
        self._trees.remove(key)
        self._bytes -= cost_of_key(key)

    def as_value(self) -> tuple[tuple[str, int], ...]:
        """Return all graves in the form that the constructor takes."""
        return tuple(self._revisions.items())
