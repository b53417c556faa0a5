"""A key-value store for blocking code: the round's own, with the classic's methods, and what is shared through it.

Every call goes to the loop of the process and back. Waits end with the round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

from rendezvous_async import store as rounds
from rendezvous_async.addresses import find_local_address, get_free_port

__all__ = ["RendezvousStoreInfo", "Store"]


class Call(Protocol):
    """Runs a coroutine function on the loop and waits for what it returns."""

    def __call__(self, function: Callable[..., Awaitable[Any]], *args: object) -> Any: ...


class Store:
    """The blocking face of a store.

    Args:
        store: The one behind it.
        call: How to get to it.
    """

    def __init__(self, store: rounds.Store, call: Call) -> None:
        self._store = store
        self._call = call
        self._timeout = timedelta(seconds=rounds.DEFAULT_TIMEOUT)

    def __repr__(self) -> str:
        return f"<sync {self._store!r}>"

    @property
    def timeout(self) -> timedelta:
        """How long waits last when they are not told."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long waits last when they are not told."""
        if timeout <= timedelta(0):
            raise ValueError(f"the timeout must be positive, not {timeout}")
        self._timeout = timeout

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value."""
        self._call(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """Return the value at ``key``, waiting until it is there.

        Raises:
            RendezvousTimeoutError: It did not come in time.
            RendezvousFencedError: The round is over.
        """
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        total: int = self._call(self._store.add, key, amount)
        return total

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all ``keys`` are there; raises as ``get`` does."""
        self._call(self._store.wait, keys, (timeout or self._timeout).total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all ``keys`` are there now."""
        there: bool = self._call(self._store.check, keys)
        return there

    def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> bytes:
        """Write if the value is the expected one, or if there is none and it is empty; return what now stands."""
        value: bytes = self._call(self._store.compare_set, key, expected_value, desired_value)
        return value

    def delete_key(self, key: str) -> bool:
        """Delete a key; False if there was none."""
        deleted: bool = self._call(self._store.delete, key)
        return deleted

    def num_keys(self) -> int:
        """Count the keys."""
        count: int = self._call(self._store.num_keys)
        return count

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values at ``keys`` in order, waiting until all are there; raises as ``get`` does."""
        values: list[bytes] = self._call(self._store.wait, keys, self._timeout.total_seconds())
        return values

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Write several values."""
        self._call(self._store.multi_set, dict(zip(keys, values, strict=True)))

    def append(self, key: str, value: bytes | str) -> None:
        """Add to the end of a value, which starts empty."""
        self._call(self._store.append, key, value)

    def barrier(self, name: str = "barrier", timeout: timedelta | None = None) -> None:
        """Wait until every member has called this, as often as this one has with this name; not in the classic."""
        self._call(self._store.barrier, name, (timeout or self._timeout).total_seconds())


@dataclass
class RendezvousStoreInfo:
    """Where the workers of a round find their own store: an address and a port of rank 0."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(rank: int, store: Any, local_addr: str | None, server_port: int | None = None) -> RendezvousStoreInfo:
        """Agree on them through ``store``: rank 0 decides, the others wait for it.

        Args:
            rank: Of this node.
            store: That all share; a torch Store will do.
            local_addr: Of this node; by default an address that others reach it by.
            server_port: If the workers' store is already served; by default a free port.
        """
        address, port = RendezvousStoreInfo.MASTER_ADDR_KEY, RendezvousStoreInfo.MASTER_PORT_KEY
        if rank == 0:
            store.set(address, (local_addr or find_local_address()).encode())
            store.set(port, str(server_port or get_free_port()).encode())
        return RendezvousStoreInfo(store.get(address).decode(), int(store.get(port).decode()))
