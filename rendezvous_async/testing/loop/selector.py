"""The selector of a virtual loop: a real selector whose ``select`` runs the simulation."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["ReadyKeys", "WorldSelector"]

ReadyKeys: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class WorldSelector(selectors.BaseSelector):
    """Delegates to the real selector, except that ``select`` calls ``wait``."""

    def __init__(self) -> None:
        self.real = selectors.DefaultSelector()
        self.wait: Callable[[float | None], ReadyKeys] = self.real.select

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self.real.get_map()

    def select(self, timeout: float | None = None) -> ReadyKeys:
        return self.wait(timeout)

    def close(self) -> None:
        self.real.close()
