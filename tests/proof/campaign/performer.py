"""Who plays in an act: nodes and clients, each one process after the other, and how large all of it is."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.proof.campaign import client, node
from tests.proof.campaign.processes import Child
from tests.proof.campaign.recorder import Recorder
from tests.proof.campaign.stage import Place

__all__ = ["Performer", "Plan"]


class Plan(msgspec.Struct, frozen=True):
    """How large an act is, and how long things may take.

    Attributes:
        nodes: How many nodes, of which a round takes ``min_nodes`` to ``max_nodes``.
        clients: How many clients.
        disturbed: Seconds of faults.
        interval: Seconds between keep-alives; the TTL is ``max_attempt`` of it.
        settle: Seconds within which a round must form when nothing is wrong any more.
        pace: All seconds here, and those of nodes, clients and servers, are multiplied by this: 1 is for a machine with
            time to spare; on a busy one processes would be lost for want of a processor, not by our faults.
    """

    nodes: int = 6
    min_nodes: int = 3
    max_nodes: int = 5
    clients: int = 2
    disturbed: float = 20.0
    interval: float = 0.5
    max_attempt: int = 8
    settle: float = 60.0
    pace: float = 1.0

    @property
    def ttl(self) -> float:
        return self.pace * self.interval * self.max_attempt


class Performer:
    """A node or a client of an act, process after process.

    Attributes:
        name: The node's id, or the client's name.
        busy: Whether something is being done to it.
        calm: Whether its next process must not make the others re-form by itself.
        child: Its present process.
    """

    def __init__(self, kind: str, index: int, plan: Plan, recorder: Recorder, place: Place, folder: Path) -> None:
        self.is_node = kind == "node"
        self.name = f"{kind}-{index}"
        self.busy = False
        self.calm = False
        self.place = place
        self.child: Child
        self._base = self.name
        self._plan = plan
        self._recorder = recorder
        self._folder = folder
        self._generation = 0

    def __repr__(self) -> str:
        return f"<Performer {self.name} {getattr(self, 'child', None)!r}>"

    async def start(self, *, fresh: bool) -> None:
        """Start its next process; a client always has a new name, so that no two values are ever equal."""
        self._generation += 1
        if fresh or not self.is_node:
            self.name = f"{self._base}.{self._generation}"
        plan, recorder = self._plan, self._recorder
        self.child = Child(f"{self._base}~{self._generation}", self._folder, self.place.prefix)
        recorder.children.append(self.child)
        seed, notebook = f"{recorder.run}/{self.child.name}", str(self.child.notebook)
        options: node.Options | client.Options
        if self.is_node:
            nodes = f"{plan.min_nodes}:{plan.max_nodes}"
            options = node.Options(
                self.place.endpoint,
                recorder.run,
                self.name,
                nodes,
                plan.pace * plan.interval,
                plan.max_attempt,
                seed,
                notebook,
                self.calm,
                plan.pace,
            )
        else:
            options = client.Options(self.place.endpoint, recorder.data_run, self.name, seed, notebook, plan.pace)
        module = "node" if self.is_node else "client"
        arguments = msgspec.json.encode(options).decode()
        await self.child.start("-m", f"tests.proof.campaign.{module}", arguments)
