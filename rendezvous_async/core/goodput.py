"""Where a run's time went, added up from its history. Pure.

Between two records the run was in one **phase**: held (a round stood, and its members worked), stopping (members were
missing or newcomers waited, and some members still held the round), gathering (nobody held a round), forming (the
next one was being written). What is not held is an **outage**; it has the cause of the record that ended the round,
and belongs to the machines that the record names, in equal parts.

A length is that of the record that ended the phase, by its writer's monotonic clock. Where the writer had not seen the
phase begin, the difference of the wall clocks stands in; ``by_wall`` says how much of the time that is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from rendezvous_async.core.history import HistoryRecord, Kind, Who

__all__ = ["Activity", "Goodput", "Interruption", "Stretch", "goodput_of", "machine_of", "stretches"]


class Activity(StrEnum):
    """What a run was doing."""

    HELD = "held"
    STOPPING = "stopping"
    GATHERING = "gathering"
    FORMING = "forming"
    UNKNOWN = "unknown"
    OVER = "over"


_AFTER = {
    Kind.FORMED: Activity.HELD,
    Kind.LOST: Activity.STOPPING,
    Kind.WAITING: Activity.STOPPING,
    Kind.GATHERING: Activity.GATHERING,
    Kind.CLOSED: Activity.OVER,
}
_BEFORE = {
    Kind.FORMED: Activity.GATHERING,
    Kind.LOST: Activity.HELD,
    Kind.WAITING: Activity.HELD,
    Kind.GATHERING: Activity.STOPPING,
}


class Stretch(msgspec.Struct, frozen=True):
    """A time in one phase.

    Attributes:
        phase: Which.
        seconds: How long.
        ended_by: The record that ended it; None if it goes on.
        begun_by: The record that began it; None: what was before is not on record.
        by_wall: Whether its length is a difference of wall clocks.
    """

    phase: Activity
    seconds: float
    ended_by: HistoryRecord | None
    begun_by: HistoryRecord | None
    by_wall: bool = False


class Interruption(msgspec.Struct, frozen=True):
    """A time without a round, or with one that was about to end.

    Attributes:
        cause: Why: ``start``, ``scaled``, ``newcomers``, ``returned``, ``gone``, or why a node was lost.
        who: The nodes that brought it about, if any.
        seconds: How long it was.
        at: When it began, by a wall clock.
    """

    cause: str
    who: tuple[Who, ...]
    seconds: float
    at: float


class Goodput(msgspec.Struct, frozen=True):
    """The sums.

    Attributes:
        seconds: By phase.
        outages: The oldest first.
        causes: Seconds of outage by cause.
        machines: Seconds of outage by machine.
        awaited: Seconds of gathering by the machine that was waited for; ``last call``: for nobody in particular.
        by_wall: How much of all is a difference of wall clocks.
    """

    seconds: dict[str, float]
    outages: tuple[Interruption, ...]
    causes: dict[str, float]
    machines: dict[str, float]
    awaited: dict[str, float]
    by_wall: float = 0.0

    @property
    def total(self) -> float:
        """All the time on record."""
        return sum(self.seconds.values())

    @property
    def named(self) -> float:
        """How much of it has a name, from 0 to 1."""
        return 1 - self.seconds.get(Activity.UNKNOWN, 0.0) / self.total if self.total else 1.0


LAST_CALL = "last call"


def machine_of(who: Who) -> str:
    """Return the machine that a node is on: its address, or the node itself if it has none."""
    return who.where or who.node


def stretches(records: Sequence[HistoryRecord], now: float | None = None) -> Iterator[Stretch]:
    """Yield what the run was doing, in order; with the time of day ``now``, also what it has been doing since."""
    phase = Activity.GATHERING
    before: HistoryRecord | None = None
    for record in records:
        if before is None and record.n > 1:
            phase = next((was for kind, was in _BEFORE.items() if kind == record.kind), Activity.UNKNOWN)
        by_wall = record.since is None
        lasted = record.since
        if lasted is None:
            lasted = 0.0 if before is None else max(0.0, record.at - before.at)
        if phase is not Activity.OVER:
            forming = min(lasted, record.forming) if record.kind == Kind.FORMED else 0.0
            yield Stretch(phase, lasted - forming, record, before, by_wall)
            if forming:
                yield Stretch(Activity.FORMING, forming, record, before, by_wall)
        phase = next((after for kind, after in _AFTER.items() if kind == record.kind), phase)
        before = record
    if before is not None and now is not None and phase is not Activity.OVER:
        yield Stretch(phase, max(0.0, now - before.at), None, before, True)


def goodput_of(records: Sequence[HistoryRecord], now: float | None = None) -> Goodput:
    """Add up where the time went; with the time of day ``now``, up to now."""
    seconds: defaultdict[str, float] = defaultdict(float)
    awaited: defaultdict[str, float] = defaultdict(float)
    outages: list[Interruption] = []
    out: Interruption | None = None
    by_wall = 0.0
    for stretch in stretches(records, now):
        seconds[stretch.phase] += stretch.seconds
        by_wall += stretch.seconds if stretch.by_wall else 0.0
        if stretch.phase is Activity.HELD:
            if out is not None:
                outages.append(out)
            out = None
            continue
        if out is None:
            out = _outage(stretch)
        out = msgspec.structs.replace(out, seconds=out.seconds + stretch.seconds)
        if stretch.phase is Activity.GATHERING and (ended := stretch.ended_by) is not None:
            last = ended.awaited.named[:1]
            until_last = min(last[0].after, stretch.seconds) if last else 0.0
            if last:
                awaited[machine_of(last[0])] += until_last
            awaited[LAST_CALL] += stretch.seconds - until_last
    if out is not None:
        outages.append(out)
    causes: defaultdict[str, float] = defaultdict(float)
    machines: defaultdict[str, float] = defaultdict(float)
    for each in outages:
        causes[each.cause] += each.seconds
        for machine in (found := {machine_of(who): None for who in each.who}):
            machines[machine] += each.seconds / len(found)
    return Goodput(
        dict(seconds),
        tuple(outages),
        dict(causes),
        dict(machines),
        {who: waited for who, waited in awaited.items() if waited},
        by_wall,
    )


def _outage(stretch: Stretch) -> Interruption:
    """Return the outage that a stretch begins."""
    record = stretch.begun_by
    if record is None:
        first = stretch.ended_by
        return Interruption("start", (), 0.0, 0.0 if first is None else first.at - stretch.seconds)
    if record.gone:
        causes = Counter(who.cause or "gone" for who in record.gone.named)
        cause = causes.most_common(1)[0][0] if causes else "gone"
        return Interruption(cause, record.gone.named, 0.0, record.at)
    if record.new:
        return Interruption("newcomers", record.new.named, 0.0, record.at)
    return Interruption(record.kind if record.kind == Kind.SCALED else "returned", record.back.named, 0.0, record.at)
