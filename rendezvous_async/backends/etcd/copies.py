"""The copies of one call in flight to different members: the first useful answer wins.

A member whose machine has died, or that forwards a request to a dead leader, never answers. So a call is not cancelled
before the next member is asked: another copy is sent, and earlier copies may still be answered. Copies that are no
longer needed end with their answer or at their deadline (see calls.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from rendezvous_async.aio import clock
from rendezvous_async.backends.etcd.calls import Calls, error_of
from rendezvous_async.backends.etcd.faults import is_silence

if TYPE_CHECKING:
    from rendezvous_async.backends.etcd.channel import ClusterMember

__all__ = ["Copies", "Outcome"]


class Outcome(NamedTuple):
    """The outcome of one copy.

    Attributes:
        member: The member that was asked.
        token: The auth token that was sent.
        error: Why there is no response; None if there is one.
    """

    member: ClusterMember
    token: str | None
    response: Any
    error: Exception | None


class Copies:
    """The copies of one call; ``len()`` counts the unanswered ones."""

    def __init__(self, under_way: Calls) -> None:
        self._under_way = under_way
        self._unanswered: dict[asyncio.Task[Any], tuple[ClusterMember, str | None]] = {}

    def __len__(self) -> int:
        return len(self._unanswered)

    def send(self, member: ClusterMember, token: str | None, call: Awaitable[Any]) -> None:
        """Add a copy that has just been sent to a member."""
        self._unanswered[self._under_way.start(call)] = (member, token)

    def waits_for(self, member: ClusterMember) -> bool:
        """Return whether a member was asked and has not answered."""
        return any(asked is member for asked, _ in self._unanswered.values())

    async def first(self, seconds: float) -> Outcome | None:
        """Return the outcome of the first copy to end; None if none does within ``seconds``.

        A copy that reaches its deadline is ignored while others are unanswered.
        """
        until = clock.now() + seconds
        while self._unanswered:
            left = max(0.0, until - clock.now())
            done, _ = await asyncio.wait(self._unanswered, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                if clock.now() - until <= seconds / 2:
                    return None
                # This process itself was stalled: answers may be waiting to be read.
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
