"""The rules of a round.

A run is a sequence of rounds. Its head names the last round that formed (0: none yet) and says whether it is held.

**Formed.** Members hold a round from the commit that formed it until each of them is accounted for: *returned* (its
record names a newer arrival than its seat: it is back at the barrier) or *lost* (it has no record: it died or left).
Until then all others wait. The coordinator writes into the head how many wait and how many are lost, so that members
learn of it: the first change at once, later ones at most every ``COUNT_EVERY`` seconds, in a large world less often.
Otherwise a thousand arrivals would be a thousand pushes to a thousand members.

**Spares.** ``core/shape.py`` says which worlds are valid, and which one some nodes make. Newcomers count as waiting
only if a larger valid world would come of it, and only as many as would be in it. Nobody restarts for the others: they
are spares. With ``grow`` in the settings, newcomers who would make the world larger are held back for so long after the
first of them came, so that many arrivals are one change. They are let in earlier if no larger world can come, if a
member asks for it, or if the round ends for another reason. The head remembers that they were let in for as long as
some of them wait, also when the run is scaled meanwhile.

**Gathering.** When no member holds the round any more, every node at the barrier is a candidate for the next one. If
they make the largest world that there can be, it forms at once. If they make any valid world, the last call begins. It
lasts ``last_call`` seconds, or ``regroup`` seconds if a candidate held the last round, since processors stand idle
then. Arrivals never extend it. It is off when there is no valid world any more, and a new coordinator starts it again.
When it is over, the round forms. After a loss nobody waits for a world larger than the last: as soon as spares fill the
gap, the round forms.

**Forming.** The largest valid world forms. Survivors of the last round come before newcomers, and newcomers in the
order of their arrival; the others are spares. The round's number is one more than the head or any record remembers. A
seat names the arrival that it is given to and the attempt that gives it, and counts only once the head names that
attempt.

**Settings.** Nodes may come with different ones; ``core/agreement.py`` says which hold. A coordinator whose settings
are outnumbered while it gathers hands over the head and the post. Sizes and target may also be changed while the run
goes on (``core/spec.py``): then the head says what holds now, and its ``origin`` names what nodes must bring. Members
of a world that is too large now, or of a size that is not allowed any more, learn that it was resized, if a smaller
valid world can be made of them. A world that is too small now is kept until a larger one can form.

**Closed** beats everything and is final.

A node reads the same head with ``admit`` while it is at the barrier, and with ``change_of`` once it is in. Priority in
both: closed, then out, then in, then news.

``step`` is a pure function. What the coordinator must remember between steps (when the last call ends, when it last
counted, since when it holds newcomers back) goes in and out as ``Notes``. A ``Wait`` ends in the future or never: a
rule that answered "wait until now" would spin, so this is asserted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from enum import Enum
from typing import TypeAlias

import msgspec

from rendezvous_async.core.agreement import prevailing
from rendezvous_async.core.ranks import assign_ranks
from rendezvous_async.core.shape import choose
from rendezvous_async.core.state import Closed, Head, Last, Phase, Seat, Stamp
from rendezvous_async.core.tally import Tally
from rendezvous_async.settings import Settings, settings_of

__all__ = [
    "Admission",
    "Change",
    "Form",
    "HandOver",
    "Joined",
    "Mismatch",
    "Notes",
    "Pending",
    "Rewrite",
    "Shut",
    "Step",
    "Wait",
    "admit",
    "change_of",
    "changes_of",
    "first_wanted",
    "step",
]

COUNT_EVERY = 0.1
COUNT_EVERY_PER_MEMBER = 0.0002
"""Every member is told of a count: in a world of 10,000 that is 10,000 messages, and at most every 2 seconds."""


class Notes(msgspec.Struct, frozen=True):
    """What a coordinator remembers from one step to the next; a new coordinator starts with none."""

    last_call_ends: float | None = None
    counted_at: float | None = None
    held_since: float | None = None


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until the roster or the head changes or, if it is given, until that time."""

    until: float | None = None


class Rewrite(msgspec.Struct, frozen=True):
    """Write this head: the same round, other counts or phase."""

    head: Head


class Form(msgspec.Struct, frozen=True):
    """Form a round: write these seats by node, then this head."""

    head: Head
    seats: dict[str, Seat]


class HandOver(msgspec.Struct, frozen=True):
    """Write this head, which has the settings of others, and give up the post."""

    head: Head


Step: TypeAlias = Wait | Rewrite | Form | HandOver


def step(tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
    """Return the coordinator's next step, and its notes once that step is done.

    Args:
        tally: The head, its seats and the live records.
        notes: What the last step returned; ``Notes()`` for a new coordinator, and after another one's write.
        now: The coordinator's own clock.
        attempt: A fresh id, in case a round forms.
    """
    if tally.head.closed is not None:
        return Wait(), Notes()
    return _count(tally, notes, now) if tally.holding else _gather(tally, notes, now, attempt)


def _count(tally: Tally, notes: Notes, now: float) -> tuple[Step, Notes]:
    head, wanted, returned = tally.head, tally.wanted, len(tally.returned)
    held_since, let_in_at = None, math.inf
    if wanted and _holds_back(tally):
        held_since = now if notes.held_since is None else notes.held_since
        let_in_at = held_since + head.settings.grow_seconds
    held_back = wanted if held_since is not None and now < let_in_at else 0
    counted = msgspec.structs.replace(
        head,
        phase=Phase.FORMED,
        waiting=returned + wanted - held_back,
        returned=returned,
        lost=tally.lost,
        held_back=held_back,
        let_in=head.settings.grow_seconds > 0 and wanted > held_back,
        uncounted=False,
    )
    until = let_in_at if held_back else math.inf
    if counted == head:
        return _wait_until(until, now), Notes(counted_at=notes.counted_at, held_since=held_since)
    if notes.counted_at is not None:
        again = notes.counted_at + max(COUNT_EVERY, head.size * COUNT_EVERY_PER_MEMBER)
        if now < again:
            return _wait_until(min(again, until), now), Notes(counted_at=notes.counted_at, held_since=held_since)
    return Rewrite(counted), Notes(counted_at=now, held_since=held_since)


def _holds_back(tally: Tally) -> bool:
    """Tell whether newcomers who would make the world larger are held back for a while.

    Not when the round ends anyway, when the head lets them in already, or when no larger world can come.
    """
    head = tally.head
    ends_anyway = bool(tally.lost or tally.returned)
    return head.settings.grow_seconds > 0 and not ends_anyway and not head.let_in and tally.size < tally.shape.most


def _gather(tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
    head, settings = tally.head, tally.head.settings
    if tally.rivals and (wanted := prevailing(tally)) != head.fingerprint:
        others = settings_of(wanted)
        assert others is not None, "settings that cannot be read do not prevail"
        return HandOver(head.under(others)), Notes()
    size = tally.size
    fills_the_gap = tally.lost > 0 and tally.has_survivor and size >= head.size
    if size == tally.shape.most or fills_the_gap:
        return _form(tally, attempt), Notes()
    ends: float | None = None
    if size:
        ends = now + (settings.regroup if tally.has_survivor else settings.last_call)
        if notes.last_call_ends is not None:
            ends = min(ends, notes.last_call_ends)
        if ends <= now:
            return _form(tally, attempt), Notes()
    notes = Notes(last_call_ends=ends)
    if head.phase is Phase.FORMED:
        return Rewrite(head.gathering()), notes
    return _wait_until(math.inf if ends is None else ends, now), notes


def _form(tally: Tally, attempt: str) -> Form:
    chosen = choose(tally.candidates(), tally.shape)
    ranks = assign_ranks(tally.head.settings, chosen)
    round = tally.last_round + 1
    seats = {
        node: Seat(
            round=round,
            attempt=attempt,
            arrival=tally.records[node][0].arrival,
            rank=rank,
            address=tally.records[node][0].address,
            labels=tally.records[node][0].labels,
        )
        for node, rank in ranks.items()
    }
    head = msgspec.structs.replace(
        tally.head.gathering(), round=round, phase=Phase.FORMED, attempt=attempt, size=len(seats), token=None
    )
    return Form(head, seats)


def _wait_until(until: float, now: float) -> Wait:
    assert until > now, f"a wait until {until} at {now} would spin"
    return Wait(None if until == math.inf else until)


class Pending(msgspec.Struct, frozen=True):
    """Not yet; a spare waits behind a world that has no place for it, and its join clock stands still."""

    spare: bool = False


class Joined(msgspec.Struct, frozen=True):
    """In: this is the world."""

    round: int
    rank: int
    size: int
    token: Stamp


class Shut(msgspec.Struct, frozen=True):
    """The run is closed; ``spare`` tells whether this node was one."""

    closed: Closed
    spare: bool = False


class Mismatch(msgspec.Struct, frozen=True):
    """The run has other settings than this node."""

    settings: Settings


Admission: TypeAlias = Pending | Joined | Shut | Mismatch


def admit(head: Head | None, seat: Seat | None, arrival: str, settings: Settings, last: Last | None) -> Admission:
    """Return what a node at the barrier reads from the head and its own seat.

    Args:
        head: The state, stamped; None if there is none.
        seat: What stands at this node's seat.
        arrival: Of this join; a seat that was given to another one is not this node's.
        settings: This node's.
        last: What this node held before.
    """
    if head is None:
        return Pending()
    seated = seat is not None and seat.arrival == arrival and seat.attempt == head.attempt
    spare = not seated and _has_no_place(head) and (last is None or last.round != head.round)
    if head.closed is not None:
        return Shut(head.closed, spare)
    if not head.accepts(settings):
        return Mismatch(head.settings)
    if seat is not None and seated and head.token is not None:
        return Joined(seat.round, seat.rank, head.size, head.token)
    return Pending(spare)


def _has_no_place(head: Head) -> bool:
    """Tell whether a world is held that has no place for a newcomer, as far as the head says.

    It is full, or its settings leave newcomers over or hold them back, and the head counts none as waiting. (A head
    that counts some does not say which: until the round forms, all of them expect a place.)
    """
    if head.phase is not Phase.FORMED:
        return False
    leaves_over = not head.settings.is_plain and not head.lost and head.waiting == head.returned
    return leaves_over or head.size - head.lost >= head.most


class Change(Enum):
    """What can happen to a world, the most final first."""

    CLOSED = "closed"
    EVICTED = "evicted"
    MEMBER_LOST = "member_lost"
    RESIZED = "resized"
    NODES_WAITING = "nodes_waiting"


def changes_of(head: Head | None, held: Joined) -> tuple[Change, ...]:
    """Return everything that has happened to a world that this node holds, the most final first.

    A node is out when the head is of another round, or of a phase in which no node holds this one, or gone. What such a
    head counts is not about this world.
    """
    if head is not None and head.closed is not None:
        return (Change.CLOSED,)
    if head is None or head.round != held.round or head.token != held.token or head.phase is Phase.GATHERING:
        return (Change.EVICTED,)
    news = (
        (Change.MEMBER_LOST, head.lost),
        (Change.RESIZED, head.generation and _is_resized(head)),
        (Change.NODES_WAITING, head.waiting),
    )
    return tuple([change for change, is_so in news if is_so])


def _is_resized(head: Head) -> bool:
    """Tell whether the size of the head's round is no longer valid, and a smaller valid world can be made of it."""
    shape = head.shape
    return 0 < shape.size_within(min(head.size, shape.most)) < head.size


def change_of(head: Head | None, held: Joined) -> Change | None:
    """Return the most final thing that has happened to a world that this node holds; None if nothing has."""
    return next(iter(changes_of(head, held)), None)


def first_wanted(changes: Iterable[Change], wanted: Container[Change]) -> Change | None:
    """Return the most final of ``changes`` that is wanted, or that ends the world: nothing comes after that."""
    return next((change for change in changes if change in wanted or change in _THE_END), None)


_THE_END = frozenset({Change.CLOSED, Change.EVICTED})
