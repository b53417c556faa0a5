"""Until when to wait for an answer, and what to say when none came: one value, handed from call to call."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, TypeAlias

import anyio

from rendezvous_async.aio import clock
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Deadline", "answer_within"]

Why: TypeAlias = Callable[[], str | None]


class Deadline(NamedTuple):
    """When a wait ends, and what it is for.

    Attributes:
        what: What is waited for, in words for the error.
        seconds: How long the wait was to be when it was set.
        at: By ``clock.now()``, when it ends; infinity if it never does.
    """

    what: str
    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float, what: str) -> Deadline:
        """Return the deadline ``seconds`` from now."""
        return cls(what, seconds, clock.now() + seconds)

    @property
    def left(self) -> float:
        """Seconds until it, negative once it is over."""
        return self.at - clock.now()

    @property
    def left_or_none(self) -> float | None:
        """The same, with None for a deadline that never comes."""
        return None if self.at == math.inf else self.left

    def step(self, seconds: float, what: str) -> Deadline:
        """Return the deadline of one step: at most ``seconds`` from now, and never beyond this one.

        Raises:
            RendezvousConnectionError: This one is over, so the step must not begin.
        """
        now = clock.now()
        seconds = min(seconds, self.at - now)
        if seconds <= 0:
            raise RendezvousConnectionError(f"{what}: there is no time left")
        return Deadline(what, seconds, now + seconds)

    def error(self, why: str | None = None) -> RendezvousConnectionError:
        """Return the error for no answer in time; what was asked for may or may not have happened.

        Args:
            why: Why not, if that is known.
        """
        text = f"{self.what}: the backend did not answer within {self.seconds:g} s"
        return RendezvousConnectionError(f"{text}: {why}" if why else text)

    def bound(self, why: Why | None = None) -> _Bound:
        """Return a block for ``with``; when the deadline passes in it, its body is cancelled and ``error()`` raised.

        Args:
            why: Returns why there is no answer, if that is known.
        """
        return _Bound(self, why)


def answer_within(seconds: float, what: str, why: Why | None = None) -> _Bound:
    """Return a block for ``with`` that may take ``seconds``; see ``Deadline.bound``."""
    return _Bound(Deadline.after(seconds, what), why)


class _Bound:
    __slots__ = ("_deadline", "_scope", "_why")

    def __init__(self, deadline: Deadline, why: Why | None) -> None:
        self._deadline = deadline
        self._why = why

    def __enter__(self) -> None:
        self._scope = anyio.CancelScope(deadline=self._deadline.at)
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        swallow = self._scope.__exit__(kind, error, traceback)
        if self._scope.cancelled_caught:
            raise self._deadline.error(None if self._why is None else self._why()) from None
        return swallow
