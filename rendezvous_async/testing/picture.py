"""A picture of a history: who held which round when, who was in the roster, the faults, and the broken guarantee.

``draw`` writes it as one HTML page. The drawing itself is in ``rendezvous_async.page.drawing``; here a history becomes
lanes: one for the run as the backend has it, and one for each node. A node's thick bars are the rounds that it believes
in; the thin line below says since when and until when the backend has a record of it.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

from msgspec.structs import replace

from rendezvous_async.page.drawing import Bar, Drawing, Lane, Mark, page_of
from rendezvous_async.testing.checks import CHECKS
from rendezvous_async.testing.history import (
    Arrived,
    Believed,
    CloseCalled,
    Fault,
    Formed,
    HeadWritten,
    History,
    Left,
    Record,
    Released,
    Settled,
    StoreWritten,
    Vanished,
)
from rendezvous_async.texts import counted

__all__ = ["draw", "drawing_of"]

RUN = "the run"
LEGEND = {
    "round": "the round that a node holds: r3 1/4 is round 3, rank 1 of 4",
    "present": "the backend has a record of the node",
    "waiting": "the next round is being gathered",
    "arrived": "arrives at the barrier",
    "gone": "its record is deleted",
    "formed": "the commit that forms a round",
    "fault": "a fault",
    "paused": "frozen",
    "cut": "cut off from the server",
    "closed": "closes the run",
    "broken": "a broken guarantee",
}


def draw(history: History, path: str | Path, error: BaseException | None = None) -> None:
    """Write a picture of a history as one HTML page; it needs no other file and no network.

    Every guarantee is checked; the broken ones are in the picture, in red.

    Args:
        history: What to draw, such as ``cluster.history``.
        path: The file to write.
        error: What the test has failed of, if it was not a broken guarantee.
    """
    Path(path).write_text(page_of(drawing_of(history, error)), encoding="utf-8")


def drawing_of(history: History, error: BaseException | None = None) -> Drawing:
    """Return the drawing of a history; see ``draw``."""
    breaches = {name: text for name, find in CHECKS.items() for text in [next(find(history), "")] if text}
    lanes = _Lanes(list(history)[-1].at if len(history) else 0.0)
    for record in history:
        lanes.take(record)
    for name, text in breaches.items():
        record = _first_that_breaks(history, name)
        lanes.mark(getattr(record, "node", RUN), record.at, "broken", f"{name}: {text}")
    alarms = list(breaches.items())
    if error is not None and getattr(error, "guarantee", None) not in breaches:
        alarms.insert(0, (type(error).__name__, str(error)))
    drawn = lanes.end()
    used = {part.kind for lane in drawn for part in lane.parts}
    nodes, rounds, faults = len(drawn) - 1, len(history.of(Formed)), len(history.of(Fault))
    return Drawing(
        "A simulated run" if not alarms else "A simulated run that fails",
        f"{counted(nodes, 'node')}, {counted(rounds, 'round')} of {history.min_nodes} to {history.max_nodes} nodes, "
        f"{counted(faults, 'fault')}, {lanes.last:.1f} s of virtual time",
        tuple(drawn),
        {kind: meaning for kind, meaning in LEGEND.items() if kind in used},
        tuple(alarms),
    )


def _first_that_breaks(history: History, name: str) -> Record:
    """Return the record with which a history first violates a guarantee."""
    records = list(history)

    def broken(count: int) -> bool:
        part = History(history.min_nodes, history.max_nodes, history.ttl)
        for record in records[:count]:
            part.add(record)
        return next(CHECKS[name](part), None) is not None

    return records[bisect_left(range(len(records)), True, key=broken) - 1]


class _Lanes:
    """Lanes that grow record by record.

    Attributes:
        last: The time of the history's last record.
    """

    def __init__(self, last: float) -> None:
        self.last = last
        self._bars: dict[str, list[Bar]] = {RUN: []}
        self._marks: dict[str, list[Mark]] = {RUN: []}
        self._open: dict[tuple[str, str], Bar] = {}

    def take(self, record: Record) -> None:
        at = record.at
        match record:
            case Arrived(node=node):
                if (node, "present") not in self._open:
                    self._begin(node, Bar(at, at, "present", f"the backend has a record of {node}"))
                self.mark(node, at, "arrived", f"{node} arrives at the barrier")
            case Vanished(node=node):
                self._close(node, at, "present")
                self.mark(node, at, "gone", f"the backend deletes the record of {node}")
            case Formed(round=number, size=size, seats=seats):
                ranks = ", ".join(f"{rank} {node}" for node, _, rank in sorted(seats, key=lambda seat: seat[2]))
                tip = f"round {number} forms: {counted(size, 'node')}, by rank: {ranks}"
                self.mark(RUN, at, "formed", tip)
                self._close(RUN, at, "waiting")
                self._begin(RUN, Bar(at, at, "round", tip, f"r{number}: {counted(size, 'node')}", number))
            case HeadWritten(round=number, closed=closed, phase=phase):
                if closed:
                    self._close(RUN, at)
                    self._begin(RUN, Bar(at, at, "closed", f"the run is closed by {closed}", "closed"))
                elif phase == "gathering":
                    self._close(RUN, at, "round")
                    if (RUN, "waiting") not in self._open:
                        self._begin(RUN, Bar(at, at, "waiting", f"gathering after round {number}", "gathering"))
            case Believed(node=node, round=number, rank=rank, size=size, token=token):
                tip = f"{node} holds round {number}, rank {rank} of {size}, token {token}"
                self._begin(node, Bar(at, at, "round", tip, f"r{number} {rank}/{size}", number))
            case Released(node=node, why=why):
                self._close(node, at, "round", f"; released: {why}")
            case Left(node=node):
                self._close(node, at, "round", "; left")
            case CloseCalled(node=node):
                self.mark(node, at, "closed", f"{node} closes the run")
            case Fault(kind=kind, nodes=nodes):
                self._fault(at, kind, nodes)
            case StoreWritten() | Settled():
                pass

    def _fault(self, at: float, kind: str, nodes: tuple[str, ...]) -> None:
        match kind:
            case "partition" | "heal":
                cut = [node for node, what in self._open if what == "cut"]
                if nodes or cut:
                    self.mark(RUN, at, "fault", f"{kind}: {', '.join(nodes or cut)}")
                for node in cut:
                    self._close(node, at, "cut")
                for node in nodes:
                    self._begin(node, Bar(at, at, "cut", f"{node} is cut off from the server"))
            case "lose the server":
                self.mark(RUN, at, "fault", kind)
                self._close(RUN, at)
                for node in self._bars:
                    self._close(node, at, "present")
            case _:
                for node in nodes:
                    self._fault_of_node(at, kind, node)

    def _fault_of_node(self, at: float, kind: str, node: str) -> None:
        self.mark(node, at, "fault", f"{node}: {kind}")
        match kind:
            case "pause":
                self._begin(node, Bar(at, at, "paused", f"{node} is frozen"))
            case "resume":
                self._close(node, at, "paused")
            case "crash":
                self._close(node, at, "round", "; crash")
                self._close(node, at, "paused")
            case _:
                pass

    def mark(self, lane: str, at: float, kind: str, tip: str) -> None:
        """Add a mark."""
        self._bars.setdefault(lane, [])
        self._marks.setdefault(lane, []).append(Mark(at, kind, tip))

    def _begin(self, lane: str, bar: Bar) -> None:
        """Begin a bar; one of its kind that goes on ends here."""
        self._close(lane, bar.begin, bar.kind)
        self._open[lane, bar.kind] = bar

    def _close(self, lane: str, at: float, kind: str = "", why: str = "") -> None:
        """End the open bar of a kind, or all of a lane."""
        for key in [key for key in self._open if key[0] == lane and kind in ("", key[1])]:
            bar = self._open.pop(key)
            self._bars.setdefault(lane, []).append(replace(bar, end=at, tip=bar.tip + why))

    def end(self) -> list[Lane]:
        """Return the lanes: the run, and the nodes in the order of their numbers."""
        for lane, _ in tuple(self._open):
            self._close(lane, self.last)
        nodes = sorted(self._bars.keys() - {RUN}, key=lambda name: (len(name), name))
        return [Lane(name, tuple(self._bars[name]), tuple(self._marks.get(name, ()))) for name in (RUN, *nodes)]
