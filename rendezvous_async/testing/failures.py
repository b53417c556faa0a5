"""The failures of the programs of a cluster, until a test is told of them: each once, with its own traceback.

They include the errors of tasks and callbacks that a program started and nothing awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Any

from rendezvous_async.aio.clock import lease_now
from rendezvous_async.testing.loop.clock import VirtualLoop
from rendezvous_async.testing.loop.groups import group_of

__all__ = ["Failures"]


class Failures:
    """The errors not raised yet, oldest first."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, float, BaseException]] = []
        self._nodes: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Failures {[f'{node}: {error!r}' for node, _, error in self._pending]}>"

    def add(self, node: str, error: BaseException) -> None:
        """Note that the program of a node has failed now."""
        self._pending.append((node, lease_now(), error))

    def raise_first(self) -> None:
        """Raise the oldest failure, if there is one; its notes name the others, which are not raised again."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        (node, at, first), *others = pending
        first.add_note(f"The program of {node} failed with it at {at:g} s of virtual time.")
        for node, at, error in others:
            first.add_note(f"The program of {node} failed too, at {at:g} s: {type(error).__name__}: {error}")
        raise first

    def catch(self, loop: VirtualLoop, nodes: Iterable[str]) -> None:
        """Collect what tasks and callbacks of these nodes raise unseen, until ``stop_catching``."""
        self._nodes = frozenset(nodes)
        self._next_handler = loop.get_exception_handler()
        loop.set_exception_handler(self._handle)

    def stop_catching(self, loop: VirtualLoop) -> None:
        """Collect the errors of tasks that were never awaited, and restore the loop's exception handler."""
        for group, error in loop.take_unseen_errors():
            if not loop.is_killed(group):
                self._take(group, error)
        loop.set_exception_handler(self._next_handler)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        source = context.get("task") or context.get("future") or context.get("handle")
        if self._take(group_of(source), context.get("exception")):
            return
        if self._next_handler is not None:
            self._next_handler(loop, context)
        else:
            loop.default_exception_handler(context)

    def _take(self, group: Hashable | None, error: BaseException | None) -> bool:
        """Add an error if its group is a process of one of the nodes; return whether it is."""
        node = str(group).partition("#")[0]
        if error is None or node not in self._nodes:
            return False
        self.add(node, error)
        return True
