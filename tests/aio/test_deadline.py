"""A deadline is one value: what is left of it, its steps, and the block that it ends."""

from __future__ import annotations

import math

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import Deadline, answer_within
from rendezvous_async.errors import RendezvousConnectionError
from tests.meeting import in_virtual_time


@in_virtual_time
async def test_what_is_left_of_a_deadline_shrinks_and_becomes_negative() -> None:
    began = clock.now()
    deadline = Deadline.after(4, "get")
    assert deadline == Deadline("get", 4, began + 4)
    assert (deadline.left, deadline.left_or_none) == (4, 4)
    await anyio.sleep(1.5)
    assert (deadline.left, deadline.left_or_none) == (2.5, 2.5)
    await anyio.sleep(4)
    assert (deadline.left, deadline.left_or_none) == (-1.5, -1.5)


@in_virtual_time
async def test_a_deadline_that_never_comes() -> None:
    forever = Deadline("watch", math.inf, math.inf)
    assert forever.left == math.inf
    assert forever.left_or_none is None
    assert forever.step(2, "get") == Deadline("get", 2, clock.now() + 2)


@pytest.mark.parametrize(("why", "text"), [("the server is down", "1 s: the server is down$"), (None, "1 s$")])
@in_virtual_time
async def test_the_error_says_why_there_is_no_answer_if_that_is_known(why: str | None, text: str) -> None:
    error = pytest.raises(RendezvousConnectionError, match=f"^get: the backend did not answer within {text}")
    with error, answer_within(1, "get", lambda: why):
        await anyio.sleep(2)


@in_virtual_time
async def test_a_step_ends_with_its_own_time_or_with_the_whole() -> None:
    await anyio.sleep(16)
    whole = Deadline.after(4, "join")
    assert whole.step(1, "get") == Deadline("get", 1, whole.at - 3)
    assert whole.step(4, "get") == Deadline("get", 4, whole.at)
    assert whole.step(8, "get") == Deadline("get", 4, whole.at)
    await anyio.sleep(3.5)
    assert whole.step(8, "get") == Deadline("get", 0.5, whole.at)


@pytest.mark.parametrize("seconds", [4, 5])
@in_virtual_time
async def test_no_step_begins_when_the_deadline_is_over(seconds: float) -> None:
    deadline = Deadline.after(4, "join")
    await anyio.sleep(seconds)
    with pytest.raises(RendezvousConnectionError, match="put the record: there is no time left"):
        deadline.step(1, "put the record")


@in_virtual_time
async def test_a_block_that_takes_too_long_is_ended_at_its_deadline_with_an_error_that_says_what_it_was() -> None:
    began = clock.now()
    late = pytest.raises(RendezvousConnectionError, match=r"get: the backend did not answer within 2\.5 s")
    with late, answer_within(2.5, "get"):
        await anyio.sleep(100)
    assert clock.now() == began + 2.5


@in_virtual_time
async def test_a_block_that_ends_in_time_is_let_alone() -> None:
    deadline = Deadline.after(4, "get")
    for _ in range(2):
        with deadline.bound():
            await anyio.sleep(1)
    with pytest.raises(KeyError), deadline.bound():
        raise KeyError


@in_virtual_time
async def test_a_cancellation_from_outside_is_not_taken_for_the_deadline() -> None:
    with anyio.move_on_after(1) as outside, answer_within(2, "get"):
        await anyio.sleep(100)
    assert outside.cancelled_caught
