"""A store under a prefix: it separates the rounds of a handler that was given a store.

Any object with a store's methods works. A torch store gets torch's own ``PrefixStore``, since torch accepts nothing
else. Its owner has imported torch, so this module need not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

__all__ = ["PrefixedStore", "under_prefix"]


def under_prefix(prefix: str, store: Any) -> Any:
    """Return a store whose keys are ``<prefix>/<key>`` in another store."""
    torch: Any = sys.modules.get("torch.distributed")
    if torch is not None and isinstance(store, torch.Store):
        return torch.PrefixStore(prefix, store)
    return PrefixedStore(prefix, store)


class PrefixedStore:
    """A store inside another one; each method does what the other store's method does.

    Args:
        prefix: The prefix of all keys.
        store: The other store.
    """

    def __init__(self, prefix: str, store: Any) -> None:
        self.underlying_store = store
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<PrefixedStore {self._prefix!r} in {self.underlying_store!r}>"

    @property
    def timeout(self) -> Any:
        return self.underlying_store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of waits; it is the other store's too."""
        self.underlying_store.set_timeout(timeout)

    def set(self, key: str, value: bytes | str) -> None:
        self.underlying_store.set(self._name(key), value)

    def get(self, key: str) -> Any:
        return self.underlying_store.get(self._name(key))

    def add(self, key: str, amount: int) -> Any:
        return self.underlying_store.add(self._name(key), amount)

    def wait(self, keys: Sequence[str], *timeout: timedelta) -> None:
        self.underlying_store.wait(self._names(keys), *timeout)

    def check(self, keys: Sequence[str]) -> Any:
        return self.underlying_store.check(self._names(keys))

    def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> Any:
        return self.underlying_store.compare_set(self._name(key), expected_value, desired_value)

    def delete_key(self, key: str) -> Any:
        return self.underlying_store.delete_key(self._name(key))

    def num_keys(self) -> Any:
        """Count the keys of the whole other store, as torch does."""
        return self.underlying_store.num_keys()

    def multi_get(self, keys: Sequence[str]) -> Any:
        return self.underlying_store.multi_get(self._names(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self.underlying_store.multi_set(self._names(keys), values)

    def append(self, key: str, value: bytes | str) -> None:
        self.underlying_store.append(self._name(key), value)

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [self._name(key) for key in keys]
