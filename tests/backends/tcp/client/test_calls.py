"""Pending calls, the numbers of commits, and the errors that refusals stand for."""

from __future__ import annotations

import asyncio
import math

import pytest

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.client.calls import CommitNumbers, PendingCall, error_of
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousSessionError


def call(deadline: Deadline | None) -> PendingCall:
    future: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
    return PendingCall(future, wire.Ping(1), 0.0, deadline)


async def test_a_call_is_given_up_at_its_deadline_with_the_deadlines_error() -> None:
    pending = call(Deadline.after(5, "read"))
    assert pending.deadline is not None
    assert pending.until == pending.deadline.at
    pending.give_up()
    with pytest.raises(RendezvousConnectionError, match="read"):
        pending.future.result()


async def test_a_call_without_a_deadline_is_never_given_up() -> None:
    pending = call(None)
    assert pending.until == math.inf
    pending.give_up()
    assert not pending.future.done()


async def test_a_call_that_was_answered_or_cancelled_stays_so() -> None:
    answered, cancelled = call(Deadline.after(5, "read")), call(Deadline.after(5, "read"))
    answered.future.set_result(wire.Done(1))
    cancelled.future.cancel()
    for pending in (answered, cancelled):
        pending.give_up()
    assert answered.future.result() == wire.Done(1)
    assert cancelled.future.cancelled()


def test_the_server_may_forget_a_commit_when_it_and_all_before_it_are_settled() -> None:
    numbers = CommitNumbers()
    assert [numbers.begin() for _ in range(3)] == [(1, 0), (2, 0), (3, 0)]
    numbers.end(2)
    assert numbers.begin() == (4, 0), "the first one may be sent again"
    numbers.end(1)
    assert numbers.begin() == (5, 2)
    for number in (3, 4, 5):
        numbers.end(number)
    assert numbers.begin() == (6, 5)


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (wire.FAILED_SESSION, RendezvousSessionError, "no\\u001b"),
        (wire.FAILED_INVALID, ValueError, "no\\u001b"),
        (wire.FAILED_LIMIT, RendezvousError, "refused by the server: no\\u001b"),
        ("of a later version", RendezvousError, "refused by the server: no\\u001b"),
    ],
)
def test_a_refusal_is_an_error_whose_text_cannot_harm_a_terminal(code: str, kind: type, text: str) -> None:
    error = error_of(wire.Failed(1, code, "no\x1b"))
    assert (type(error), str(error)) == (kind, text)
