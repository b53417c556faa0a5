"""The classic's three methods as a fenced value: blocking ones in one thread, coroutines on the loop; and the pace."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import anyio
import pytest

from rendezvous_async import connect
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.cas import StateValue, over_state
from rendezvous_async.backends.cas.pace import CALMEST, LONGEST_BACKOFF, QUICKEST, Pace
from rendezvous_async.errors import RendezvousConnectionError, RendezvousStateError
from tests.backends.cas.values import MemoryValue


class Blocking:
    """A backend whose methods block, and which takes down who calls them."""

    name = "blocking"

    def __init__(self) -> None:
        self.value = MemoryValue()
        self.threads: set[int] = set()
        self.inside = 0
        self.most_inside = 0

    def get_state(self) -> tuple[bytes, Any] | None:
        self._enter()
        found = None if self.value.data is None else (self.value.data, self.value.writes)
        self.inside -= 1
        return found

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        self._enter()
        answer = self.value.swap(state, token)
        self.inside -= 1
        return answer

    def _enter(self) -> None:
        self.threads.add(threading.get_ident())
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)


class Coroutines:
    """A backend whose methods are coroutines."""

    name = "coroutines"

    def __init__(self) -> None:
        self.value = MemoryValue()
        self.threads: set[int] = set()

    async def get_state(self) -> tuple[bytes, Any] | None:
        self.threads.add(threading.get_ident())
        return await self.value.read()

    async def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        return await self.value.write(state, token)


async def test_methods_that_block_are_called_in_one_thread_one_at_a_time() -> None:
    keeper = Blocking()
    value = StateValue(keeper)
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(value.read)
            group.start_soon(value.write, b"x", None)
    assert len(keeper.threads) == 1
    assert threading.get_ident() not in keeper.threads
    assert keeper.most_inside == 1
    assert keeper.value.writes == 1
    await value.aclose()


class Answering(Blocking):
    """A backend that answers whatever it is told to."""

    def __init__(self, *, get: Any = None, set: Any = None) -> None:
        super().__init__()
        self.get = get
        self.set = set

    def get_state(self) -> Any:
        return self.get

    def set_state(self, state: bytes, token: Any = None) -> Any:
        return self.set


@pytest.mark.parametrize("wrong", [5, b"state", "ab", (b"state",), ("text", 1), (b"state", None), (b"state", 1, True)])
async def test_a_wrong_answer_to_get_state_is_named(wrong: object) -> None:
    value = StateValue(Answering(get=wrong))
    with pytest.raises(RendezvousStateError, match=r"get_state\(\) of the blocking backend must return"):
        await value.read()
    await value.aclose()


@pytest.mark.parametrize(
    "wrong", [True, (1, 2), ("text", 1, True), (b"state", None, True), (b"state", 1, "yes"), b"abc"]
)
async def test_a_wrong_answer_to_set_state_is_named(wrong: object) -> None:
    async with over_state(Answering(set=wrong), "run") as backend:
        for _ in range(2):
            with pytest.raises(RendezvousStateError, match=r"set_state\(\) of the blocking backend must return"):
                await backend.commit(Put("a", b""))


class Silent(Blocking):
    """A backend whose ``set_state`` says nothing, as the classic allows it."""

    def set_state(self, state: bytes, token: Any = None) -> None:
        super().set_state(state, token)


async def test_a_set_state_that_returns_nothing_is_followed_by_get_state() -> None:
    keeper = Silent()
    one, other = StateValue(keeper), StateValue(keeper)
    assert await one.write(b"one", None) == (b"one", 1, True)
    assert await other.write(b"two", None) == (b"one", 1, False)
    assert await other.write(b"two", 1) == (b"two", 2, True)
    async with over_state(Silent(), "run") as backend, connect(backend=backend, run_id="run", nodes=1) as rendezvous:
        assert (await rendezvous.join()).size == 1
    await one.aclose()
    await other.aclose()


async def test_a_backend_that_stores_nothing_or_fails_is_why_a_call_has_no_answer() -> None:
    class Failing(Blocking):
        def set_state(self, state: bytes, token: Any = None) -> Any:
            raise ZeroDivisionError("a bug of the user's own")

    for keeper, why in ((Answering(), "nothing is stored"), (Failing(), "a bug of the user's own")):
        async with over_state(keeper, "run", timeout=60.0) as backend:
            with pytest.raises(RendezvousConnectionError, match=f"did not answer within 0.2 s: .*{why}"):
                await backend.commit(Put("a", b""), deadline=Deadline.after(0.2, "commit"))


async def test_coroutines_are_called_on_the_loop() -> None:
    keeper = Coroutines()
    async with over_state(keeper, "run") as backend, connect(backend=backend, run_id="run", nodes=1) as rendezvous:
        assert backend.name == "coroutines"
        world = await rendezvous.join()
        assert world.size == 1
    assert keeper.threads == {threading.get_ident()}


def test_the_pace() -> None:
    pace = Pace(Random(1))
    assert pace.pause(0.0, 1) == QUICKEST
    assert pace.pause(1.0, 1) == 0.1
    assert pace.pause(3600.0, 1) == CALMEST
    assert pace.pause(0.0, 64) == 0.064, "many look less often"
    for _ in range(100):
        pace.took(0.2)
    assert 0.5 < pace.pause(0.0, 1) <= 0.6, "a slow store is not asked all the time"
    assert all(0 < pace.backoff(lost) <= LONGEST_BACKOFF for lost in range(1, 100))
    fast = Pace(Random(1))
    assert max(fast.backoff(1) for _ in range(100)) < 0.002
    assert max(fast.backoff(50) for _ in range(100)) > 0.2
