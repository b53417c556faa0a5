"""A picture of a history: who held which round when, who was in the roster, the faults, and the broken guarantee.

``draw`` writes it as one HTML page. The drawing itself is in ``rendezvous_async.page.drawing``; here a history becomes
lanes: one for the run as the backend has it, and one for each node. A node's thick bars are the rounds that it believes
in; the thin line below says since when and until when the backend has a record of it.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

from rendezvous_async.page.drawing import Bar, Drawing, Sketch, page_of
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
    ScaleCalled,
    Vanished,
)
from rendezvous_async.texts import counted

__all__ = ["draw", "drawing_of"]

RUN = "the run"


def draw(history: History, path: str | Path, error: BaseException | None = None) -> None:
    """Write a picture of a history as one HTML page; it needs no other file and no network.

    Every guarantee is checked; the broken ones are in the picture, in red. For a picture of a test that fails, call it
    in a ``finally`` inside the block of the ``Cluster``.

    Args:
        history: What to draw, such as ``cluster.history``.
        path: The file to write.
        error: What the test has failed of, if it was not a broken guarantee.
    """
    Path(path).write_text(page_of(drawing_of(history, error)), encoding="utf-8")


def drawing_of(history: History, error: BaseException | None = None) -> Drawing:
    """Return the drawing of a history; see ``draw``."""
    records = list(history)
    sketch = Sketch()
    sketch.begin(RUN, Bar(0.0, 0.0, "waiting", "the first round is being gathered", "gathering"))
    running: set[str] = set()
    for record in records:
        _add(sketch, running, record)
    alarms: list[tuple[str, str]] = []
    for name, find in CHECKS.items():
        if (breach := next(find(history), None)) is not None:
            record = _first_that_breaks(history, name)
            sketch.mark(getattr(record, "node", RUN), record.at, "broken", f"{name}: {breach}")
            alarms.append((name, breach))
    if error is not None and getattr(error, "guarantee", None) not in dict(alarms):
        alarms.insert(0, (type(error).__name__, str(error)))
    last = records[-1].at if records else 0.0
    of_run, *of_nodes = sketch.lanes(last)
    of_nodes.sort(key=lambda lane: (len(lane.name), lane.name))  # node-10 after node-9
    rounds, faults = len(history.of(Formed)), len(history.of(Fault))
    return Drawing(
        "A simulated run that fails" if alarms else "A simulated run",
        f"{counted(len(of_nodes), 'node')}, {counted(rounds, 'round')} of {history.min_nodes} to {history.max_nodes} "
        f"nodes, {counted(faults, 'fault')}, {last:.1f} s of virtual time",
        (of_run, *of_nodes),
        tuple(alarms),
    )


def _first_that_breaks(history: History, name: str) -> Record:
    """Return the record with which a history first violates a guarantee."""
    records = list(history)

    def is_broken(count: int) -> bool:
        part = History(history.min_nodes, history.max_nodes, history.ttl)
        for record in records[:count]:
            part.add(record)
        return next(CHECKS[name](part), None) is not None

    return records[bisect_left(range(len(records)), True, key=is_broken) - 1]


def _add(sketch: Sketch, running: set[str], record: Record) -> None:
    """Add what a record says; ``running`` has the nodes that are known to run."""
    at = record.at
    match record:
        case Arrived(node=node):
            running.add(node)
            if node not in sketch.where("present"):
                sketch.begin(node, Bar(at, at, "present", f"the backend has a record of {node}"))
            sketch.mark(node, at, "arrived", f"{node} arrives at the barrier")
        case Vanished(node=node):
            sketch.end(node, at, "present")
            sketch.mark(node, at, "gone", f"the backend deletes the record of {node}")
        case Formed(round=number, size=size, seats=seats):
            ranks = ", ".join(f"{rank} {node}" for node, _, rank in sorted(seats, key=lambda seat: seat[2]))
            tip = f"round {number} forms: {counted(size, 'node')}, by rank: {ranks}"
            sketch.mark(RUN, at, "formed", tip)
            sketch.end(RUN, at)
            sketch.begin(RUN, Bar(at, at, "round", tip, f"r{number}: {counted(size, 'node')}", number))
        case HeadWritten(closed=closed) if closed:
            sketch.end(RUN, at)
            sketch.begin(RUN, Bar(at, at, "closed", f"the run is closed by {closed}", "closed"))
        case HeadWritten(round=number, phase="gathering") if RUN not in sketch.where("waiting"):
            sketch.end(RUN, at)
            sketch.begin(RUN, Bar(at, at, "waiting", f"gathering after round {number}", "gathering"))
        case Believed(node=node, round=number, rank=rank, size=size, token=token):
            tip = f"{node} holds round {number}, rank {rank} of {size}, token {token}"
            sketch.begin(node, Bar(at, at, "round", tip, f"r{number} {rank}/{size}", number))
        case Released(node=node, why=why):
            sketch.end(node, at, "round", f"; released: {why}")
        case Left(node=node):
            running.discard(node)
            sketch.end(node, at, "cut")
        case CloseCalled(node=node):
            sketch.mark(node, at, "called", f"{node} closes the run")
        case ScaleCalled(node=node):
            sketch.mark(node, at, "called", f"{node} scales the run")
        case Fault(kind="partition" | "heal" as kind, nodes=nodes):
            cut = sketch.where("cut")
            if nodes or cut:
                sketch.mark(RUN, at, "fault", f"{kind}: {', '.join(nodes or cut)}")
            for node in cut:
                sketch.end(node, at, "cut")
            for node in nodes:
                if node in running:  # A process that starts later is not cut off.
                    sketch.begin(node, Bar(at, at, "cut", f"{node} is cut off from the server"))
        case Fault(kind=kind, nodes=()):
            sketch.mark(RUN, at, "fault", kind)
            if kind == "lose the server":
                sketch.end(RUN, at)
                for node in sketch.where("present"):
                    sketch.end(node, at, "present")
        case Fault(kind="end", nodes=(node, *_)):
            running.discard(node)
            sketch.end(node, at, "cut")
        case Fault(kind=kind, nodes=(node, *_)):
            sketch.mark(node, at, "fault", f"{node}: {kind}")
            if kind == "pause":
                sketch.begin(node, Bar(at, at, "paused", f"{node} is frozen"))
            elif kind == "resume":
                sketch.end(node, at, "paused")
            elif kind == "crash" or kind.startswith("ended"):
                running.discard(node)
                for bar in ("paused", "cut", "round"):
                    sketch.end(node, at, bar, f"; {kind}")
        case _:
            pass
