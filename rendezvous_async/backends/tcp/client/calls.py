"""A client's pending calls, the numbers of its commits, and the errors that a server's refusals stand for."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.tcp import wire
from rendezvous_async.errors import RendezvousError, RendezvousSessionError
from rendezvous_async.texts import printable

__all__ = ["CommitNumbers", "PendingCall", "error_of"]


class PendingCall:
    """An unanswered request.

    Attributes:
        sent_at: When it was last sent, by the loop's clock.
        until: When to give up.
    """

    __slots__ = ("deadline", "future", "request", "sent_at", "until")

    def __init__(
        self, future: asyncio.Future[wire.Answer], request: wire.Request, sent_at: float, deadline: Deadline | None
    ) -> None:
        self.future = future
        self.request = request
        self.sent_at = sent_at
        self.deadline = deadline
        self.until = math.inf if deadline is None else deadline.at

    def give_up(self) -> None:
        """Fail the call with its deadline's error."""
        if self.deadline is not None and not self.future.done():
            self.future.set_exception(self.deadline.error())


class CommitNumbers:
    """Numbers commits, so that the server recognises repeats and may forget the settled ones."""

    def __init__(self) -> None:
        self._last = 0
        self._unsettled: deque[int] = deque()
        self._answered: set[int] = set()

    def begin(self) -> tuple[int, int]:
        """Return the number of a new commit, and the number up to which all are settled."""
        unsettled, answered = self._unsettled, self._answered
        while unsettled and unsettled[0] in answered:
            answered.discard(unsettled.popleft())
        self._last += 1
        unsettled.append(self._last)
        return self._last, unsettled[0] - 1

    def end(self, number: int) -> None:
        """Note that a commit was answered or given up, so that it will not be sent again."""
        self._answered.add(number)


def error_of(failed: wire.Failed) -> Exception:
    """Return the error that a server's answer stands for."""
    message = printable(failed.message)
    match failed.code:
        case wire.FAILED_SESSION:
            return RendezvousSessionError(message)
        case wire.FAILED_INVALID:
            return ValueError(message)
        case _:
            return RendezvousError(f"refused by the server: {message}")
