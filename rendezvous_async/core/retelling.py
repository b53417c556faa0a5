"""A history in plain sentences, for a tired person at 3 a.m. Pure: the caller says how times look, and prints."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping

from rendezvous_async.causes import Cause
from rendezvous_async.core.goodput import LAST_CALL, Activity, Goodput
from rendezvous_async.core.history import HistoryRecord, Kind, Roll, Who
from rendezvous_async.texts import counted, printable

__all__ = ["Retelling", "cause_in_words", "duration", "sentence_of", "sum_up"]

WIDTH = 80
SHOWN = 3
"""How many nodes a sentence names."""
_CAUSES = {
    "left": "it left",
    "cut": "its connection was cut",
    "died": "its process ended",
    "silent": "it was silent for too long",
    "evicted": "it was evicted",
    "stalled": "its event loop stalled",
    "replaced": "a new process has its id",
    "spare": "no place for it",
    "": "cause unknown",
}
_OUTAGES = {
    "start": "the first nodes came",
    "scaled": "the run was scaled",
    "newcomers": "newcomers were let in",
    "returned": "members came back by themselves",
    "gone": "a node was gone, cause unknown",
}
_PHASES = {
    Activity.HELD: "a round was held",
    Activity.STOPPING: "members let go of their round",
    Activity.GATHERING: "nodes gathered for the next",
    Activity.FORMING: "the next round was written",
    Activity.UNKNOWN: "not on record",
}


def cause_in_words(cause: str) -> str:
    """Return why a node is gone, as half a sentence."""
    return _CAUSES.get(cause, printable(cause))


def duration(seconds: float) -> str:
    """Return ``0.02 s``, ``17 s``, ``4 min 2 s``, ``11 min``, ``1 h 3 min``."""
    if seconds < 0.995:
        return f"{max(seconds, 0):.2g} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 3570:
        return f"{round(whole / 60)} min"
    whole = 60 * round(whole / 60)
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


class Retelling:
    """Tells the records of one history, one after the other."""

    def __init__(self) -> None:
        self._before: HistoryRecord | None = None
        self._coordinator = ""
        self._known: set[str] = set()

    def lines(self, record: HistoryRecord, time: str) -> Iterator[str]:
        """Yield the lines that tell a record, the first with this time; they are wrapped."""
        before, by = self._before, record.by
        told = [_sentence(record, before, self._known)]
        self._known = set() if record.kind == Kind.FORMED else self._known | {who.node for who in record.gone.named}
        if before is not None and record.n > before.n + 1:
            told.insert(0, f"({counted(record.n - before.n - 1, 'change')} before this not on record)")
        if by and record.kind not in (Kind.SCALED, Kind.CLOSED):
            if self._coordinator not in ("", by):
                told.insert(0, f"{printable(by)} coordinates now, in place of {printable(self._coordinator)}")
            self._coordinator = by
        self._before = record
        indent = " " * (len(time) + 2)
        for sentence in told:
            text = f"{time}  {sentence}"
            yield from textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def sentence_of(record: HistoryRecord) -> str:
    """Return what a record says, on its own."""
    return _sentence(record, None, set())


def sum_up(run_id: str, goodput: Goodput, rounds: int) -> Iterator[str]:
    """Yield the lines that say where the time of a run went."""
    total = goodput.total
    yield f"run {printable(run_id)!r}: {duration(total)} on record, {counted(rounds, 'round')} formed"
    yield ""
    rows = [(phase, goodput.seconds.get(phase, 0.0), meaning) for phase, meaning in _PHASES.items()]
    for phase, seconds, meaning in rows:
        if seconds or phase is not Activity.UNKNOWN:
            yield f"  {phase:<10} {duration(seconds):>12} {_percent(seconds, total):>7}  {meaning}"
    if goodput.by_wall:
        yield f"  ({duration(goodput.by_wall)} of this by wall clocks, which may differ)"
    if goodput.causes:
        yield ""
        yield "time without a round, by cause:"
        counts = {cause: sum(outage.cause == cause for outage in goodput.outages) for cause in goodput.causes}
        yield from _table(goodput.causes, lambda cause: f"{_outage_in_words(cause)} ({_times(counts[cause])})")
    if goodput.machines:
        yield ""
        yield "and by the machine that brought it about:"
        yield from _table(goodput.machines, printable)
    if goodput.awaited:
        yield ""
        yield "gathering waited for:"
        yield from _table(
            goodput.awaited, lambda who: "more nodes, until the last call" if who == LAST_CALL else printable(who)
        )


def _sentence(record: HistoryRecord, before: HistoryRecord | None, known: set[str]) -> str:
    """Say what a record says; why the nodes in ``known`` are gone was said before."""
    match record.kind:
        case Kind.FORMED:
            return _formed(record, known)
        case Kind.LOST:
            return f"lost {_names(record.gone, causes=True)}{_held(record, before)}"
        case Kind.WAITING if record.new:
            verb = "waits" if record.new.count == 1 else "wait"
            return f"{counted(record.new.count, 'newcomer')} {verb}: {_names(record.new)}{_held(record, before)}"
        case Kind.WAITING:
            return f"back at the barrier by itself: {_names(record.back)}{_held(record, before)}"
        case Kind.GATHERING:
            gone = f"; gone: {_names(record.gone, causes=True)}" if record.gone else ""
            last = record.awaited.named[:1]
            let_go = f", the last to let go was {printable(last[0].node)}" if last else ""
            took = f", after {duration(record.since)}" if record.since is not None and record.since >= 0.1 else ""
            return f"round {record.round} is over{let_go if took else ''}{took}; gathering{gone}"
        case Kind.SCALED:
            by = f" by {printable(record.by)}" if record.by else ""
            return f"scaled from {printable(record.detail)}{by}"
        case Kind.SETTINGS:
            return f"more nodes agree on other settings: {printable(record.detail)}"
        case Kind.CLOSED:
            by = printable(record.by) or "an unnamed node"
            return f"closed by {by}: {printable(record.detail) or 'no reason given'}"
        case _:
            return f"{printable(record.kind)} (a newer version wrote this)"


def _formed(record: HistoryRecord, known: set[str]) -> str:
    parts = [f"round {record.round} formed with {counted(record.size, 'node')}"]
    if record.since is not None and record.since >= 0.1:
        parts[0] += f" after {duration(record.since)}"
        last = record.awaited.named[:1]
        if last and last[0].after >= record.since / 2:
            parts[0] += f", the last to come was {printable(last[0].node)}"
        if record.last_call:
            parts[0] += ", when the last call was over"
    if record.new and record.new.count < record.size:
        parts.append(f"new: {_names(record.new)}")
    if record.gone:
        parts.append(f"without {_names(record.gone, causes=any(who.node not in known for who in record.gone.named))}")
    if record.back:
        parts.append(f"gone and back: {_names(record.back, causes=True)}")
    return "; ".join(parts)


def _held(record: HistoryRecord, before: HistoryRecord | None) -> str:
    """Say how long a round was held when something has ended that."""
    if record.since is None or before is None or before.kind != Kind.FORMED:
        return ""
    return f"; round {record.round} lasted {duration(record.since)}"


def _names(roll: Roll, causes: bool = False) -> str:
    """Name some nodes; with one, its machine too."""
    named = roll.named[:SHOWN]
    if causes and roll.count == 1 and named:
        return f"{_placed(named[0])}: {cause_in_words(named[0].cause)}"
    each = [f"{printable(who.node)} ({cause_in_words(who.cause)})" if causes else _placed(who) for who in named]
    more = roll.count - len(named)
    return ", ".join(each) + (f" and {more} more" if more > 0 else "")


def _placed(who: Who) -> str:
    node, where = printable(who.node), printable(who.where)
    stall = f"its event loop had stalled for {duration(who.after)}" if who.cause == Cause.STALLED and who.after else ""
    more = "; ".join(text for text in (where if where not in node else "", stall) if text)
    return f"{node} ({more})" if more else node


def _outage_in_words(cause: str) -> str:
    if cause in _OUTAGES:
        return _OUTAGES[cause]
    return f"a node was lost: {cause_in_words(cause)}"


def _table(rows: Mapping[str, float], name: Callable[[str], str]) -> Iterator[str]:
    for key, seconds in sorted(rows.items(), key=lambda row: (-row[1], row[0])):
        yield f"  {duration(seconds):>12}  {name(key)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f} %" if total else "0.0 %"
