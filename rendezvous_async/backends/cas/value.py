"""The store that the driver needs: one value that can be read, and replaced if it is still the one that was read.

``FencedValue`` is its interface: two coroutines. ``StateValue`` adapts a classic ``RendezvousBackend``, or anything
else with its three methods, blocking or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeAlias

from rendezvous_async.errors import RendezvousConnectionError, RendezvousStateError
from rendezvous_async.texts import quoted

__all__ = ["Answer", "FencedValue", "StateKeeper", "StateValue"]

Answer: TypeAlias = tuple[bytes, Any, bool]


class FencedValue(Protocol):
    """One value with a fencing token.

    Both calls may be cancelled, and may raise anything if there is no answer; the driver tries again. Such a write may
    have been made, or may be made later, as long as its token is current.
    """

    @property
    def name(self) -> str:
        """The kind of store."""

    async def read(self) -> tuple[bytes, Any] | None:
        """Return the value and its token, or None if there is none.

        It must show every write that was acknowledged before the read was sent: not what a replica or a cache holds.
        """

    async def write(self, data: bytes, token: Any) -> Answer | None:
        """Replace the value atomically if its token is ``token``; with None, create it if there is none.

        A token must never be used twice, not even after the value was deleted.

        Returns:
            The value now stored, its token, and whether this call stored it; None if there is no value.
        """

    async def aclose(self) -> None:
        """Release all resources; called once."""


class StateKeeper(Protocol):
    """The methods of a classic ``RendezvousBackend``; each may block, or be a coroutine function."""

    @property
    def name(self) -> str:
        """The kind of backend."""

    def get_state(self) -> Any:
        """Return the state and its token, or None, like ``FencedValue.read``."""

    def set_state(self, state: bytes, token: Any = None) -> Any:
        """Replace the state if its token is ``token``, like ``FencedValue.write``."""


class StateValue:
    """The state of a classic backend as a fenced value.

    Blocking methods are called in a thread, one at a time, so they need not be thread-safe. One that hangs holds up all
    others: give your client a timeout well below the nodes' TTL.
    """

    def __init__(self, keeper: StateKeeper) -> None:
        self.name = keeper.name
        self._keeper = keeper
        self._thread = ThreadPoolExecutor(1, f"rendezvous {self.name}")

    def __repr__(self) -> str:
        return f"<StateValue of {self._keeper!r}>"

    async def read(self) -> tuple[bytes, Any] | None:
        match await self._call(self._keeper.get_state):
            case None:
                return None
            case (bytes(data), token) if token is not None:
                return data, token
            case answer:
                raise self._wrong("get_state", "(bytes, token)", answer)

    async def write(self, data: bytes, token: Any) -> Answer | None:
        match await self._call(self._keeper.set_state, data, token):
            case None:
                return await self._look_for(data)
            case (bytes(found), new, bool(is_written)) if new is not None:
                return found, new, is_written
            case answer:
                raise self._wrong("set_state", "(bytes, token, bool)", answer)

    async def aclose(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _look_for(self, data: bytes) -> Answer | None:
        """Return what a write did of which nothing was said, as in the classic: no two values are ever equal."""
        found = await self.read()
        if found is None:
            raise RendezvousConnectionError(
                f"set_state() of the {self.name} backend returned None, and then get_state() did too: nothing is stored"
            )
        return *found, found[0] == data

    def _wrong(self, method: str, wanted: str, answer: object) -> RendezvousStateError:
        return RendezvousStateError(
            f"{method}() of the {self.name} backend must return {wanted} or None, not {quoted(answer)}"
        )

    async def _call(self, method: Callable[..., Any], *args: object) -> Any:
        try:
            if iscoroutinefunction(method):
                return await method(*args)
            return await asyncio.get_running_loop().run_in_executor(self._thread, method, *args)
        except (SystemExit, KeyboardInterrupt) as error:  # They would end the loop, which others use too.
            raise RendezvousConnectionError(
                f"{method.__name__}() of the {self.name} backend raised {error!r}", final=True
            ) from error
