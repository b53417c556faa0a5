"""The copies of one call that are under way at different members: the first useful answer counts.

A member whose machine has died, or that hands on a request to a leader that has died, never answers. So a call is not
given up to ask the next member: another copy of it is sent, and the earlier ones may still be answered. Copies whose
answer nobody needs any more end with their answer or at their deadline (see calls.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.etcd.calls import Calls, error_of
from rendezvous_async.backends.etcd.faults import is_silence

if TYPE_CHECKING:
    from rendezvous_async.backends.etcd.channel import Member

__all__ = ["Copies", "Outcome"]


class Outcome(NamedTuple):
    """How one copy ended.

    Attributes:
        member: Who was asked.
        token: The auth token that went with it.
        error: Why there is no response; None if there is one.
    """

    member: Member
    token: str | None
    response: Any
    error: Exception | None


class Copies:
    """The copies of one call; ``len()`` of it is how many are unanswered."""

    def __init__(self, under_way: Calls) -> None:
        self._under_way = under_way
        self._unanswered: dict[asyncio.Task[Any], tuple[Member, str | None]] = {}

    def __len__(self) -> int:
        return len(self._unanswered)

    def send(self, member: Member, token: str | None, call: Awaitable[Any]) -> None:
        """Add a copy that has just been sent to a member."""
        self._unanswered[self._under_way.start(call)] = (member, token)

    def waits_for(self, member: Member) -> bool:
        """Tell whether a member was asked and has not answered."""
        return any(asked is member for asked, _ in self._unanswered.values())

    async def first(self, seconds: float) -> Outcome | None:
        """Return how the first copy ends; None if none does within ``seconds``.

        A copy that runs into its deadline is no news as long as others are unanswered.
        """
        until = clock.now() + seconds
        while self._unanswered:
            left = max(0.0, until - clock.now())
            done, _ = await asyncio.wait(self._unanswered, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                if clock.now() - until <= seconds / 2:
                    return None
                # This process stood still itself: there may be answers that it has not read yet.
                until = clock.now() + seconds
                continue
            task = done.pop()
            member, token = self._unanswered.pop(task)
            error = error_of(task)
            if error is None:
                return Outcome(member, token, task.result(), None)
            if not (is_silence(error) and self._unanswered):
                return Outcome(member, token, None, error)
        await anyio.sleep(seconds)
        return None
