"""What happened to a run, as records: one for each change that a person would ask about.

A record is written in the commit that makes the change, so there is none without the other. Record ``n`` lives at
``history/<n mod 512>``: it takes the place of the one 512 changes ago, and the history stays small however long the run
is. ``Head.recorded`` has the last number.

**Time.** ``since`` is how long the state before this change lasted, by the monotonic clock of the node that wrote the
record, which saw the change before. It is None if that node did not see it: a new coordinator that came later, or a
command. ``at`` is that node's wall clock, for people to read; nothing decides by it.

**Names.** A record names a few nodes, and says how many there are in all. A cause is given only where the backend knows
it (``rendezvous_async.causes``); otherwise the node is just gone.

This module has the values, ``chronicle`` makes them, ``retelling`` puts them into words, ``goodput`` adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from rendezvous_async.core.state import Count, Text

__all__ = ["HISTORY", "KEPT", "HistoryRecord", "Kind", "Roll", "Who", "history_key", "roll_of", "shortened"]

HISTORY = "history/"
KEPT = 512
"""How many records are kept."""
MAX_NAMED = 8
MAX_NAMES = 512
"""Upper bounds on the nodes that a roll names, and on the characters that it spends on them."""
MAX_TEXT = 200


class Kind(StrEnum):
    """What has changed."""

    FORMED = "formed"
    LOST = "lost"
    WAITING = "waiting"
    GATHERING = "gathering"
    SCALED = "scaled"
    SETTINGS = "settings"
    CLOSED = "closed"


class Who(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node in a record.

    Attributes:
        node: Its id.
        where: Its address, which says on which machine it is.
        cause: Of those that are gone: why, if that is known. Of those that came: ``stalled`` if their loop stood still.
        after: Of those that were waited for: seconds from the change before until it came. Of a stall: how long it was.
    """

    node: Text
    where: Text = ""
    cause: Text = ""
    after: float = 0.0


class Roll(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some nodes by name, and how many there are."""

    named: Annotated[tuple[Who, ...], Meta(max_length=64)] = ()
    count: Count = 0

    def __bool__(self) -> bool:
        return self.count > 0


NOBODY = Roll()


class HistoryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a run.

    Attributes:
        n: Its number; it begins again at 1 if a version without a history has coordinated meanwhile.
        kind: A ``Kind``, or what a newer version calls it.
        at: When, by the wall clock of the node that wrote it, in seconds since 1970.
        since: How long the state before lasted; None if the writer did not see it begin.
        round: The round that is held, or was the last.
        size: How many members it has.
        by: The node that coordinates, or who scaled or closed the run.
        new: Members that were not in the round before; newcomers that wait.
        gone: Nodes that are gone, or no longer members.
        back: Members that are back at the barrier. Of a round that has formed: those that were gone meanwhile, and why.
        awaited: Whose coming ended the state before: the last one first.
        forming: How much of ``since`` it took to write the round.
        last_call: Whether the round formed because a last call ended, and not because all were there.
        detail: Why the run was closed; what holds since it was scaled.
    """

    n: Count
    kind: Text
    at: float = 0.0
    since: float | None = None
    round: Count = 0
    size: Count = 0
    by: Text = ""
    new: Roll = NOBODY
    gone: Roll = NOBODY
    back: Roll = NOBODY
    awaited: Roll = NOBODY
    forming: float = 0.0
    last_call: bool = False
    detail: Text = ""


def history_key(n: int) -> str:
    """Return where record ``n`` lives."""
    return f"{HISTORY}{n % KEPT}"


def roll_of(nodes: Iterable[Who], count: int | None = None) -> Roll:
    """Return a roll that names as many of these nodes as there is room for, in their order."""
    nodes = list(nodes)
    if not nodes:
        return NOBODY
    named: list[Who] = []
    left = MAX_NAMES
    for who in nodes[:MAX_NAMED]:
        left -= len(who.node)
        if left < 0:
            break
        named.append(Who(who.node, who.where[:MAX_TEXT], who.cause, round(who.after, 3)))
    return Roll(tuple(named), len(nodes) if count is None else count)


def shortened(text: str) -> str:
    """Return a text that fits a record."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
