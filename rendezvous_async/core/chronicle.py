"""What a coordinator knows of the past, and the history record that goes with each of its steps. Pure.

A ``Chronicle`` belongs to one term of office. It is told of each record of the roster that comes or goes, and gives out
a record for a step that tells something new; a step that only counts again gets none. It never makes the coordinator
write: what was not told yet waits for the next step.

**Before its time.** A node that takes the post finds members without a record, whose end it did not see. What it can
read of that (the last history records, and the deletions that the backend remembers) comes with ``explain``; what
nobody remembers stays without a cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import nlargest, nsmallest
from typing import Any

from msgspec.structs import replace

from rendezvous_async.causes import Cause
from rendezvous_async.core.history import MAX_NAMED, HistoryRecord, Kind, Roll, Who, roll_of, shortened
from rendezvous_async.core.rules import Form, HandOver, Rewrite
from rendezvous_async.core.spec import spec_of
from rendezvous_async.core.state import LIFE_LENGTH, Closed, Head, Node, Phase
from rendezvous_async.core.tally import Tally

__all__ = ["Chronicle", "closing", "counted_in", "scaling"]

REPLACED = "replaced"
"""As the cause of a node: another process with its id came, while its record was still there."""
SPARE = "spare"
"""As the cause of a member that is not in the next round: it is here, and there is no place for it."""

MAX_REMEMBERED = 4096
"""Upper bound on the nodes that a chronicle remembers as gone."""


class Chronicle:
    """The past of one term of office.

    Args:
        by: The node that coordinates.
    """

    def __init__(self, by: str = "") -> None:
        self._by = by
        self._gone: dict[str, Who] = {}
        self._told: set[str] = set()
        self._came: dict[str, float] = {}
        self._known: str | None = None

    def __repr__(self) -> str:
        return f"<Chronicle by={self._by!r} gone={len(self._gone)} untold={len(self._gone.keys() - self._told)}>"

    def came(self, tally: Tally, node: str, record: Node, at: float | None, cause: str = "") -> None:
        """Note that a node's record was put at that time, by this node's clock, if that is known.

        A record that was deleted before this one was put, for this cause, or that another process put, is gone: the one
        that ``tally`` has or, in the first look at the roster, which has no times, the one that has the seat.
        """
        before = tally.seats[node].arrival if at is None and node in tally.seats else record.arrival
        if node in tally.records:
            before = tally.records[node][0].arrival
        if before != record.arrival and (cause or before[:LIFE_LENGTH] != record.arrival[:LIFE_LENGTH]):
            self.went(tally, node, cause or REPLACED)
        if at is not None:
            self._came[node] = at

    def went(self, tally: Tally, node: str, cause: str) -> None:
        """Note that a node's record is gone; ``tally`` still has it."""
        self._came.pop(node, None)
        if (node in tally.records or node in tally.seats) and len(self._gone) < MAX_REMEMBERED:
            self._gone[node] = Who(node, _where(tally, node), cause)
            self._told.discard(node)

    def is_in_the_dark(self, tally: Tally) -> bool:
        """Tell whether members went before this term of office; asked once for each round."""
        if self._known == tally.head.attempt:
            return False
        self._known = tally.head.attempt
        return bool(self._gone) or any(node not in tally.records for node in tally.seats)

    def explain(self, tally: Tally, told: Iterable[HistoryRecord], causes: Mapping[str, str]) -> None:
        """Take what is known of members that went before this term of office.

        Args:
            tally: What is here now.
            told: The history, the oldest record first.
            causes: Why nodes went, by node.
        """
        before: dict[str, str] = {}
        for record in told:
            if record.kind == Kind.FORMED:
                before.clear()
            else:
                before.update((who.node, who.cause) for who in record.gone.named)
        for node in tally.seats:
            if node not in tally.records and node not in self._gone:
                self._gone[node] = Who(node, _where(tally, node), causes.get(node) or before.get(node, ""))
        self._told.update(self._gone.keys() & before.keys())

    def record_of(
        self, tally: Tally, decision: Rewrite | HandOver | Form, began: float, last_call: bool = False
    ) -> HistoryRecord | None:
        """Return the record of a step, still without times; None if it tells nothing new.

        Args:
            tally: What the step was decided on.
            decision: The step.
            began: When the state began that this step ends, by this node's clock; infinite if it did not see that.
            last_call: Whether a last call has ended.
        """
        before, head = tally.head, decision.head
        untold = [who for node, who in self._gone.items() if node not in self._told]
        if isinstance(decision, Form):
            chosen, seats = decision.seats, tally.seats
            fresh = [node for node in chosen if node not in seats]
            first = nsmallest(MAX_NAMED, fresh, key=lambda node: chosen[node].rank)
            gone = [self._absent(tally, node) for node in seats if node not in chosen]
            return HistoryRecord(
                **self._of(Kind.FORMED, head),
                new=roll_of([_with_stall(node, tally.records[node][0]) for node in first], len(fresh)),
                gone=roll_of(gone + [who for who in untold if who.node not in seats and who.node not in chosen]),
                back=roll_of([who for who in untold if who.node in chosen]),
                awaited=self._awaited(chosen, tally, began),
                last_call=last_call,
            )
        if isinstance(decision, HandOver):
            detail = shortened(head.fingerprint)
            return HistoryRecord(**self._of(Kind.SETTINGS, head), gone=roll_of(untold), detail=detail)
        new, back = _first(tally, tally.newcomers), _first(tally, tally.returned)
        if head.phase is Phase.GATHERING:
            awaited = self._awaited(tally.seats, tally, began)
            return HistoryRecord(
                **self._of(Kind.GATHERING, head), gone=roll_of(untold), new=new, back=back, awaited=awaited
            )
        if any(who.node in tally.seats for who in untold):
            return HistoryRecord(**self._of(Kind.LOST, head), gone=roll_of(untold))
        if head.waiting and not (before.waiting or head.lost):
            new = new if head.waiting > head.returned else Roll()
            return HistoryRecord(**self._of(Kind.WAITING, head), new=new, back=back)
        return None

    def written(self, decision: Rewrite | HandOver | Form) -> None:
        """Note that a step was made, and its record written if it had one."""
        if isinstance(decision, Form):
            self._gone.clear()
            self._told.clear()
            self._came.clear()
            self._known = decision.head.attempt
        else:
            self._told.update(self._gone)

    def _absent(self, tally: Tally, node: str) -> Who:
        """Return a member of the last round that is not in the next: it is gone, or here without a place."""
        known = self._gone.get(node, Who(node, _where(tally, node)))
        return Who(node, known.where, SPARE) if node in tally.records else known

    def _awaited(self, nodes: Collection[str], tally: Tally, began: float) -> Roll:
        came = [(at, node) for node, at in self._came.items() if at > began and node in nodes]
        last = nlargest(MAX_NAMED, came)
        return roll_of([Who(node, _where(tally, node), "", at - began) for at, node in last], len(came))

    def _of(self, kind: Kind, head: Head) -> dict[str, Any]:
        return {"n": head.recorded + 1, "kind": kind, "round": head.round, "size": head.size, "by": self._by}


def closing(head: Head, closed: Closed) -> HistoryRecord:
    """Return the record of a close; ``head`` is the one before it."""
    by, detail = shortened(closed.by), shortened(closed.reason)
    return HistoryRecord(n=head.recorded + 1, kind=Kind.CLOSED, round=head.round, size=head.size, by=by, detail=detail)


def scaling(head: Head, scaled: Head, by: str) -> HistoryRecord:
    """Return the record of new sizes or another target."""
    detail = shortened(f"{spec_of(head)} to {spec_of(scaled)}")
    return HistoryRecord(
        n=head.recorded + 1, kind=Kind.SCALED, round=head.round, size=head.size, by=shortened(by), detail=detail
    )


def counted_in(head: Head) -> Head:
    """Return the head of a commit that has a record."""
    return replace(head, recorded=head.recorded + 1)


def _where(tally: Tally, node: str) -> str:
    record, _ = tally.records.get(node, (None, 0))
    if record is not None:
        return record.address
    return tally.seats[node].address if node in tally.seats else ""


def _first(tally: Tally, nodes: Collection[str]) -> Roll:
    """Return a roll of nodes that are here, first come first."""
    first = nsmallest(MAX_NAMED, nodes, key=lambda node: tally.records[node][1])
    return roll_of([_with_stall(node, tally.records[node][0]) for node in first], len(nodes))


def _with_stall(node: str, record: Node) -> Who:
    return Who(node, record.address, Cause.STALLED if record.stalled else "", record.stalled or 0.0)
