"""The round's key-value store for blocking code, with the classic's methods.

Every call is a trip to the process's loop and back. Waits end with the round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol, TypeVar

from rendezvous_async.node import store as rounds
from rendezvous_async.node.addresses import find_local_address, get_free_port

__all__ = ["BlockingStore", "LoopCall", "RendezvousStoreInfo"]

T = TypeVar("T")


class LoopCall(Protocol):
    """Runs a coroutine function on the loop and returns its result."""

    def __call__(self, function: Callable[..., Awaitable[T]], *args: object) -> T: ...


class BlockingStore:
    """The blocking face of a store.

    Args:
        store: The async store.
        call: Runs the store's methods on the loop.
    """

    def __init__(self, store: rounds.Store, call: LoopCall) -> None:
        self._store = store
        self._call = call
        self._timeout = timedelta(seconds=rounds.DEFAULT_TIMEOUT)

    def __repr__(self) -> str:
        return f"<sync {self._store!r}>"

    @property
    def timeout(self) -> timedelta:
        """The default timeout of waits."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of waits."""
        if timeout <= timedelta(0):
            raise ValueError(f"the timeout must be positive, not {timeout}")
        self._timeout = timeout

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value."""
        self._call(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value.

        Raises:
            RendezvousTimeoutError: The key was not set in time.
            RendezvousFencedError: The round is over.
        """
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        return self._call(self._store.add, key, amount)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for all keys; raise as ``get`` does."""
        self._call(self._store.wait, keys, (timeout or self._timeout).total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        return self._call(self._store.check, keys)

    def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> bytes:
        """Write if the value is the expected one (empty: or if there is none); return the value now stored."""
        return self._call(self._store.compare_set, key, expected_value, desired_value)

    def delete_key(self, key: str) -> bool:
        """Delete a key; False if there was none."""
        return self._call(self._store.delete, key)

    def num_keys(self) -> int:
        """Count the keys."""
        return self._call(self._store.num_keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all keys and return their values in order; raise as ``get`` does."""
        return self._call(self._store.wait, keys, self._timeout.total_seconds())

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Write several values."""
        self._call(self._store.multi_set, dict(zip(keys, values, strict=True)))

    def append(self, key: str, value: bytes | str) -> None:
        """Append to a value, which starts empty."""
        self._call(self._store.append, key, value)

    def barrier(self, name: str = "barrier", timeout: timedelta | None = None) -> None:
        """Wait until every member has called this equally often under this name; not in the classic."""
        self._call(self._store.barrier, name, (timeout or self._timeout).total_seconds())


@dataclass
class RendezvousStoreInfo:
    """An address and a port of rank 0, for the workers' own store."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(rank: int, store: Any, local_addr: str | None, server_port: int | None = None) -> RendezvousStoreInfo:
        """Agree on them through a store: rank 0 decides, the others wait.

        Args:
            rank: This node's rank.
            store: The members' shared store; a torch Store works too.
            local_addr: This node's address for the others; by default detected.
            server_port: The port if the workers' store is already served; by default a free port.
        """
        address, port = RendezvousStoreInfo.MASTER_ADDR_KEY, RendezvousStoreInfo.MASTER_PORT_KEY
        if rank == 0:
            store.set(address, (local_addr or find_local_address()).encode())
            store.set(port, str(server_port or get_free_port()).encode())
        return RendezvousStoreInfo(store.get(address).decode(), int(store.get(port).decode()))
