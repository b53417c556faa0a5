"""An endpoint as a classic ``RendezvousBackend``: one state, for blocking code.

The state has its own key in the run, separate from the handlers' keys. ``make_store`` returns the other half of the
classic's ``create_backend``: a store on the same connection that outlives every round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Self, TypeVar

from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend, Condition, Put
from rendezvous_async.core.state import round_key
from rendezvous_async.logs import log_fields
from rendezvous_async.node.store import Store as RoundStore
from rendezvous_async.settings import Endpoint, check_seconds, parse_endpoint
from rendezvous_async.sync.interface import RendezvousBackend
from rendezvous_async.sync.portal import LoopLease
from rendezvous_async.sync.store import BlockingStore

__all__ = ["READ_TIMEOUT", "EndpointRendezvousBackend", "HeldBackend", "open_kept_store"]

READ_TIMEOUT = 60.0
KEPT = 0
"""The number of the kept store's round. Rounds count from 1, so no round clears it."""

T = TypeVar("T")


class EndpointRendezvousBackend(RendezvousBackend):
    """The state of one run on an endpoint. Close it, use it with ``with``, or drop it.

    Args:
        endpoint: For example ``tcp://head:29400``.
        run_id: The run's id.
        read_timeout: Seconds for one call.
        **options: The endpoint's options.

    Attributes:
        endpoint: The parsed endpoint.
        options: The endpoint's options.

    Raises:
        RendezvousConnectionError: The endpoint cannot be reached.
    """

    def __init__(
        self, endpoint: str | Endpoint, run_id: str, *, read_timeout: float = READ_TIMEOUT, **options: Any
    ) -> None:
        self.endpoint: Endpoint = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.options = options
        self._read_timeout = check_seconds("read_timeout", read_timeout)
        self._held = HeldBackend()
        owner = f"the backend {self.endpoint} of run {run_id!r}"
        self._lease = LoopLease(owner, self._held.aclose, log_fields(run_id))
        self._lease.end_with(self)
        try:
            self._lease.call(self._held.open, self.endpoint, run_id, options)
        except BaseException:
            self._lease.release()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.endpoint}>"

    @property
    def name(self) -> str:
        return self.endpoint.scheme

    def get_state(self) -> tuple[bytes, Any] | None:
        return self._call(Backend.get_state)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        return self._call(Backend.set_state, state, token)

    def make_store(self) -> BlockingStore:
        """Return the run's kept store, shared by all that open it; unlike a round's store, it outlives the round."""
        store = BlockingStore(self._call(open_kept_store, self._read_timeout), self._call_store)
        store.set_timeout(timedelta(seconds=self._read_timeout))
        return store

    def close(self) -> None:
        """Close the connection, and the server if it is hosted here."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Call a function with the open backend; wait at most ``read_timeout`` for the answer."""
        result: T = self._lease.call(self._within, function, self._held.backend, *args)
        return result

    async def _within(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        backend = self._held.backend
        with answer_within(self._read_timeout, f"{self!r}", lambda: None if backend is None else backend.trouble):
            return await function(*args)
        raise AssertionError("unreachable")

    def _call_store(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Call the store. This bound method keeps the backend open as long as its store exists."""
        return self._lease.call(function, *args)


class HeldBackend:
    """A backend on the loop. It does not refer to its owner, so that the garbage collector can find a dropped one."""

    def __init__(self) -> None:
        self.backend: Backend | None = None

    async def open(self, endpoint: Endpoint, run_id: str, options: dict[str, Any]) -> None:
        self.backend = await start_backend(endpoint, run_id, **options)

    async def aclose(self) -> None:
        backend, self.backend = self.backend, None
        if backend is not None:
            await backend.aclose()


async def open_kept_store(backend: Backend, timeout: float) -> RoundStore:
    """Return the store that no round clears; the first caller creates the marker that fences its writes."""
    name = round_key(KEPT)
    commit = await backend.commit(Put(name, b""), when=[Condition(name, None)])
    entry = None if commit.won else commit.entry(name)
    token = commit.token if entry is None else entry.token
    return RoundStore(backend, KEPT, token, 0, 1, lambda: None, Notice(), timeout)
