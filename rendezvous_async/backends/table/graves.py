"""Deleted keys, when they were deleted and why, so that a watch can learn of deletions without a full listing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping

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
        causes: Why, for those of which it is known.
    """

    def __init__(
        self, horizon: int, graves: Iterable[tuple[str, int]] = (), causes: Mapping[str, str] | None = None
    ) -> None:
        self.horizon = horizon
        self._revisions: OrderedDict[str, int] = OrderedDict(graves)
        self._causes = {key: cause for key, cause in (causes or {}).items() if key in self._revisions}
        self._trees = Trees()
        self._bytes = 0
        for key in self._revisions:
            self._trees.add(key)
            self._bytes += cost_of_key(key)

    def dig(self, keys: Collection[str], revision: int, cause: str = "") -> None:
        """Remember that keys were deleted at this revision, and why."""
        if len(keys) > MAX_GRAVES:  # They share a revision, so the horizon would cover all of them anyway.
            self._revisions.clear()
            self._causes.clear()
            self._trees.clear()
            self._bytes = 0
            self.horizon = revision
            return
        for key in keys:
            self._revisions[key] = revision
            if cause:
                self._causes[key] = cause
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

    def cause(self, key: str) -> str:
        """Return why a key was deleted; empty if unknown."""
        return self._causes.get(key, "")

    def under(self, subtree: str, since: int) -> Iterator[str]:
        """Iterate over the keys under a subtree that were deleted after a revision, latest first."""
        for key in reversed(self._trees.under(subtree)):
            if self._revisions[key] <= since:
                break
            yield key

    def _forget(self, key: str) -> None:
        self._causes.pop(key, None)
        self._trees.remove(key)
        self._bytes -= cost_of_key(key)

    def as_value(self) -> tuple[tuple[str, int], ...]:
        """Return all graves in the form that the constructor takes."""
        return tuple(self._revisions.items())

    @property
    def causes(self) -> dict[str, str]:
        """Why the keys were deleted, for those of which it is known."""
        return dict(self._causes)
