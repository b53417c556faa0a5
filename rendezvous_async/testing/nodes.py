"""A node of a simulated cluster: its process, its rendezvous, and the world that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rendezvous_async.aio.clock import lease_now
from rendezvous_async.node.events import Event, EventKind
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.testing.history import Believed, CloseCalled, History, Left, Released
from rendezvous_async.testing.loop.clock import virtual_loop

__all__ = ["RUN", "SimulatedNode", "now", "unused"]

RUN = "simulated"
"""The id of the run."""


class SimulatedNode:
    """One process of the cluster, as the simulator sees it.

    Attributes:
        name: Its node id, kept across restarts.
        labels: What it says about itself.
        rendezvous: The rendezvous of its program; None before the first start.
        holds: The world that it holds.
        live: Whether its program runs.
        paused: Whether it is frozen or suspended.
        generation: Counts its processes.
    """

    def __init__(self, name: str, history: History, labels: dict[str, str]) -> None:
        self.name = name
        self.labels = labels
        self.rendezvous: Rendezvous | None = None
        self.holds: World | None = None
        self.live = False
        self.paused = False
        self.generation: int = 0
        self.task: asyncio.Task[None] | None = None
        self._history = history

    def __repr__(self) -> str:
        state = "paused" if self.paused else "live" if self.live else "down"
        return f"<SimulatedNode {self.name} {state} holds={self.holds!r}>"

    @property
    def process(self) -> str:
        """The name of this process; it differs after a restart."""
        return f"{self.name}#{self.generation}"

    def renew(self) -> None:
        """Become another process."""
        self.generation = unused(f"{self.name}#{{}}", self.generation + 1)

    def believe(self, world: World) -> None:
        """Record that the node has joined."""
        self.holds = world
        self._history.add(Believed(now(), self.name, world.round, world.rank, world.size, str(world.token)))

    def release(self, why: str) -> None:
        """Record that the node no longer holds its world."""
        if self.holds is not None:
            self._history.add(Released(now(), self.name, self.holds.round, why))
            self.holds = None

    def listener(self) -> Callable[[Event], None]:
        """Return a callback that records the events of this process, and ignores them once it is gone."""
        process = self.process

        def listen(event: Event) -> None:
            if self.process == process and self.live:
                self._record(event)

        return listen

    def _record(self, event: Event) -> None:
        match event.kind:
            case EventKind.JOINED:
                assert self.rendezvous is not None
                assert self.rendezvous.world is not None
                self.release("joined again")
                self.believe(self.rendezvous.world)
            case EventKind.ARRIVED | EventKind.EVICTED | EventKind.CLOSED | EventKind.SESSION_LOST:
                self.release(event.kind)
            case EventKind.CLOSING:
                self._history.add(CloseCalled(now(), self.name))
            case EventKind.LEFT:
                self.release(event.kind)
                self._history.add(Left(now(), self.name))
            case _:
                pass


def unused(pattern: str, number: int) -> int:
    """Return the first number from this one on that names no killed process: another cluster may have run before."""
    loop = virtual_loop()
    while loop.is_killed(pattern.format(number)):
        number += 1
    return number


def now() -> float:
    """Return the time for a record; this clock does not stop while a node is suspended."""
    return round(lease_now(), 9)
