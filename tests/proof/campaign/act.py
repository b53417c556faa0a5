"""One act: processes come up, faults happen, all is mended, a round forms, a member is killed, everything ends.

Whatever does not go as it must raises ``BrokenGuaranteeError`` here, or in ``verdict.judge``.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.abc

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Delete
from rendezvous_async.core.state import Phase
from rendezvous_async.node.events import EventKind
from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.history import Believed, Formed, History
from tests.proof.campaign.faults import Actor, Fault, faults_of
from tests.proof.campaign.performer import Performer, Plan
from tests.proof.campaign.recorder import Recorder
from tests.proof.campaign.records import Done, Heard, Line
from tests.proof.campaign.stage import Stage
from tests.proof.campaign.verdict import Evidence, judge

__all__ = ["Act"]

TELLING = (EventKind.MEMBER_LOST, EventKind.EVICTED)
AT_ONCE = 3
"""How many faults may be under way at the same time."""


class Act:
    """One act of a campaign.

    Args:
        stage: What it is played on.
        plan: How large it is.
        seed: Of everything random in it, also its name.
        folder: For what its processes write down.

    Attributes:
        faults: How often what was done.
        looked: How many things the checks looked at.
        rounds: How many rounds formed.
        told: Seconds until all other members knew of one that was killed.
    """

    def __init__(self, stage: Stage, plan: Plan, seed: str, folder: Path) -> None:
        self.stage = stage
        self.plan = plan
        self.seed = seed
        self.folder = folder
        self.ttl = plan.ttl
        self.faults: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()
        self.rounds = 0
        self.told: float | None = None
        # A process may be late by its own clock when the machine is busy; the library is not to blame for that.
        history = History(plan.min_nodes, plan.max_nodes, plan.ttl + 2 * plan.pace)
        self.recorder = Recorder(stage, f"act-{seed}", history)
        self._rng = random.Random(seed)
        who = [("node", index) for index in range(plan.nodes)] + [("client", index) for index in range(plan.clients)]
        self.performers = [
            Performer(kind, index, plan, self.recorder, place, folder)
            for (kind, index), place in zip(who, stage.places, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<Act {self.seed} rounds={self.rounds} faults={self.faults.total()}>"

    @property
    def actors(self) -> Sequence[Actor]:
        return self.performers

    async def play(self) -> None:
        """Play it from the beginning to the verdict.

        Raises:
            BrokenGuaranteeError: Something that must hold does not.
        """
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.recorder.follow)
                await self._play()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            with anyio.CancelScope(shield=True):
                for performer in self.performers:
                    if hasattr(performer, "child"):
                        await performer.child.kill()
            self.recorder.look()
            history = self.recorder.history()
            self.rounds = len(history.of(Formed))
            (self.folder / "history.jsonl").write_bytes(bytes(history))
            (self.folder / "commits.jsonl").write_bytes(self.recorder.dump())
        epoch = self.stage.follower.epoch or ""
        self.looked = judge(Evidence(history, self.recorder.lines, self.recorder.commits, epoch))
        await self._clear()

    def note(self, kind: str, *actors: Actor) -> None:
        """Write down what is done to whom."""
        self.recorder.note(kind, *(actor.name for actor in actors if actor.is_node))

    async def _play(self) -> None:
        for performer in self.performers:
            await performer.start(fresh=False)
        await self._settle("at the beginning")
        await self._disturb()
        for performer in self.performers:
            performer.calm = True
            if performer.is_node:
                performer.child.tell("calm")
        await self._settle("after the faults")
        await self._lose_one()
        await self._settle("after a member was lost")
        await self._end()

    async def _disturb(self) -> None:
        kinds = faults_of(self.stage)
        weights = [weight for weight, _ in kinds.values()]
        until = anyio.current_time() + self.plan.pace * self.plan.disturbed
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def strike(kind: str, fault: Fault, seed: int) -> None:
            async with limiter:
                if await fault(self, random.Random(seed)):
                    self.faults[kind] += 1

        async with anyio.create_task_group() as group:
            while anyio.current_time() < until:
                (kind,) = self._rng.choices(list(kinds), weights)
                if limiter.borrowed_tokens < AT_ONCE:
                    group.start_soon(strike, kind, kinds[kind][1], self._rng.getrandbits(64))
                await anyio.sleep(self.plan.pace * (0.1 + self._rng.random()))

    # What must happen when nothing is wrong any more

    async def _settle(self, when: str) -> None:
        """Wait until one round is held by all that can be in it."""
        await self._within(self.plan.settle, f"no round {when}", self._is_quiet)
        self.recorder.settled(self._live())

    def _live(self) -> list[str]:
        return sorted(actor.name for actor in self.performers if actor.is_node and actor.child.running)

    def _is_quiet(self) -> bool:
        head, live = self.recorder.witness.head, set(self._live())
        if head is None or head.phase is not Phase.FORMED or head.waiting or head.lost:
            return False
        seated = {name for name, _, _ in self.recorder.witness.seats(head)}
        believing = {name for name, round in self.recorder.believed.items() if round == head.round}
        everybody = seated == live or (len(seated) == self.plan.max_nodes and seated < live)
        return everybody and believing == seated and set(self.recorder.witness.roster) == live

    async def _lose_one(self) -> None:
        """Kill a member while all is quiet: every other member must learn of it."""
        head = self.recorder.witness.head
        assert head is not None
        seated = {name for name, _, _ in self.recorder.witness.seats(head)}
        victim = self._rng.choice([actor for actor in self.performers if actor.name in seated])
        others = seated - {victim.name}
        self.note("crash", victim)
        began = anyio.current_time()
        self.faults["member kill -9, all else quiet"] += 1
        await victim.child.kill()
        know: dict[str, float] = {}

        def all_know() -> bool:
            for line in self.recorder.lines:
                match line:
                    case Heard(kind=kind, round=head.round) if kind in TELLING and line.at > began:
                        know.setdefault(line.node, line.at)
                    case Believed() if line.round > head.round:
                        know.setdefault(line.node, line.at)
                    case _:
                        pass
            return others <= know.keys()

        await self._within(
            self.plan.settle, f"not all of {sorted(others)} learned that {victim.name} was killed", all_know
        )
        self.told = max(know[name] for name in others) - began

    async def _end(self) -> None:
        """Close the run, or let everybody leave; nothing may be left."""
        clients = [actor for actor in self.performers if not actor.is_node]
        nodes = [actor for actor in self.performers if actor.is_node and actor.child.running]
        for actor in clients:
            actor.child.tell("finish")
        closing = self._rng.random() < 0.5
        if closing:
            self._rng.choice(nodes).child.tell("close")
        else:
            for actor in nodes:
                actor.child.send(signal.SIGTERM)
        for actor in [*nodes, *clients]:
            await self._await_end(actor)
        if closing:  # Closed is final, also for one who comes late.
            late = next(actor for actor in self.performers if actor.child.killed)
            await late.start(fresh=True)
            await self._await_end(late)
        self.recorder.look()
        self._check_ends(closing)
        acknowledged = max((line.revision for line in self.recorder.lines if hasattr(line, "revision")), default=0)
        await self._within(20, "the last commits were not seen", lambda: self.recorder.revision >= acknowledged)
        await self._within(20, "a record is left", lambda: not self.recorder.witness.roster)
        self.recorder.settled([])

    async def _await_end(self, actor: Performer) -> None:
        if not await actor.child.ended_within(self.plan.pace * self.plan.settle):
            raise BrokenGuaranteeError("everything_ends", f"{actor.child} did not end: {actor.child.errors[-2000:]}")

    def _check_ends(self, closing: bool) -> None:
        """Every process that was not killed must have ended in good order."""
        done: dict[str, Line] = {line.who: line for line in self.recorder.lines if isinstance(line, Done)}
        for child in self.recorder.children:
            if not child.killed and child.returncode != 0:
                what = f"{child} ended with {child.returncode}: {child.errors[-2000:]}"
                raise BrokenGuaranteeError("processes_end_in_good_order", what)
        for actor in self.performers:
            ended = done.get(actor.name)
            if not actor.child.killed and not isinstance(ended, Done):
                raise BrokenGuaranteeError("processes_end_in_good_order", f"{actor} ended without a word")
            if closing and actor.is_node and isinstance(ended, Done) and ended.why != "closed":
                raise BrokenGuaranteeError("closed_is_final", f"{actor} was not told that the run is closed: {ended}")

    async def _within(self, seconds: float, otherwise: str, holds: Callable[[], bool]) -> None:
        seconds *= self.plan.pace
        with anyio.move_on_after(seconds):
            while not holds():
                self._check_alive()
                await anyio.sleep(0.05)
            return
        raise BrokenGuaranteeError("liveness", f"{otherwise} within {seconds:g} s: {self._describe()}")

    def _check_alive(self) -> None:
        for child in self.recorder.children:
            if not child.killed and child.returncode not in (None, 0):
                what = f"{child} ended by itself with {child.returncode}: {child.errors[-2000:]}"
                raise BrokenGuaranteeError("processes_end_in_good_order", what)

    def _describe(self) -> str:
        witness = self.recorder.witness
        return (
            f"{witness.head}; roster {witness.roster}; believed {self.recorder.believed}; {self.performers}; "
            f"last words {[line for line in self.recorder.lines if isinstance(line, Heard)][-5:]}"
        )

    async def _clear(self) -> None:
        """Delete the keys of both runs, so that a long campaign does not fill the backend."""
        for run in (self.recorder.run, self.recorder.data_run):
            async with open_backend(self.stage.endpoint, run_id=run) as backend:
                await backend.commit(Delete(""))


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
