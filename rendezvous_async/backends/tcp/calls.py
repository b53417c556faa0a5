"""What a client keeps of the calls that it makes: who waits, how long, under which number; what a refusal means."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from rendezvous_async.backends.tcp import wire
from rendezvous_async.clock import Patience
from rendezvous_async.errors import RendezvousError, RendezvousSessionError
from rendezvous_async.texts import printable

__all__ = ["Call", "CommitNumbers", "error_of"]


class Call:
    """A request that is not answered yet.

    Attributes:
        sent_at: When it was last sent, by the loop's clock.
        until: When whoever waits loses patience.
    """

    __slots__ = ("future", "patience", "request", "sent_at", "until")

    def __init__(
        self, future: asyncio.Future[wire.Answer], request: wire.Request, sent_at: float, patience: Patience | None
    ) -> None:
        self.future = future
        self.request = request
        self.sent_at = sent_at
        self.patience = patience
        self.until = math.inf if patience is None else sent_at + patience.seconds

    def give_up(self) -> None:
        """End it: nobody waits any longer."""
        if self.patience is not None and not self.future.done():
            self.future.set_exception(self.patience.error())


class CommitNumbers:
    """Numbers commits, so that the server knows again one that is sent twice, and may forget those that are settled."""

    def __init__(self) -> None:
        self._last = 0
        self._unsettled: deque[int] = deque()
        self._answered: set[int] = set()

    def begin(self) -> tuple[int, int]:
        """Return the number of a new commit, and up to which number all are settled."""
        unsettled, answered = self._unsettled, self._answered
        while unsettled and unsettled[0] in answered:
            answered.discard(unsettled.popleft())
        self._last += 1
        unsettled.append(self._last)
        return self._last, unsettled[0] - 1

    def end(self, number: int) -> None:
        """Note that a commit was answered, or that nobody waits for its answer and it will not be sent again."""
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
