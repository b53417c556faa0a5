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
import msgspec

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Delete
from rendezvous_async.core.state import Phase
from rendezvous_async.testing.campaign import client, node
from rendezvous_async.testing.campaign.faults import Actor, Fault, faults_of
from rendezvous_async.testing.campaign.processes import Child
from rendezvous_async.testing.campaign.recorder import Recorder
from rendezvous_async.testing.campaign.records import Done, Heard, Line
from rendezvous_async.testing.campaign.stage import Place, Stage
from rendezvous_async.testing.campaign.verdict import Evidence, judge
from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.history import Believed, Formed, History

__all__ = ["Act", "Plan"]

AT_ONCE = 3
"""How many faults may be under way at the same time."""


class Plan(msgspec.Struct, frozen=True):
    """How large an act is, and how long things may take.

    Attributes:
        nodes: How many nodes, of which a round takes ``min_nodes`` to ``max_nodes``.
        clients: How many clients.
        disturbed: Seconds of faults.
        interval: Between keep-alives; the TTL is ``max_attempt`` of it.
        settle: Seconds within which a round must form when nothing is wrong any more.
    """

    nodes: int = 6
    min_nodes: int = 3
    max_nodes: int = 5
    clients: int = 2
    disturbed: float = 20.0
    interval: float = 0.5
    max_attempt: int = 8
    settle: float = 60.0

    @property
    def ttl(self) -> float:
        return self.interval * self.max_attempt


class Performer:
    """A node or a client of an act, process after process."""

    def __init__(self, act: Act, kind: str, index: int, place: Place) -> None:
        self.is_node = kind == "node"
        self.busy = False
        self.place = place
        self.child: Child
        self._act = act
        self._base = f"{kind}-{index}"
        self._generation = 0
        self.name = self._base

    def __repr__(self) -> str:
        return f"<Performer {self.name} {getattr(self, 'child', None)!r}>"

    async def start(self, *, anew: bool) -> None:
        """Start its next process; a client always has a new name, so that no two values are ever equal."""
        self._generation += 1
        if anew or not self.is_node:
            self.name = f"{self._base}.{self._generation}"
        act, plan = self._act, self._act.plan
        self.child = Child(f"{self._base}~{self._generation}", act.folder, self.place.prefix)
        act.recorder.children.append(self.child)
        seed, notebook = f"{act.seed}/{self.child.name}", str(self.child.notebook)
        options: node.Options | client.Options
        if self.is_node:
            options = node.Options(
                self.place.endpoint,
                act.recorder.run,
                self.name,
                f"{plan.min_nodes}:{plan.max_nodes}",
                plan.interval,
                plan.max_attempt,
                seed,
                notebook,
                act.calm,
            )
        else:
            options = client.Options(self.place.endpoint, act.recorder.data_run, self.name, seed, notebook)
        module = "node" if self.is_node else "client"
        arguments = msgspec.json.encode(options).decode()
        await self.child.start("-m", f"rendezvous_async.testing.campaign.{module}", arguments)


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
        self.calm = False
        self.faults: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()
        self.rounds = 0
        self.told: float | None = None
        # A process may be late for its own clock when the machine is busy: that is no fault of the library.
        history = History(plan.min_nodes, plan.max_nodes, plan.ttl + 2)
        self.recorder = Recorder(stage, f"act-{seed}", history)
        self._rng = random.Random(seed)
        performers = [Performer(self, "node", index, stage.places[index]) for index in range(plan.nodes)]
        performers += [
            Performer(self, "client", index, stage.places[plan.nodes + index]) for index in range(plan.clients)
        ]
        self.performers = performers

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
            await performer.start(anew=False)
        await self._settle("at the beginning")
        await self._disturb()
        self.calm = True
        for performer in self.performers:
            performer.child.tell("calm" if performer.is_node else "")
        await self._settle("after the faults")
        await self._lose_one()
        await self._settle("after a member was lost")
        await self._end()

    async def _disturb(self) -> None:
        kinds = faults_of(self.stage)
        weights = [weight for weight, _ in kinds.values()]
        until = anyio.current_time() + self.plan.disturbed
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def strike(kind: str, fault: Fault, seed: int) -> None:
            async with limiter:
                if await fault(self, random.Random(seed)):
                    self.faults[kind] += 1

        async with anyio.create_task_group() as group:
            number = 0
            while anyio.current_time() < until:
                (kind,) = self._rng.choices(list(kinds), weights)
                number += 1
                if limiter.borrowed_tokens < AT_ONCE:
                    group.start_soon(strike, kind, kinds[kind][1], self._rng.getrandbits(64))
                await anyio.sleep(0.1 + self._rng.random())

    # What must happen when nothing is wrong any more

    async def _settle(self, when: str) -> None:
        """Wait until one round is held by all that can be in it, and every client gets answers."""
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
                if (isinstance(line, Heard) and line.at > began and line.round == head.round) or (isinstance(line, Believed) and line.at > began and line.round > head.round):
                    know.setdefault(line.node, line.at)
            return others <= know.keys()

        await self._within(
            self.ttl + 15, f"not all of {sorted(others)} learned that {victim.name} was killed", all_know
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
            if not await actor.child.ended_within(self.plan.settle):
                raise BrokenGuaranteeError(
                    "everything_ends", f"{actor.child} did not end: {actor.child.errors[-2000:]}"
                )
        self.recorder.look()
        self._check_ends(closing)
        acknowledged = max((line.revision for line in self.recorder.lines if hasattr(line, "revision")), default=0)
        await self._within(20, "the last commits were not seen", lambda: self.recorder.revision >= acknowledged)
        await self._within(20, "a record is left", lambda: not self.recorder.witness.roster)
        self.recorder.settled([])

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
