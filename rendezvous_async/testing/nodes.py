"""A node of a simulated cluster: which process it is, what its program is given, and what it believes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rendezvous_async.clock import lease_now
from rendezvous_async.events import Event, EventKind
from rendezvous_async.handler import Rendezvous
from rendezvous_async.testing.history import Believed, CloseCalled, History, Left, Released
from rendezvous_async.world import World

__all__ = ["SimulatedNode", "now"]


class SimulatedNode:
    """One process of the cluster, as the simulator sees it.

    Attributes:
        name: Its node id; a restarted node has the same.
        rendezvous: What its program was given; None before it is started.
        holds: The world that it believes in.
        live: Whether its program runs.
        paused: Whether it is frozen.
    """

    def __init__(self, name: str, history: History) -> None:
        self.name = name
        self.rendezvous: Rendezvous | None = None
        self.holds: World | None = None
        self.live = False
        self.paused = False
        self.generation = 0
        self.task: asyncio.Task[None] | None = None
        self._history = history

    def __repr__(self) -> str:
        state = "paused" if self.paused else "live" if self.live else "down"
        return f"<SimulatedNode {self.name} {state} holds={self.holds!r}>"

    @property
    def process(self) -> str:
        """Names this process, unlike the one before a restart."""
        return f"{self.name}#{self.generation}"

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
        """Return what turns the events of this process into records; once the process is gone, it ignores them."""
        process = self.process

        def hear(event: Event) -> None:
            if self.process == process and self.live:
                self._hear(event)

        return hear

    def _hear(self, event: Event) -> None:
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


def now() -> float:
    """Return the time of the running process's machine, as records have it; it goes on while a node is suspended."""
    return round(lease_now(), 9)
