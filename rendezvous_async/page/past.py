"""The drawing of a run's history: one lane for the run, one for each node that a record names.

The axis is the sum of what the records say of their lengths, so no clock of one machine is held against another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rendezvous_async.core.goodput import Activity, goodput_of, stretches
from rendezvous_async.core.history import HistoryRecord, Kind, Who
from rendezvous_async.core.retelling import cause_in_words, duration, sentence_of
from rendezvous_async.page.drawing import Bar, Drawing, Lane, Sketch
from rendezvous_async.texts import counted

__all__ = ["drawing_of"]

RUN = "the run"


def drawing_of(run_id: str, records: Sequence[HistoryRecord]) -> Drawing:
    """Return the drawing of a history, the oldest record first."""
    sketch = Sketch()
    now = 0.0
    for stretch, following in zip_longest(parts := list(stretches(records)), parts[1:]):
        end = now + stretch.seconds
        if stretch.seconds:
            sketch.begin(RUN, _bar(now, stretch.phase, stretch.begun_by))
            for kind in ("round", "waiting"):
                sketch.end(RUN, end, kind, f"; {duration(stretch.seconds)}")
        now = end
        if stretch.ended_by is not None and (following is None or following.ended_by is not stretch.ended_by):
            _add(sketch, now, stretch.ended_by)
    goodput = goodput_of(records)
    held = goodput.seconds.get(Activity.HELD, 0.0)
    share = f", {100 * held / goodput.total:.1f} % of it with a round held" if goodput.total else ""
    lanes = sketch.lanes(now)
    first = [lane for lane in lanes if lane.name == RUN] or [Lane(RUN)]
    others = sorted((lane for lane in lanes if lane.name != RUN), key=lambda lane: (len(lane.name), lane.name))
    facts = f"{counted(len(records), 'change')}, {duration(goodput.total)} on record{share}"
    return Drawing(f"The history of run {run_id!r}", facts, (*first, *others))


def _bar(at: float, phase: Activity, since: HistoryRecord | None) -> Bar:
    if phase is Activity.HELD and since is not None:
        number = since.round
        return Bar(at, at, "round", f"round {number} of {counted(since.size, 'node')}", f"r{number}", number)
    return Bar(at, at, "waiting", str(phase), str(phase))


def _add(sketch: Sketch, at: float, record: HistoryRecord) -> None:
    """Add what a record says."""
    told = sentence_of(record)
    match record.kind:
        case Kind.FORMED:
            sketch.mark(RUN, at, "formed", told)
        case Kind.SCALED | Kind.SETTINGS:
            sketch.mark(RUN, at, "called", told)
        case Kind.CLOSED:
            sketch.mark(RUN, at, "called", told)
            sketch.begin(RUN, Bar(at, at, "closed", told, "closed"))
        case _:
            pass
    for who in record.new.named:
        lane = _lane(who)
        if lane not in sketch.where("present"):
            sketch.mark(lane, at, "arrived", f"{who.node}: {told}")
            sketch.begin(lane, Bar(at, at, "present", f"{who.node} takes part, or waits"))
    for who in record.gone.named:
        lane = _lane(who)
        if lane in sketch.where("present") or record.kind != Kind.FORMED:
            sketch.end(lane, at, "present")
            sketch.mark(lane, at, "gone", f"{who.node}: {cause_in_words(who.cause)}")


def _lane(who: Who) -> str:
    return f"{who.node} ({who.where})" if who.where and who.where != who.node else who.node
