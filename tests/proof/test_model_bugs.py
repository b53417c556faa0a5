"""Bugs planted on purpose: each is switched on by a test, and the exploration must catch it.

Each says what is broken, where it shows, and which check catches it; without it the same configurations pass (those
of three nodes in ``test_model.py``). A bug of the coordinator or the rules is planted in the core itself, which is what
the model runs; one of the store or of its sessions in the model's ``Protocol``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest
from msgspec.structs import replace
from pytest import MonkeyPatch

from rendezvous_async.core import duty, ranks, rules, shape
from rendezvous_async.core.duty import Duty, Purpose, Read, Script
from rendezvous_async.core.rules import Admission, Change, Form, HandOver, Joined, Notes, Rewrite, Step, Wait
from rendezvous_async.core.shape import Shape
from rendezvous_async.core.state import COORDINATOR, FORMING, STATE, Head, Last, Phase, Seat, Stamp, seat_key
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.core.transaction import Drop, Seen
from rendezvous_async.settings import Settings
from rendezvous_async.sizes import Sizes
from tests.proof.model import CHECKS, Budget, Config, Protocol, Result, explore
from tests.proof.model.checks import (
    ACCOUNTED,
    AT_THE_BARRIER,
    CLOSED,
    FENCED,
    HERE,
    IN_VAIN,
    KEPT,
    LET_IN,
    NO_GHOST,
    ONE_WORLD,
    PROGRESS,
    RANKS,
    ROUNDS_GROW,
    SEATS_STAY,
    SIZE,
    SPEC,
    TOLD,
    WHOLE,
)
from tests.proof.model.values import HeadRow, RecordRow

Plant: TypeAlias = Callable[[MonkeyPatch], "type[Protocol] | None"]
"""Plants a bug in the core, or returns a protocol that has it."""
Decide: TypeAlias = Callable[[Tally, Notes, float, str], tuple[Step, Notes]]


class Bug(NamedTuple):
    """How a bug is planted, where it shows, and which check catches it."""

    plant: Plant
    config: Config
    caught_by: str


BUGS: dict[str, Bug] = {}


def bug(config: Config, caught_by: str) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        BUGS[plant.__name__] = Bug(plant, config, caught_by)
        return plant

    return add


def two(low: int = 2, max_writes: int | None = None, doomed: bool = False, **trouble: int) -> Config:
    return Config(nodes=2, min_nodes=low, max_nodes=2, max_writes=max_writes, doomed=doomed, budget=Budget(**trouble))


def three(low: int = 2, high: int = 2, max_writes: int | None = None, doomed: bool = False, **trouble: int) -> Config:
    return Config(
        nodes=3, min_nodes=low, max_nodes=high, max_writes=max_writes, doomed=doomed, budget=Budget(**trouble)
    )


# What a coordinator compares


def unfenced(patch: MonkeyPatch, *dropped: str, purposes: tuple[Purpose, ...] = tuple(Purpose)) -> None:
    """Let a coordinator's transactions for these purposes not compare these keys."""
    fence = Duty._fence

    def broken(self: Duty) -> dict[str, Stamp | None]:
        when = fence(self)
        return {key: when[key] for key in when if key not in dropped} if self.script[0][0] in purposes else when

    patch.setattr(Duty, "_fence", broken)


@bug(two(max_writes=3, late=1), SEATS_STAY)
def commits_do_not_compare_the_heads_token(patch: MonkeyPatch) -> None:
    unfenced(patch, STATE)


@bug(two(expire=1, doomed=True), SEATS_STAY)
def commits_compare_neither_the_heads_token_nor_the_post(patch: MonkeyPatch) -> None:
    """Whoever once had the post writes on."""
    unfenced(patch, STATE, COORDINATOR)


@bug(two(max_writes=3, late=1), RANKS)
def batches_and_the_head_do_not_compare_the_attempts_own_key(patch: MonkeyPatch) -> None:
    unfenced(patch, FORMING)


@bug(two(max_writes=3), RANKS)
def the_head_is_sent_before_the_last_batch_has_won(patch: MonkeyPatch) -> None:
    write = Duty._script_of

    def broken(self: Duty, decision: Rewrite | HandOver | Form) -> Script:
        script = write(self, decision)
        return [*script[:-2], script[-1], script[-2]] if len(script) > 1 else script

    patch.setattr(Duty, "_script_of", broken)


@bug(two(leave=1, close=1), CLOSED)
def counts_are_written_whatever_the_head_is_by_now(patch: MonkeyPatch) -> None:
    unfenced(patch, STATE, purposes=(Purpose.REWRITE,))


# What a coordinator deletes


def clean_up_that_spares_the_attempt(patch: MonkeyPatch) -> None:
    clean_up = Duty._clean_up

    def broken(self: Duty, keys: list[str], old: int) -> Script:
        return [(what, writes[1:]) for what, writes in clean_up(self, keys, old)]

    patch.setattr(Duty, "_clean_up", broken)


@bug(two(max_writes=3, late=1), RANKS)
def clean_up_spares_the_attempt(patch: MonkeyPatch) -> None:
    """The coordinator had this bug, and the model found it."""
    clean_up_that_spares_the_attempt(patch)


@bug(three(max_writes=3, expire=1, doomed=True), RANKS)
def clean_up_does_not_compare_the_post_and_spares_the_attempt(patch: MonkeyPatch) -> None:
    """A stale coordinator deletes fresh seats.

    The post alone can be left out: whoever deletes seats ends the attempt, and every attempt compares its own key.
    """
    clean_up_that_spares_the_attempt(patch)
    unfenced(patch, COORDINATOR, purposes=(Purpose.CLEAN_UP,))


@bug(two(leave=1), SEATS_STAY)
def the_seat_of_a_lost_member_is_deleted_at_once(patch: MonkeyPatch) -> None:
    """Not after the head that excludes it, but while others hold the round."""
    write = Duty._script_of

    def broken(self: Duty, decision: Rewrite | HandOver | Form) -> Script:
        script = write(self, decision)
        if isinstance(decision, Rewrite):
            lost = [Drop(seat_key(node)) for node in self.tally.seats if node not in self.tally.records]
            return [(what, (*writes, *lost)) for what, writes in script]
        return script

    patch.setattr(Duty, "_script_of", broken)


# What a coordinator decides


def deciding(patch: MonkeyPatch, broken: Callable[[Decide, Tally, Notes, float, str], tuple[Step, Notes]]) -> None:
    """Let ``broken`` decide; its first argument is the real ``step``."""
    patch.setattr(duty, "step", lambda *given: broken(rules.step, *given))


def rewriting(patch: MonkeyPatch, change: Callable[[Head], Head]) -> None:
    """Let heads that are rewritten be changed before they are written."""
    write = Duty._script_of

    def broken(self: Duty, decision: Rewrite | HandOver | Form) -> Script:
        return write(self, Rewrite(change(decision.head)) if isinstance(decision, Rewrite) else decision)

    patch.setattr(Duty, "_script_of", broken)


@bug(two(leave=1), FENCED)
def a_rewritten_head_forgets_the_rounds_token(patch: MonkeyPatch) -> None:
    """Its own revision is taken for it."""
    rewriting(patch, lambda head: replace(head, token=None))


@bug(two(leave=1), ACCOUNTED)
def gathering_is_announced_as_soon_as_somebody_is_lost(patch: MonkeyPatch) -> None:
    """Members are told that they are out."""
    rewriting(patch, lambda head: replace(head, phase=Phase.GATHERING) if head.lost else head)


@bug(two(back=1), ACCOUNTED)
def the_next_round_is_gathered_as_soon_as_anybody_is_back(patch: MonkeyPatch) -> None:
    def broken(step: Decide, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        if tally.returned:
            tally.holding.clear()
        return step(tally, notes, now, attempt)

    deciding(patch, broken)


@bug(two(low=1, leave=1), PROGRESS)
def a_lost_member_is_never_counted(patch: MonkeyPatch) -> None:
    """The round is held for ever."""

    def broken(step: Decide, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        return (Wait(), notes) if tally.lost else step(tally, notes, now, attempt)

    deciding(patch, broken)


def forming(patch: MonkeyPatch, change: Callable[[Tally, Form], Form]) -> None:
    """Let rounds be changed before they are formed."""

    def broken(step: Decide, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        decision, notes = step(tally, notes, now, attempt)
        return change(tally, decision) if isinstance(decision, Form) else decision, notes

    deciding(patch, broken)


@bug(two(), RANKS)
def everybody_gets_rank_0(patch: MonkeyPatch) -> None:
    forming(patch, lambda _, form: Form(form.head, {node: replace(seat, rank=0) for node, seat in form.seats.items()}))


@bug(two(back=1), ROUNDS_GROW)
def the_next_round_has_the_number_of_the_last(patch: MonkeyPatch) -> None:
    def change(tally: Tally, form: Form) -> Form:
        round = tally.head.round
        seats = {node: replace(seat, round=round) for node, seat in form.seats.items()}
        return Form(replace(form.head, round=round), seats) if round else form

    forming(patch, change)


@bug(two(), SIZE)
def a_round_forms_with_one_node_less_than_min(patch: MonkeyPatch) -> None:
    def broken(step: Decide, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        shape, low = tally.shape, tally.head.settings.min_nodes
        tally.shape = replace(shape, sizes=replace(shape.sizes, smallest=low - 1))
        decided = step(tally, notes, now, attempt)
        tally.shape = shape
        return decided

    deciding(patch, broken)


@bug(two(wipe=1), ONE_WORLD)
def what_nodes_remember_of_rounds_is_forgotten(patch: MonkeyPatch) -> None:
    """The next round is one more than the head's; after a loss of the store, round 1 again."""

    def broken(step: Decide, tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[Step, Notes]:
        records = [(node, replace(record, last=None), order) for node, (record, order) in tally.records.items()]
        return step(tally_of(tally.head, tally.seats, records), notes, now, attempt)

    deciding(patch, broken)


# In which order a coordinator reads


@bug(two(late=1), AT_THE_BARRIER)
def taking_over_reads_the_seats_before_the_head(patch: MonkeyPatch) -> None:
    """So they may be those of the round before."""
    look = Duty.look

    def broken(self: Duty, seen: Seen) -> None:
        if self.unread is Read.ROSTER and not self.script and seen.head is not None and seen.state is not None:
            if seen.post == self._post:
                self.state, self.tally = seen.state, Tally(seen.head, self.tally.seats)
        else:
            look(self, seen)

    patch.setattr(Duty, "look", broken)


@bug(two(late=1), AT_THE_BARRIER)
def a_head_of_another_round_is_adopted_with_the_old_seats_and_roster(patch: MonkeyPatch) -> None:
    look = Duty.look

    def broken(self: Duty, seen: Seen) -> None:
        if self.unread is None and not self.script and seen.head is not None and seen.state is not None:
            self.state, self.tally.head = seen.state, seen.head
        look(self, seen)

    patch.setattr(Duty, "look", broken)


# What nodes read


@bug(two(max_writes=3), ONE_WORLD)
def a_node_takes_a_seat_before_the_head_names_its_attempt(patch: MonkeyPatch) -> None:
    admit = rules.admit

    def broken(head: Head | None, seat: Seat | None, arrival: str, settings: Settings, last: Last | None) -> Admission:
        if head is not None and head.closed is None and seat is not None and seat.arrival == arrival:
            return Joined(seat.round, seat.rank, head.size, head.token or ("", 0))
        return admit(head, seat, arrival, settings, last)

    patch.setattr(rules, "admit", broken)


@bug(two(leave=1), AT_THE_BARRIER)
def a_node_takes_a_seat_that_was_given_to_an_earlier_arrival_of_it(patch: MonkeyPatch) -> None:
    admit = rules.admit

    def broken(head: Head | None, seat: Seat | None, arrival: str, settings: Settings, last: Last | None) -> Admission:
        return admit(head, seat, arrival if seat is None else seat.arrival, settings, last)

    patch.setattr(rules, "admit", broken)


@bug(two(low=1, expire=1), TOLD)
def a_member_does_not_see_that_the_head_is_of_another_round(patch: MonkeyPatch) -> None:
    change_of = rules.change_of

    def broken(head: Head | None, held: Joined) -> Change | None:
        change = change_of(head, held)
        return None if change is Change.EVICTED else change

    patch.setattr(rules, "change_of", broken)


# Which worlds are valid, and what holds for the run


PAIRS = Config(nodes=3, min_nodes=2, max_nodes=2, domains=(1, 1, 2), per_domain=2)
TWO_RACKS = Config(nodes=3, min_nodes=1, max_nodes=3, domains=(1, 2, 1))
TWO_OR_FOUR = Config(nodes=3, min_nodes=2, max_nodes=4, step=2)
LOWERED = Config(nodes=2, min_nodes=1, max_nodes=2, specs=((None, 1),), budget=Budget(scale=1))
RAISED = Config(nodes=2, min_nodes=1, max_nodes=1, specs=(("2:2", None),), budget=Budget(scale=1))
BY_HAND = Config(nodes=2, min_nodes=1, max_nodes=3, by_hand=True, budget=Budget(grow=1))
SCALED_BY_HAND = replace(BY_HAND, specs=(("1:4", None),), budget=Budget(grow=1, scale=1))


def choosing(patch: MonkeyPatch, change: Callable[[Shape], Shape]) -> None:
    """Let members be chosen for another shape than the one that holds."""
    choose = shape.choose
    patch.setattr(rules, "choose", lambda candidates, given: choose(candidates, change(given)))


@bug(three(low=1, high=3), SIZE)
def a_size_between_two_allowed_ones_is_taken(patch: MonkeyPatch) -> type[Protocol]:
    class Steps(Protocol):
        def __init__(self, config: Config) -> None:
            super().__init__(replace(config, step=2))

    choosing(patch, lambda given: replace(given, sizes=Sizes(1, 3)))
    return Steps


@bug(LOWERED, SIZE)
def a_world_may_exceed_the_target(patch: MonkeyPatch) -> None:
    choosing(patch, lambda given: replace(given, target=None))


@bug(PAIRS, WHOLE)
def domains_are_torn(patch: MonkeyPatch) -> None:
    choosing(patch, lambda given: replace(given, domain="", per_domain=1))


@bug(TWO_RACKS, WHOLE)
def ranks_are_sticky_without_regard_to_domains(patch: MonkeyPatch) -> None:
    patch.setattr(ranks, "_by_domain", lambda label, per_domain, chosen: ranks._sticky(chosen))


@bug(LOWERED, SPEC)
def what_holds_is_forgotten_when_a_round_forms(patch: MonkeyPatch) -> None:
    def change(tally: Tally, form: Form) -> Form:
        return Form(replace(form.head, origin="", generation=0, target=0), form.seats)

    forming(patch, change)


@bug(LOWERED, SPEC)
def what_holds_is_overwritten_by_a_coordinator_that_has_not_seen_it(patch: MonkeyPatch) -> None:
    unfenced(patch, STATE)


@bug(LOWERED, PROGRESS)
def members_are_not_told_that_their_world_is_too_large(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "_is_resized", lambda head: False)


@bug(RAISED, KEPT)
def a_world_that_is_too_small_now_is_given_up(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "_is_resized", lambda head: head.size not in head.shape.valid_sizes)


@bug(RAISED, PROGRESS)
def a_scaled_run_is_not_that_of_those_who_founded_it(patch: MonkeyPatch) -> None:
    patch.setattr(Head, "accepts", lambda self, settings: self.settings == settings)


@bug(TWO_OR_FOUR, IN_VAIN)
def newcomers_who_make_no_larger_world_count_as_waiting(patch: MonkeyPatch) -> None:
    patch.setattr(Tally, "wanted", property(lambda self: len(self.newcomers)))


@bug(LOWERED, IN_VAIN)
def the_old_count_of_newcomers_stands_after_scaling(patch: MonkeyPatch) -> type[Protocol]:
    """The model found this one."""

    class Keeping(Protocol):
        def scaled(self, row: HeadRow) -> HeadRow:
            return replace(super().scaled(row), waiting=row.waiting)

    return Keeping


@bug(BY_HAND, IN_VAIN)
def newcomers_are_let_in_though_nobody_asked(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "_holds_back", lambda tally: False)


@bug(BY_HAND, LET_IN)
def newcomers_are_held_back_though_a_member_asked(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "_holds_back", lambda tally: True)


@bug(SCALED_BY_HAND, LET_IN)
def scaling_forgets_that_newcomers_were_let_in(patch: MonkeyPatch) -> type[Protocol]:
    class Forgetful(Protocol):
        def scaled(self, row: HeadRow) -> HeadRow:
            return replace(super().scaled(row), let_in=0)

    return Forgetful


@bug(SCALED_BY_HAND, LET_IN)
def nobody_is_let_in_who_was_not_counted_after_scaling(patch: MonkeyPatch) -> type[Protocol]:
    class Deaf(Protocol):
        def let_in(self, row: HeadRow) -> HeadRow:
            return super().let_in(row) if row.held_back else row

    return Deaf


@bug(SCALED_BY_HAND, LET_IN)
def a_count_forgets_that_newcomers_were_let_in(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "_holds_back", lambda tally: tally.head.waiting == tally.head.returned)


# What the store does


@bug(two(expire=1), NO_GHOST)
def the_store_takes_a_record_whose_session_has_ended(patch: MonkeyPatch) -> type[Protocol]:
    class Ghosts(Protocol):
        def accepts_put(self, open: bool) -> bool:
            return True

    return Ghosts


@bug(two(crash=1), HERE)
def a_session_that_ends_takes_along_what_a_newer_one_wrote(patch: MonkeyPatch) -> type[Protocol]:
    class Greedy(Protocol):
        def goes_with(self, row: RecordRow, session: int) -> bool:
            return True

    return Greedy


def find(name: str, patch: MonkeyPatch) -> Result:
    plant, config, _ = BUGS[name]
    return explore(config, plant(patch) or Protocol)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: MonkeyPatch) -> None:
    result = find(name, monkeypatch)
    print(f"{name}: {result}")
    assert result.broken is not None, f"{name} was not caught in {result.states} states"
    assert result.broken.check == BUGS[name].caught_by, str(result)


def test_every_check_catches_a_bug() -> None:
    assert {bug.caught_by for bug in BUGS.values()} == set(CHECKS)


@pytest.mark.parametrize("config", {bug.config: None for bug in BUGS.values() if bug.config.nodes == 2}, ids=str)
def test_the_unbroken_protocol_passes_where_bugs_are_caught(config: Config) -> None:
    result = explore(config)
    assert result.broken is None, str(result)


def test_a_broken_check_comes_with_the_shortest_way_to_it_in_words(monkeypatch: MonkeyPatch) -> None:
    broken = find("the_head_is_sent_before_the_last_batch_has_won", monkeypatch).broken
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
