"""A pending call: what it does to a draft of the value, and the future of the task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from rendezvous_async.backends.cas.image import Draft
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousSessionError

__all__ = ["CasCall", "may_recover", "new_epoch", "too_large", "wanted"]


class CasCall:
    """A call that waits for its turn.

    Attributes:
        due: When to make it at the latest; it goes along with an earlier one.
        writes: Whether it may change something.
        undo: Undoes it if it was made after its task gave up.
    """

    __slots__ = ("due", "error", "future", "result", "undo", "work", "writes")

    def __init__(
        self,
        work: Callable[[Draft], Any],
        due: float,
        *,
        writes: bool = True,
        future: asyncio.Future[Any] | None = None,
        undo: Callable[..., None] | None = None,
    ) -> None:
        self.work = work
        self.due = due
        self.writes = writes
        self.undo = undo
        self.future = future
        self.result: Any = None
        self.error: RendezvousSessionError | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a task waits for it; work of the replica itself is always wanted."""
        return self.future is None or not self.future.done()

    def make(self, draft: Draft) -> None:
        """Do the work on a draft; the result of the last draft counts."""
        self.error = None
        try:
            self.result = self.work(draft)
        except RendezvousSessionError as error:
            self.error = error

    def answer(self) -> None:
        """Give the result to the waiting task."""
        if self.error is not None:
            self.fail(self.error)
        elif self.future is not None and not self.future.done():
            self.future.set_result(self.result)

    def fail(self, error: RendezvousError) -> None:
        """Raise an error in the waiting task."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


def wanted(calls: Iterable[CasCall]) -> list[CasCall]:
    """Return the calls that a task still waits for."""
    return [call for call in calls if call.is_wanted]


def may_recover(error: RendezvousError) -> bool:
    """Return whether trying again may help."""
    return isinstance(error, RendezvousConnectionError) and not error.final


def too_large(place: str, size: int, limit: int) -> RendezvousError:
    """Return the error of a call that would make the value too large."""
    return RendezvousError(
        f"the value in {place} is full: it would have {size} bytes, of at most {limit}; nothing was written. "
        "Remove the runs that are over, or give each run a value of its own"
    )


def new_epoch(rng: Random) -> str:
    """Return the name of a new history."""
    return f"{rng.getrandbits(64):016x}"
