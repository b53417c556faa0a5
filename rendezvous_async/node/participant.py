"""A node as it takes part in a run: all that a membership needs to know of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.node.events import Events
from rendezvous_async.settings import Settings, Timeouts

__all__ = ["Participant"]


@dataclass(frozen=True, slots=True)
class Participant:
    """Who takes part in a run, and how: what stays the same from one session to the next.

    Attributes:
        node: Its id.
        fields: What its log records carry in ``extra=``; the round in it is that of its last join.
        settings: The settings that it wants for the run.
        timeouts: How long it waits for what.
        interval: Seconds between keep-alives.
        ttl: Seconds without one after which the others count it as lost.
        rng: Where its random ids and delays come from.
        events: Receives what happens to it.
    """

    node: str
    fields: dict[str, object]
    settings: Settings
    timeouts: Timeouts
    interval: float
    ttl: float
    rng: random.Random
    events: Events

    def fresh_id(self) -> str:
        """Return an id that nothing else has."""
        return f"{self.rng.getrandbits(64):016x}"

    def step(self, deadline: Deadline, what: str) -> Deadline:
        """Return how long to wait for one answer on the way to a deadline.

        Raises:
            RendezvousConnectionError: The deadline is over, so nothing must be sent.
        """
        return deadline.step(self.timeouts.heartbeat, f"node {self.node}: {what}")
