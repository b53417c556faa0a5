"""Bugs planted on purpose in the model's protocol: each is switched on by a test, and the exploration must catch it.

Each row of ``BUGS`` says what is broken, where it shows, and which check catches it; the unbroken protocol passes the
same configurations (those of three nodes in ``test_model.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from rendezvous_async.core.rules import Admission, Change, Form, Joined, Notes, Step, Wait
from rendezvous_async.core.state import Head, Last, Seat
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.testing.model import CHECKS, Budget, Config, Protocol, Result, explore
from rendezvous_async.testing.model.checks import (
    ACCOUNTED,
    AT_THE_BARRIER,
    CLOSED,
    FENCED,
    HERE,
    NO_GHOST,
    ONE_WORLD,
    PROGRESS,
    RANKS,
    ROUNDS_GROW,
    SEATS_STAY,
    SIZE,
    TOLD,
)
from rendezvous_async.testing.model.duties import Duties
from rendezvous_async.testing.model.values import Commit, Duty, HeadRow, Plan, RecordRow, State


class NoStateToken(Protocol):
    """Commits do not compare the head's token."""

    def fence(self, duty: Duty) -> tuple[int | None, int | None]:
        return None, duty.post


class NoFence(Protocol):
    """Commits compare neither the head's token nor the post: whoever once had the post writes on."""

    def fence(self, duty: Duty) -> tuple[int | None, int | None]:
        return None, None


class NoFormingFence(Protocol):
    """Batches and the head do not compare the attempt's own key."""

    def script(self, duty: Duty, plan: Plan) -> list[Commit]:
        return [replace(commit, forming=None) for commit in super().script(duty, plan)]


class HeadBeforeTheLastBatch(Protocol):
    """The head is sent before every batch of seats has won."""

    def script(self, duty: Duty, plan: Plan) -> list[Commit]:
        script = super().script(duty, plan)
        return [*script[:-2], script[-1], replace(script[-2], state=None, forming=None)] if len(script) > 1 else script


class CleanUpSparesTheAttempt(Protocol):
    """Seats are cleaned up and the attempt under way lives on; the coordinator had this bug, and the model found it."""

    def clean_up(self, duty: Duty) -> Commit:
        return replace(super().clean_up(duty), end=0)


class CleanUpWithoutThePost(Protocol):
    """Clean-up compares only the head, and the attempt under way lives on: a stale coordinator deletes fresh seats.

    The post alone can be left out: whoever deletes seats ends the attempt, and every attempt compares its own key.
    """

    def clean_up(self, duty: Duty) -> Commit:
        return replace(super().clean_up(duty), post=None, end=0)

    def is_doomed(self, state: State, duty: Duty) -> bool:
        return False


class LostSeatsGoAtOnce(Protocol):
    """The seat of a lost member is deleted while others hold the round, not after the head that excludes it."""

    def rewrite(self, duty: Duty, head: HeadRow) -> Commit:
        lost = tuple(node for node, seat in enumerate(duty.seats) if seat is not None and duty.roster[node] is None)
        return replace(super().rewrite(duty, head), drop=lost)


class RewriteForgetsTheToken(Protocol):
    """A rewritten head does not copy the round's token, so its own revision is taken for it."""

    def rewrite(self, duty: Duty, head: HeadRow) -> Commit:
        return super().rewrite(duty, replace(head, token=None))


class RewriteOverwritesAClose(Protocol):
    """Counts are written whatever the head is by now."""

    def rewrite(self, duty: Duty, head: HeadRow) -> Commit:
        return replace(super().rewrite(duty, head), state=None)


class SeatCountsBeforeTheHead(Protocol):
    """A node takes a seat before the head names its attempt."""

    def admit(self, head: Head | None, seat: Seat | None, arrival: str, last: Last | None) -> Admission:
        if head is not None and head.closed is None and seat is not None and seat.arrival == arrival:
            return Joined(seat.round, seat.rank, head.size, head.token or ("", 0))
        return super().admit(head, seat, arrival, last)


class SeatOfAnotherArrival(Protocol):
    """A node takes a seat that was given to an earlier arrival of it."""

    def admit(self, head: Head | None, seat: Seat | None, arrival: str, last: Last | None) -> Admission:
        return super().admit(head, seat, arrival if seat is None else seat.arrival, last)


class GathersTooEarly(Protocol):
    """The next round is gathered as soon as anybody is back, while others hold the last one."""

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        if tally.returned:
            tally.holding.clear()
        return super().step(tally, notes, now, attempt)


class LostMembersHoldOn(Protocol):
    """A lost member is never counted: the round is held for ever."""

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        return (Wait(), notes) if tally.lost else super().step(tally, notes, now, attempt)


class RankGivenTwice(Protocol):
    """Everybody gets rank 0."""

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        decision, notes = super().step(tally, notes, now, attempt)
        if isinstance(decision, Form):
            seats = {node: replace(seat, rank=0) for node, seat in decision.seats.items()}
            decision = Form(decision.head, seats)
        return decision, notes


class OneTooFew(Protocol):
    """A round forms with one node less than min."""

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        settings = tally.head.settings
        tally.head = replace(tally.head, settings=replace(settings, min_nodes=self.config.min_nodes - 1))
        return super().step(tally, notes, now, attempt)


class RoundsStandStill(Protocol):
    """The next round has the number of the last one."""

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        decision, notes = super().step(tally, notes, now, attempt)
        if isinstance(decision, Form) and tally.head.round:
            seats = {node: replace(seat, round=tally.head.round) for node, seat in decision.seats.items()}
            decision = Form(replace(decision.head, round=tally.head.round), seats)
        return decision, notes


class GatheringIsAnnouncedEarly(Protocol):
    """The head says that nobody holds the round as soon as somebody is lost: members are told that they are out."""

    def rewrite(self, duty: Duty, head: HeadRow) -> Commit:
        return super().rewrite(duty, replace(head, formed=0) if head.lost else head)


class RoundsAreForgotten(Protocol):
    """The next round is one more than the head's, whatever nodes remember; after a loss of the store, round 1 again."""

    def step(self, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        records = [(node, replace(record, last=None), order) for node, (record, order) in tally.records.items()]
        return super().step(tally_of(tally.head, tally.seats, records), notes, now, attempt)


class PutsUnderEndedSessions(Protocol):
    """The store takes a record whose session has ended: a ghost."""

    def accepts_put(self, open: bool) -> bool:
        return True


class OldSessionTakesNewKeys(Protocol):
    """A session that ends takes along what a newer session of the same node wrote."""

    def goes_with(self, row: RecordRow, session: int) -> bool:
        return True


class SeatsBeforeTheHead(Duties):
    """Taking over, a coordinator reads the seats before the head, so that they may be those of the round before."""

    def begin(self, state: State, node: int) -> State:
        began = super().begin(state, node)
        duty = began.duties[node]
        assert duty is not None
        early = replace(duty, seats=state.seats)
        return replace(began, duties=(*began.duties[:node], early, *began.duties[node + 1 :]))

    def read_seats(self, state: State, duty: Duty) -> Duty:
        head = self._protocol.stamped(state.head, state.revision)
        return super().read_seats(replace(state, seats=duty.seats), replace(duty, head=head, state=state.revision))


class NeverReadsAgain(Duties):
    """A coordinator that hears of another round's head adopts it, with the seats and the roster that it has."""

    def _follow(self, state: State, duty: Duty) -> Duty | None:
        return replace(duty, head=self._protocol.stamped(state.head, state.revision), state=state.revision)


class EvictionIsNotTold(Protocol):
    """A member does not see that the head is of another round."""

    def change_of(self, head: HeadRow, held: tuple[int, int, int, int, int]) -> Change | None:
        change = super().change_of(head, held)
        return None if change is Change.EVICTED else change


class Bug(NamedTuple):
    """Where a bug shows, and which check catches it."""

    config: Config
    caught_by: str


def two(low: int = 2, max_writes: int | None = None, **trouble: int) -> Config:
    return Config(nodes=2, min_nodes=low, max_nodes=2, max_writes=max_writes, budget=Budget(**trouble))


def three(low: int = 2, high: int = 2, max_writes: int | None = None, **trouble: int) -> Config:
    return Config(nodes=3, min_nodes=low, max_nodes=high, max_writes=max_writes, budget=Budget(**trouble))


BUGS: dict[type[Protocol | Duties], Bug] = {
    NoStateToken: Bug(two(max_writes=3, late=1), SEATS_STAY),
    NoFence: Bug(two(expire=1), SEATS_STAY),
    RewriteOverwritesAClose: Bug(two(leave=1, close=1), CLOSED),
    NoFormingFence: Bug(two(max_writes=3, late=1), RANKS),
    HeadBeforeTheLastBatch: Bug(two(max_writes=3), RANKS),
    CleanUpSparesTheAttempt: Bug(two(max_writes=3, late=1), RANKS),
    CleanUpWithoutThePost: Bug(three(max_writes=3, expire=1), RANKS),
    LostSeatsGoAtOnce: Bug(two(leave=1), SEATS_STAY),
    RewriteForgetsTheToken: Bug(two(leave=1), FENCED),
    SeatCountsBeforeTheHead: Bug(two(max_writes=3), ONE_WORLD),
    SeatOfAnotherArrival: Bug(two(leave=1), AT_THE_BARRIER),
    GathersTooEarly: Bug(two(back=1), ACCOUNTED),
    GatheringIsAnnouncedEarly: Bug(two(leave=1), ACCOUNTED),
    LostMembersHoldOn: Bug(two(low=1, leave=1), PROGRESS),
    RankGivenTwice: Bug(two(), RANKS),
    OneTooFew: Bug(two(), SIZE),
    RoundsStandStill: Bug(two(back=1), ROUNDS_GROW),
    RoundsAreForgotten: Bug(two(wipe=1), ONE_WORLD),
    PutsUnderEndedSessions: Bug(two(expire=1), NO_GHOST),
    OldSessionTakesNewKeys: Bug(two(crash=1), HERE),
    SeatsBeforeTheHead: Bug(two(late=1), AT_THE_BARRIER),
    NeverReadsAgain: Bug(two(late=1), AT_THE_BARRIER),
    EvictionIsNotTold: Bug(two(low=1, expire=1), TOLD),
}


def find(bug: type[Protocol | Duties], config: Config) -> Result:
    if issubclass(bug, Duties):
        return explore(config, duties=bug)
    return explore(config, bug)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: type[Protocol | Duties]) -> None:
    config, caught_by = BUGS[bug]
    result = find(bug, config)
    print(f"{bug.__name__}: {result}")
    assert result.broken is not None, f"{bug.__name__} was not caught in {result.states} states"
    assert result.broken.check == caught_by, str(result)


def test_every_check_catches_a_bug() -> None:
    assert {bug.caught_by for bug in BUGS.values()} == set(CHECKS)


@pytest.mark.parametrize("config", {bug.config: None for bug in BUGS.values() if bug.config.nodes == 2}, ids=str)
def test_the_unbroken_protocol_passes_where_bugs_are_caught(config: Config) -> None:
    result = explore(config)
    assert result.broken is None, str(result)


def test_a_broken_check_comes_with_the_shortest_way_to_it_in_words() -> None:
    broken = find(HeadBeforeTheLastBatch, two(max_writes=3)).broken
    assert broken is not None
    assert str(broken).splitlines() == [
        "'ranks are exactly 0 to size - 1' does not hold: round 1 of size 2 has the ranks [0]",
        "   1. n0 comes",
        "   2. n1 comes",
        "   3. n0 has its record put",
        "   4. n1 has its record put",
        "   5. n0 takes the post",
        "   6. n0 begins to coordinate and reads the head",
        "   7. n0 reads the seats",
        "   8. n0 reads the roster",
        "   9. n0 begins an attempt",
        "  10. n0 writes a batch of seats",
        "  11. n0 writes the head that counts the seats",
    ]
