"""Sagas: long histories of many rounds each, for proof by sheer number; one seed is one saga.

A saga has chapters. In each, the network is as bad as the chapter says, things happen to the nodes, and the nodes are
restless: they hold a world for a moment only, use its store, and go back to the barrier, so that round after round
forms while things break. At a chapter's end nothing breaks any more and everybody holds still: a round must form
(liveness). At the end of the saga every guarantee is checked in the whole history, and also that no node failed, that
nobody passed a barrier before all were there, and that the library logged no error.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import anyio
import msgspec

from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousFencedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import World
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.checks import BrokenGuaranteeError, check
from rendezvous_async.testing.cluster import Cluster, NetworkKind, NotSettledError
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.history import Fault, Formed, History
from rendezvous_async.testing.loop.clock import run
from rendezvous_async.testing.scenarios import (
    SCALING,
    Elasticity,
    Step,
    come_to_rest,
    draw_close,
    draw_scale,
    draw_step,
    elasticity_of,
    perform,
    server_of,
)
from rendezvous_async.testing.service import ServerKind

__all__ = ["Chapter", "Deeds", "Saga", "play_saga", "saga_of"]

SPIN_LIMIT = 200_000
BARRIER_TIMEOUT = 1.0
CALM_HOLD = 2.0
MENDING = 0.6
"""How probably all nodes run and reach the server again before the next thing happens."""


class Chapter(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A part of a saga.

    Attributes:
        steps: What is done to the cluster.
        faults: How bad the network is.
        hold: The longest time for which a node holds a world.
        joins: So many joins for each node, then all hold their worlds for longer: more of the same proves little.
    """

    steps: tuple[Step, ...] = ()
    faults: Faults = Faults()
    hold: float = 0.05
    joins: int = 300


class Saga(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What a seed stands for; see ``Cluster`` for the settings."""

    seed: int
    nodes: int
    min_nodes: int
    max_nodes: int
    chapters: tuple[Chapter, ...] = ()
    ranks: str = "sticky"
    max_writes: int = 1024
    timeouts: Timeouts = Timeouts()
    interval: float = 1.0
    max_attempt: int = 5
    elasticity: Elasticity = Elasticity()
    network: NetworkKind = "wire"
    server: ServerKind = "memory"


class Deeds(msgspec.Struct, frozen=True):
    """What came to pass in one saga, or in many; ``sizes`` counts the rounds by the size of their worlds."""

    sagas: int = 0
    rounds: int = 0
    faults: int = 0
    seconds: float = 0.0
    sizes: dict[int, int] = {}
    digest: str = ""

    def __add__(self, other: Deeds) -> Deeds:
        return Deeds(
            self.sagas + other.sagas,
            self.rounds + other.rounds,
            self.faults + other.faults,
            self.seconds + other.seconds,
            dict(Counter(self.sizes) + Counter(other.sizes)),
        )


def saga_of(seed: int, network: NetworkKind = "wire") -> Saga:
    """Return the saga that a seed stands for: mostly small worlds, whose rounds are cheap, and some large ones."""
    rng = random.Random(f"saga {seed}")
    low, high = rng.choices(((2, 3), (3, 4), (5, 6), (7, 12), (13, 40)), (50, 25, 18, 6, 1))[0]
    nodes = rng.randint(low, high)
    least = 1 if rng.random() < 0.1 else 2  # Worlds of one form fast and prove little.
    max_nodes = nodes if rng.random() < 0.6 else rng.randint(least, nodes)
    min_nodes = max_nodes if rng.random() < 0.4 else rng.randint(least, max_nodes)
    ranks = rng.choice(("sticky", "sticky", "sorted", "label:rack"))
    max_writes = rng.choice((4, 8, 1024))
    elasticity, grow, scales = elasticity_of(seed, nodes)
    timeouts = Timeouts(
        join=rng.choice((20.0, 120.0)),
        last_call=rng.choice((0.05, 0.5, 5.0)),
        regroup=rng.choice((None, 0.01, 0.3)),
        close=5,
        heartbeat=rng.choice((0.5, 1.0, 5.0)),
        grow=grow,
    )
    interval = rng.choice((0.2, 0.5, 1.0, 1.0))
    max_attempt = rng.choice((3, 5, 10))
    deeds = random.Random(f"deeds {seed}")
    server = server_of(deeds, network)
    unit = elasticity.per_domain if scales else 0
    chapters = tuple(_chapter_of(rng, deeds, nodes, server, unit) for _ in range(rng.randint(1, 8)))
    if rng.random() < 0.2:
        last = chapters[-1]
        steps = (*last.steps, draw_close(deeds, last.steps[-1].at, nodes))
        chapters = (*chapters[:-1], msgspec.structs.replace(last, steps=steps))
    return Saga(
        seed,
        nodes,
        min_nodes,
        max_nodes,
        chapters,
        ranks=ranks,
        max_writes=max_writes,
        timeouts=timeouts,
        interval=interval,
        max_attempt=max_attempt,
        elasticity=elasticity,
        network=network,
        server=server,
    )


def _chapter_of(rng: random.Random, deeds: random.Random, nodes: int, server: ServerKind, scales_by: int) -> Chapter:
    bad = rng.choice((0.0, 0.0, 0.01, 0.05))
    faults = Faults(
        delay=rng.choice((0.0005, 0.001, 0.005, 0.02, 0.1)),
        drop_request=bad,
        drop_reply=bad,
        late=rng.choice((0.0, bad)),
        lateness=rng.choice((1.0, 5.0)),
    )
    hold = rng.choice((0.0, 0.01, 0.02, 0.05, 0.3))
    joins = rng.choice((300, 1000, 2500))
    actions = rng.randint(2, 20)
    pauses = rng.choice(((0.0, 0.01, 0.3), (0.05, 0.3, 1.0), (0.3, 1.0, 4.0)))
    return Chapter(tuple(_draw_steps(deeds, nodes, actions, pauses, server, scales_by)), faults, hold, joins)


def _draw_steps(
    deeds: random.Random, nodes: int, actions: int, pauses: Sequence[float], server: ServerKind, scales_by: int
) -> Iterator[Step]:
    at = 0.0
    for _ in range(actions):
        if deeds.random() < MENDING:
            yield Step(at, "mend")
            at = round(at + deeds.choice(pauses), 2)
        yield draw_step(deeds, at, nodes, server)
        if scales_by and deeds.random() < SCALING:
            yield draw_scale(deeds, at, nodes, scales_by)
        at = round(at + deeds.choice(pauses), 2)
    yield Step(at, "wait")


def play_saga(saga: Saga, watch: Callable[[History], None] = check) -> Deeds:
    """Play a saga in virtual time and check it; ``watch`` is given the history at the end, and raises if it must.

    Raises:
        BrokenGuaranteeError: A guarantee does not hold.
        NotSettledError: Faults have stopped, and no round forms.
        VirtualTimeError: Something hangs or spins.
        Exception: Whatever a node failed with.
    """
    with _errors_logged() as errors:
        history, unsettled = run(_play, saga, seed=saga.seed, spin_limit=SPIN_LIMIT)
    if errors:
        raise BrokenGuaranteeError("no_error_is_logged", errors[0])
    watch(history)
    if unsettled is not None:
        raise unsettled
    formed = history.of(Formed)
    return Deeds(
        sagas=1,
        rounds=len(formed),
        faults=len(history.of(Fault)),
        seconds=max((record.at for record in history), default=0.0),
        sizes=dict(Counter(world.size for world in formed)),
        digest=hashlib.sha256(bytes(history)).hexdigest(),
    )


async def _play(saga: Saga) -> tuple[History, NotSettledError | None]:
    restless = _Restless(random.Random(f"hands {saga.seed}"))
    restless.cluster = cluster = Cluster(
        saga.nodes,
        saga.min_nodes,
        saga.max_nodes,
        seed=saga.seed,
        program=restless.live,
        timeouts=saga.timeouts,
        keep_alive_interval=saga.interval,
        keep_alive_max_attempt=saga.max_attempt,
        ranks=saga.ranks,
        max_writes=saga.max_writes,
        network=saga.network,
        server=saga.server,
        **saga.elasticity.for_cluster,
    )
    async with cluster:
        for chapter in saga.chapters:
            cluster.network.faults = chapter.faults
            restless.begin(chapter)
            await perform(cluster, chapter.steps)
            restless.hold = None
            try:
                await come_to_rest(cluster)
            except NotSettledError as error:
                return cluster.history, error
    return cluster.history, None


class _Restless:
    """What the nodes do: hold a world for a moment, use its store, join again.

    Attributes:
        cluster: Where they do it.
        hold: For how long at most; None: until it changes.
    """

    cluster: Cluster

    def __init__(self, rng: random.Random) -> None:
        self.hold: float | None = None
        self._rng = rng
        self._joins = 0
        self._came: defaultdict[str, set[int]] = defaultdict(set)

    def begin(self, chapter: Chapter) -> None:
        """Begin a chapter."""
        self.hold = chapter.hold
        self._joins = chapter.joins * len(self.cluster.nodes)

    async def live(self, rendezvous: Rendezvous) -> None:
        while True:
            self.cluster.returns(rendezvous)
            try:
                world = await rendezvous.join()
            except (RendezvousClosedError, RendezvousGracefulExitError):
                return
            except RendezvousTimeoutError:
                continue
            with suppress(RendezvousConnectionError, RendezvousFencedError, RendezvousTimeoutError):
                await self._use(world)  # If it fails, the network or the round is to blame: both are under test.
            self._joins -= 1
            hold = self.hold
            if hold is not None:
                hold = self._rng.uniform(0, hold if self._joins > 0 else max(hold, CALM_HOLD))
            with anyio.move_on_after(hold):
                await world.changed()

    async def _use(self, world: World) -> None:
        """Do one of the things that user code does with a world."""
        match self._rng.randrange(8):
            case 0:
                await world.store.set(f"progress of {world.rank}", "some")
            case 1:
                await world.store.add("count", 1)
            case 2:
                members = await world.members()
                if [member.rank for member in members] != list(range(world.size)):
                    raise BrokenGuaranteeError("members_are_all", f"{world}: {members}")
                if members[world.rank].node != world.node:
                    raise BrokenGuaranteeError("members_know_their_rank", f"{world}: {members}")
            case 3 | 4:
                await self._meet(world)
            case _:
                pass

    async def _meet(self, world: World) -> None:
        came = self._came[str(world.token)]
        came.add(world.rank)
        async with world.until_changed():
            await world.store.barrier("met", timeout=BARRIER_TIMEOUT)
            if len(came) < world.size:
                raise BrokenGuaranteeError("nobody_passes_a_barrier_early", f"{world}: only {came} came")


@contextmanager
def _errors_logged() -> Iterator[list[str]]:
    """Collect what the library logs as an error: it does so only for what should never happen."""
    errors: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if " stops: cannot " not in record.getMessage():  # A server whose disk was made to fail says that.
                errors.append(self.format(record))

    library = logging.getLogger("rendezvous_async")
    collector = Collector(logging.ERROR)
    level, propagate, disabled = library.level, library.propagate, logging.root.manager.disable
    library.setLevel(logging.ERROR)
    library.propagate = False
    logging.disable(logging.WARNING)
    library.addHandler(collector)
    try:
        yield errors
    finally:
        library.removeHandler(collector)
        library.setLevel(level)
        library.propagate = propagate
        logging.disable(disabled)
