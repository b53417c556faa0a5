"""Bugs planted on purpose: each is switched on by a test, and the simulation must catch it.

A check that catches none of them is worth nothing. Each row says what is broken and which checks may find it; the test
runs seed after seed until one does. The unbroken library passes the same seeds in ``test_simulate.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from pytest import MonkeyPatch

from rendezvous_async.admin import close_run
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import OUT_AFTER, Commit, Condition, Listing, Session, Write
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.watch import News
from rendezvous_async.core import ranks, rules, shape
from rendezvous_async.core.duty import Duty
from rendezvous_async.core.ranks import Candidate
from rendezvous_async.core.rules import Change, Joined, Notes, Wait
from rendezvous_async.core.shape import Shape
from rendezvous_async.core.state import Head, Last, Phase, Seat, Stamp
from rendezvous_async.core.tally import Tally
from rendezvous_async.node import coordinator, membership, world
from rendezvous_async.node import rendezvous as handler
from rendezvous_async.node.keep_alive import KeepAlive
from rendezvous_async.node.store import Store
from rendezvous_async.settings import Settings, Timeouts
from rendezvous_async.sizes import Sizes
from rendezvous_async.testing import scenarios as simulation
from rendezvous_async.testing.checks import BrokenGuaranteeError, check
from rendezvous_async.testing.cluster import Cluster, NotSettledError
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.loop.clock import LivelockError, run

Plant = Callable[[MonkeyPatch], None]
Play = Callable[[int], None]
BUGS: dict[str, tuple[Plant, frozenset[str], Play]] = {}
SEEDS = 400


def random_scenario(seed: int) -> None:
    simulation.simulate(simulation.scenario_of(seed))


def one_of_two_leaves_during_the_last_call(seed: int) -> None:
    async def play() -> None:
        async with Cluster(nodes=3, min_nodes=2, seed=seed) as cluster:
            cluster.start(0)
            cluster.start(1)
            await anyio.sleep(5)
            cluster.leave(1)
            await anyio.sleep(60)
            check(cluster.history)

    run(play, seed=seed)


def a_round_forms_slowly_in_batches(seed: int) -> None:
    async def play() -> None:
        async with Cluster(nodes=6, min_nodes=6, seed=seed, faults=Faults(delay=0.3), max_writes=4) as cluster:
            for index in range(6):
                cluster.start(index)
            await anyio.sleep(10)
            check(cluster.history)

    run(play, seed=seed)


def a_member_dies_and_stays_dead(seed: int) -> None:
    async def play() -> None:
        async with Cluster(nodes=3, min_nodes=2, seed=seed) as cluster:
            await cluster.join_all()
            cluster.crash(0)
            await cluster.settle()

    run(play, seed=seed)


def bug(*caught_by: str, scenario: Play = random_scenario) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, frozenset(caught_by), scenario)
        return plant

    return add


@bug("closed_is_final")
def leaving_closes_for_all(patch: MonkeyPatch) -> None:
    end = membership.Membership.end

    async def broken(self: membership.Membership, *args: Any) -> bool:
        with anyio.move_on_after(1):
            await close_run(self._backend, "left", self._who.node, self._who.settings)
        return await end(self, *args)

    patch.setattr(membership.Membership, "end", broken)


@bug("out_by_own_clock")
def a_clock_that_is_an_hour_off(patch: MonkeyPatch) -> None:
    """The deadline is taken from another clock than the one it is compared with."""

    async def broken(self: Session, deadline: Deadline) -> None:
        sent_at = anyio.current_time()
        with deadline.bound():
            await self._driver.keep_alive(self.id, deadline)
        self.deadline = sent_at + 3600 + OUT_AFTER * self.ttl

    patch.setattr(Session, "keep_alive", broken)


@bug("out_by_own_clock", "NotSettledError")
def a_node_never_counts_itself_out(patch: MonkeyPatch) -> None:
    patch.setattr(membership.Membership, "is_out", property(lambda self: self.error is not None))

    async def broken(self: KeepAlive) -> None:
        while True:
            await anyio.sleep(self._who.interval)
            with anyio.move_on_after(self._who.interval):
                try:
                    await self._session.keep_alive()
                except Exception:
                    continue

    patch.setattr(KeepAlive, "run", broken)


def _unfenced(*dropped: str) -> Callable[[Duty], dict[str, Stamp | None]]:
    fence = Duty._fence

    def broken(self: Duty) -> dict[str, Stamp | None]:
        return {key: stamp for key, stamp in fence(self).items() if key not in dropped}

    return broken


@bug(
    "one_world_per_round",
    "rounds_only_grow",
    "closed_is_final",
    "only_arrivals_are_in",
    "members_are_accounted_for",
    "ranks_are_exact",
    "size_within_bounds",
    "the_spec_changes_only_by_scaling",
)
def a_stale_coordinator_commits_without_the_token(patch: MonkeyPatch) -> None:
    patch.setattr(Duty, "_fence", _unfenced("state", "coordinator"))


@bug(
    *("closed_is_final", "rounds_only_grow", "one_world_per_round"),
    *("the_spec_changes_only_by_scaling", "size_within_bounds"),
)
def a_stale_head_overwrites_a_close(patch: MonkeyPatch) -> None:
    patch.setattr(Duty, "_fence", _unfenced("state"))


@bug("one_world_per_round", "only_arrivals_are_in", scenario=a_round_forms_slowly_in_batches)
def a_seat_counts_before_the_head_names_its_attempt(patch: MonkeyPatch) -> None:
    admit = rules.admit

    def broken(
        head: Head | None, seat: Seat | None, arrival: str, settings: Settings, last: Last | None
    ) -> rules.Admission:
        if head is not None and seat is not None and seat.arrival == arrival and head.closed is None:
            return Joined(seat.round, seat.rank, head.size, head.token or ("none", 0))
        return admit(head, seat, arrival, settings, last)

    patch.setattr(handler, "admit", broken)


@bug("rounds_only_grow", "one_world_per_round", "one_rank_per_node")
def a_seat_of_an_earlier_arrival_is_taken(patch: MonkeyPatch) -> None:
    admit = rules.admit

    def broken(
        head: Head | None, seat: Seat | None, arrival: str, settings: Settings, last: Last | None
    ) -> rules.Admission:
        return admit(head, seat, seat.arrival if seat is not None else arrival, settings, last)

    patch.setattr(handler, "admit", broken)


@bug("NotSettledError")
def a_watch_event_is_lost(patch: MonkeyPatch) -> None:
    settle = News.settle
    count = 0

    def broken(self: News, listing: Listing) -> Listing | None:
        nonlocal count
        count += 1
        result = settle(self, listing)
        return None if count % 7 == 0 and result is not None and not result.complete else result

    patch.setattr(News, "settle", broken)


@bug("no_ghosts", "NotSettledError")
def a_ghost_stays_in_the_roster(patch: MonkeyPatch) -> None:
    end = Table.end_session

    def broken(self: Table, session: str) -> bool:
        lease = self._sessions.get(session)
        if lease is not None:
            lease.keys = {key for key in lease.keys if "/nodes/" not in key}
        return end(self, session)

    patch.setattr(Table, "end_session", broken)


@bug("ranks_are_exact")
def a_rank_is_given_twice(patch: MonkeyPatch) -> None:
    def broken(settings: Settings, chosen: list[Candidate]) -> dict[str, int]:
        return {candidate.node: candidate.rank or 0 for candidate in chosen}

    patch.setattr(rules, "assign_ranks", broken)


@bug("size_within_bounds", scenario=one_of_two_leaves_during_the_last_call)
def the_last_call_is_never_cancelled(patch: MonkeyPatch) -> None:
    gather = rules._gather

    def broken(tally: Tally, notes: Notes, now: float, attempt: str) -> tuple[rules.Step, Notes]:
        if notes.last_call_ends is not None and 0 < tally.at_barrier < tally.head.settings.min_nodes:
            if notes.last_call_ends > now:
                return Wait(notes.last_call_ends), notes
            return rules._form(tally, attempt), Notes()
        return gather(tally, notes, now, attempt)

    patch.setattr(rules, "_gather", broken)


@bug("size_within_bounds")
def more_than_max_are_let_in(patch: MonkeyPatch) -> None:
    choose = ranks.choose
    patch.setattr(rules, "choose", lambda candidates, shape: choose(candidates, shape.most + 1))


def a_newcomer_makes_three_members_return(seed: int) -> None:
    async def play() -> None:
        async with Cluster(nodes=4, min_nodes=2, seed=seed, faults=Faults(delay=0.3)) as cluster:
            for index in range(3):
                cluster.start(index)
            await anyio.sleep(60)
            cluster.start(3)
            await anyio.sleep(20)
            check(cluster.history)

    run(play, seed=seed)


@bug("members_are_accounted_for", "only_arrivals_are_in", scenario=a_newcomer_makes_three_members_return)
def the_next_round_does_not_wait_for_all_members(patch: MonkeyPatch) -> None:
    count = rules._count

    def broken(tally: Tally, notes: Notes, now: float) -> tuple[rules.Step, Notes]:
        if tally.at_barrier >= tally.head.settings.min_nodes:
            return rules._form(tally, f"early-{now}"), Notes()
        return count(tally, notes, now)

    patch.setattr(rules, "_count", broken)


@bug("rounds_only_grow")
def a_round_number_is_used_again(patch: MonkeyPatch) -> None:
    """After the server forgot everything, only the nodes remember how far the count was."""
    patch.setattr(Tally, "last_round", property(lambda self: self.head.round))


@bug("old_tokens_are_refused")
def store_writes_are_not_fenced(patch: MonkeyPatch) -> None:
    async def broken(self: Store, write: Write, when: Condition | None = None) -> Commit:
        return await self._backend.commit(write, when=[] if when is None else [when])

    patch.setattr(Store, "_write", broken)


@bug("NotSettledError", scenario=a_member_dies_and_stays_dead)
def a_lost_member_is_never_counted(patch: MonkeyPatch) -> None:
    patch.setattr(Tally, "lost", property(lambda self: 0))


@bug("NotSettledError")
def nobody_takes_over_from_a_dead_coordinator(patch: MonkeyPatch) -> None:
    patch.setattr(coordinator, "_may_campaign", lambda view, settings: False)


@bug("NotSettledError", "out_by_own_clock")
def an_evicted_node_is_never_told(patch: MonkeyPatch) -> None:
    change_of = rules.change_of

    def broken(head: Head | None, held: Joined) -> Change | None:
        change = change_of(head, held)
        return None if change is Change.EVICTED else change

    patch.setattr(world, "change_of", broken)
    patch.setattr(membership.Membership, "is_out", property(lambda self: False))


@bug("NotSettledError")
def members_do_not_learn_who_waits(patch: MonkeyPatch) -> None:
    count = rules._count

    def broken(tally: Tally, notes: Notes, now: float) -> tuple[rules.Step, Notes]:
        step, after = count(tally, notes, now)
        if isinstance(step, rules.Rewrite):
            silent = msgspec.structs.replace(step.head, waiting=0, phase=Phase.FORMED)
            return (Wait(), after) if silent == tally.head else (rules.Rewrite(silent), after)
        return step, after

    patch.setattr(rules, "_count", broken)


# Which worlds are valid, and what holds for the run


def a_run_of_a_shape(seed: int) -> None:
    """Play a scenario if its seed draws a shape: the others have nothing to show."""
    scenario = simulation.scenario_of(seed)
    if scenario.elasticity != simulation.Elasticity():
        simulation.simulate(scenario)


def choosing(patch: MonkeyPatch, change: Callable[[Shape], Shape]) -> None:
    """Let members be chosen for another shape than the one that holds."""
    choose = shape.choose
    patch.setattr(rules, "choose", lambda candidates, given: choose(candidates, change(given)))


@bug("size_within_bounds", scenario=a_run_of_a_shape)
def sizes_between_the_allowed_ones_are_taken(patch: MonkeyPatch) -> None:
    choosing(patch, lambda given: replace(given, sizes=Sizes(given.sizes.smallest, given.sizes.largest)))


def a_run_is_scaled_down(seed: int) -> None:
    async def play() -> None:
        async with Cluster(nodes=3, min_nodes=1, seed=seed) as cluster:
            await cluster.join_all()
            await cluster.scale(0, target=2)
            await anyio.sleep(10)
            check(cluster.history)
            await cluster.settle()

    run(play, seed=seed)


@bug("size_within_bounds", scenario=a_run_is_scaled_down)
def a_world_may_exceed_the_target(patch: MonkeyPatch) -> None:
    choosing(patch, lambda given: replace(given, target=None))


@bug("domains_are_whole", scenario=a_run_of_a_shape)
def domains_are_torn(patch: MonkeyPatch) -> None:
    choosing(patch, lambda given: replace(given, domain="", per_domain=1))


@bug("domains_are_whole", scenario=a_run_of_a_shape)
def ranks_are_sticky_without_regard_to_domains(patch: MonkeyPatch) -> None:
    patch.setattr(ranks, "_by_domain", lambda label, per_domain, chosen: ranks._sticky(chosen))


@bug("the_spec_changes_only_by_scaling", scenario=a_run_of_a_shape)
def what_holds_is_forgotten_when_a_round_forms(patch: MonkeyPatch) -> None:
    form = rules._form

    def broken(tally: Tally, attempt: str) -> rules.Form:
        formed = form(tally, attempt)
        return rules.Form(replace(formed.head, target=0), formed.seats)

    patch.setattr(rules, "_form", broken)


def a_run_of_a_shape_on_a_sound_disk(seed: int) -> None:
    """A run that does nothing but form rounds keeps the witness from seeing each arrival when a disk fails."""
    if simulation.scenario_of(seed).server != "log":
        a_run_of_a_shape(seed)


@bug("NotSettledError", "LivelockError", scenario=a_run_of_a_shape_on_a_sound_disk)
def leftovers_count_as_waiting(patch: MonkeyPatch) -> None:
    patch.setattr(Tally, "wanted", property(lambda self: len(self.newcomers)))


@bug("NotSettledError", scenario=a_run_is_scaled_down)
def members_are_not_told_that_their_world_is_too_large(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "_is_resized", lambda head: False)


def newcomers_come_while_they_are_held_back(seed: int) -> None:
    async def play() -> None:
        timeouts = Timeouts(last_call=1, grow=2)
        async with Cluster(nodes=3, min_nodes=1, max_nodes=5, seed=seed, timeouts=timeouts) as cluster:
            cluster.start(0)
            await cluster.settle()
            await cluster.join_all()

    run(play, seed=seed)


@bug("NotSettledError", scenario=newcomers_come_while_they_are_held_back)
def newcomers_are_held_back_for_ever(patch: MonkeyPatch) -> None:
    count = rules._count

    def broken(tally: Tally, notes: Notes, now: float) -> tuple[rules.Step, Notes]:
        step, after = count(tally, notes, now)
        return step, replace(after, held_since=None)

    patch.setattr(rules, "_count", broken)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_caught(name: str, monkeypatch: MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    plant, expected, play = BUGS[name]
    plant(monkeypatch)
    found = ""
    for seed in range(SEEDS):
        try:
            play(seed)
        except BrokenGuaranteeError as breach:
            found = breach.guarantee
        except (NotSettledError, LivelockError) as failure:
            found = type(failure).__name__
        if found:
            break
    assert found in expected, f"{name}: {found or 'nothing'} caught it, expected one of {sorted(expected)}"


def test_there_are_enough_planted_bugs() -> None:
    assert len(BUGS) >= 12
