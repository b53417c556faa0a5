"""Random scenarios: one seed determines a cluster, a network and a schedule of faults.

A scenario is a value: everything random is drawn before it is played, except what the seed of the loop and of the
network decides. It has two phases. In the first come its steps: nodes crash, freeze, leave, are partitioned and return,
the server loses its data, a node scales or closes the run. In the second there are no more faults, and a round must
form within a bounded time (liveness). Then every guarantee is checked against the history (safety).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import anyio
import msgspec

from rendezvous_async.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousStateError
from rendezvous_async.settings import Timeouts
from rendezvous_async.sizes import MAX_SIMULATED
from rendezvous_async.testing.arguments import check_count, check_seed, check_step
from rendezvous_async.testing.checks import check
from rendezvous_async.testing.cluster import Cluster, NetworkKind, NotSettledError
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.history import Fault, Formed, History
from rendezvous_async.testing.loop.clock import run
from rendezvous_async.testing.loop.describe import check_no_loop
from rendezvous_async.testing.programs import Program, worker
from rendezvous_async.testing.service import ServerKind
from rendezvous_async.texts import quoted

__all__ = [
    "Elasticity",
    "Report",
    "Scenario",
    "Step",
    "come_to_rest",
    "draw_close",
    "draw_scale",
    "draw_step",
    "elasticity_of",
    "perform",
    "play",
    "scenario_of",
    "server_of",
    "simulate",
]

QUIET = Faults()
MAX_ACTIONS = 100_000
SPIN_LIMIT = 50_000
WEIGHTS = {
    "start": 8,
    "crash": 3,
    "restart": 3,
    "leave": 2,
    "pause": 3,
    "resume": 3,
    "partition": 2,
    "heal": 3,
    "lose_server": 1,
}
"""What is drawn, and how often; each is a method of ``Cluster``."""
WEIGHTS_OF_A_LOG = {"restart_server": 1, "lose_power": 4, "fail_sync": 1, "slow_disk": 1}
"""The same for a server with a log, beside the others."""
SCALING = 0.3
"""How probably a run that is scaled is scaled after each of them."""
ACTIONS = frozenset({*WEIGHTS, *WEIGHTS_OF_A_LOG, "close", "mend", "scale", "wait"})


class Step(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One thing that happens to a cluster; one that does not apply has no effect.

    Attributes:
        at: When, in seconds from the first phase's begin.
        do: A method of ``Cluster``, ``mend`` (heal the network, and resume or start every node), ``fail_sync`` (of the
            server's disk, once), ``slow_disk`` or ``wait`` (nothing).
        nodes: Who is concerned. A partition leaves them the server; the first of them that runs closes or scales.
        amount: After how many changes of the disk the power is lost; the latency of a slow disk, in seconds.
        sizes: The sizes to scale the run to; None: they stay.
        target: The target to scale it to; None: it stays.
    """

    at: float
    do: str
    nodes: tuple[int, ...] = ()
    amount: float = 0.0
    sizes: str | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        check_step(self, ACTIONS)


class Elasticity(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The shape of a run's worlds; by default any size, of any nodes.

    Attributes:
        sizes: As for ``Cluster``; empty: its minimum and maximum.
        domain: As for ``Cluster``.
        per_domain: As for ``Cluster``.
    """

    sizes: str = ""
    domain: str = ""
    per_domain: int = 1

    @property
    def for_cluster(self) -> dict[str, Any]:
        """The arguments of ``Cluster`` that it stands for."""
        return {"sizes": self.sizes, "domain": self.domain, "per_domain": self.per_domain}


class Scenario(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What is played: a cluster, its network, and what happens to it.

    Attributes:
        seed: The seed of the loop, of the network and of the nodes.
        nodes: The number of nodes.
        min_nodes: The minimum size of a round.
        max_nodes: The maximum size of a round.
        steps: What happens in the first phase.
        faults: The faults of the network in the first phase.
        ranks: The rank policy.
        max_writes: The limit of writes per commit; with a small one, rounds form in batches.
        timeouts: The timeouts of every node.
        elasticity: The shape of its worlds.
        network: ``wire`` or ``stand-in``.
        server: ``memory``, ``log`` or ``hosted``.
    """

    seed: int
    nodes: int
    min_nodes: int
    max_nodes: int
    steps: tuple[Step, ...] = ()
    faults: Faults = QUIET
    ranks: str = "sticky"
    max_writes: int = 1024
    timeouts: Timeouts = Timeouts()
    elasticity: Elasticity = Elasticity()
    network: NetworkKind = "wire"
    server: ServerKind = "memory"

    def __post_init__(self) -> None:
        for step in self.steps:
            if any(node >= self.nodes for node in step.nodes):
                raise ValueError(f"there are the nodes 0 to {quoted(self.nodes - 1)}, but a step is {quoted(step)}")


class Report(msgspec.Struct, frozen=True):
    """The outcome of a scenario: the rounds that formed, the injected faults, and a digest of the history."""

    scenario: Scenario
    rounds: int
    faults: int
    seconds: float
    digest: str


def scenario_of(
    seed: int, nodes: int | None = None, actions: int | None = None, network: NetworkKind = "wire"
) -> Scenario:
    """Return the scenario of a seed; the numbers of nodes and of faults can be overridden."""
    check_seed(seed)
    for name, given, least, most in (("nodes", nodes, 1, MAX_SIMULATED), ("actions", actions, 0, MAX_ACTIONS)):
        if given is not None:
            check_count(name, given, least, most)
    rng = random.Random(seed)
    count = rng.randint(2, 6) if nodes is None else nodes
    max_nodes = rng.randint(1, count)
    bad = rng.choice((0.0, 0.02, 0.1))
    min_nodes = rng.randint(1, max_nodes)
    ranks = rng.choice(("sticky", "sticky", "sorted", "label:rack"))
    max_writes = rng.choice((4, 8, 1024))
    delay = rng.choice((0.001, 0.02, 0.3))
    faults = Faults(delay=delay, drop_request=bad, drop_reply=bad, late=rng.choice((0.0, bad)))
    length = rng.randint(3, 25) if actions is None else actions
    closes = rng.random() < 0.2
    server = server_of(rng, network)
    rng = random.Random(seed + 1)
    last_call, heartbeat = rng.choice((0.5, 5.0)), rng.choice((1.0, 5.0))
    elasticity, grow, scales = elasticity_of(seed, count)
    timeouts = Timeouts(join=120, last_call=last_call, close=5, heartbeat=heartbeat, grow=grow)
    steps = tuple(_draw_steps(rng, count, length, server, elasticity.per_domain if scales else 0))
    if closes:
        steps = (*steps, draw_close(rng, steps[-1].at, count))
    return Scenario(
        seed,
        count,
        min_nodes,
        max_nodes,
        steps,
        faults,
        ranks=ranks,
        max_writes=max_writes,
        timeouts=timeouts,
        elasticity=elasticity,
        network=network,
        server=server,
    )


def server_of(rng: random.Random, network: NetworkKind) -> ServerKind:
    """Draw a kind of server."""
    kinds: tuple[ServerKind, ...] = ("memory", "memory", "log", "hosted")
    return rng.choice(kinds) if network == "wire" else "memory"


def elasticity_of(seed: int, nodes: int) -> tuple[Elasticity, float, bool]:
    """Return the shape of a seed, the time to grow, and whether the run is scaled; in most cases none of these."""
    rng = random.Random(f"plan {seed}")
    if rng.random() < 0.6:
        return Elasticity(), 0.0, False
    grow, scales = rng.choice((0.0, 0.0, 0.3, 5.0)), rng.random() < 0.5
    if rng.random() < 0.4:
        return Elasticity(f"2:{max(2, nodes - nodes % 2)}", "rack", 2), grow, scales
    step = rng.choice((2, 3))
    listed = ",".join(map(str, sorted(rng.sample(range(1, nodes + 1), min(nodes, 3)))))
    sizes = rng.choice(("", f"{step}:{max(step, nodes - nodes % step)}:{step}", listed))
    return Elasticity(sizes, rng.choice(("", "rack"))), grow, scales


def _draw_steps(rng: random.Random, nodes: int, length: int, server: ServerKind, scales_by: int) -> Iterator[Step]:
    at = 0.0
    for _ in range(length):
        yield draw_step(rng, at, nodes, server)
        if scales_by and rng.random() < SCALING:
            yield draw_scale(rng, at, nodes, scales_by)
        at = round(at + rng.choice((0.0, 0.01, 0.3, 1.0, 4.0, 12.0)), 2)
    yield Step(at, "wait")


def draw_step(rng: random.Random, at: float, nodes: int, server: ServerKind) -> Step:
    """Draw something that happens to a cluster of this many nodes with this server."""
    node = rng.randrange(nodes)
    side = tuple(other for other in range(nodes) if rng.random() < 0.5)
    weights = WEIGHTS | WEIGHTS_OF_A_LOG if server == "log" else WEIGHTS
    match rng.choices(list(weights), list(weights.values()))[0]:
        case "partition":
            return Step(at, "partition", side)
        case "heal" | "lose_server" | "restart_server" | "fail_sync" as do:
            return Step(at, do)
        case "lose_power":
            return Step(at, "lose_power", amount=rng.choice((0, rng.randint(1, 20))))
        case "slow_disk":
            return Step(at, "slow_disk", amount=rng.choice((0.002, 0.1, 1.0)))
        case do:
            return Step(at, do, (node,))


def draw_scale(rng: random.Random, at: float, nodes: int, unit: int) -> Step:
    """Draw how the run is scaled: to sizes of so many units, or to a target, which may not be valid."""
    able = tuple(rng.sample(range(nodes), nodes))
    if rng.random() < 0.5:
        return Step(at, "scale", able, target=unit * rng.randint(0, max(1, nodes // unit)))
    low = unit * rng.randint(1, max(1, nodes // unit))
    return Step(at, "scale", able, sizes=f"{low}:{low + unit * rng.randint(0, 2)}")


def draw_close(rng: random.Random, at: float, nodes: int) -> Step:
    """Draw who closes the run: the first that runs, in a random order."""
    return Step(at, "close", tuple(rng.sample(range(nodes), nodes)))


def simulate(scenario: Scenario, *, watch: Callable[[History], None] = check, program: Program = worker) -> Report:
    """Run a scenario in virtual time and check it.

    Args:
        scenario: What to run.
        watch: Checks the history at the end.
        program: The program of every node.

    Raises:
        BrokenGuaranteeError: A guarantee does not hold.
        NotSettledError: No round forms, though there are no more faults.
        VirtualTimeError: The program hangs or spins.
        Exception: A node failed with it.
    """
    history, error = play(scenario, watch=watch, program=program)
    if error is not None:
        error.add_note(f"The scenario that fails: {scenario}")
        raise error
    return Report(
        scenario,
        rounds=len(history.of(Formed)),
        faults=len(history.of(Fault)),
        seconds=max((record.at for record in history), default=0.0),
        digest=hashlib.sha256(bytes(history)).hexdigest(),
    )


def play(
    scenario: Scenario, *, watch: Callable[[History], None] = check, program: Program = worker
) -> tuple[History, Exception | None]:
    """Do the same, but return the history and what ``simulate`` would raise."""
    check_no_loop()
    cluster = Cluster(
        scenario.nodes,
        scenario.min_nodes,
        scenario.max_nodes,
        seed=scenario.seed,
        faults=scenario.faults,
        program=program,
        timeouts=scenario.timeouts,
        ranks=scenario.ranks,
        max_writes=scenario.max_writes,
        network=scenario.network,
        server=scenario.server,
        **scenario.elasticity.for_cluster,
    )
    unsettled: NotSettledError | None = None
    try:
        unsettled = run(_play, cluster, scenario.steps, seed=scenario.seed, spin_limit=SPIN_LIMIT)
        watch(cluster.history)  # A safety violation says more than a lack of progress, so it comes first.
    except Exception as error:
        return cluster.history, error
    return cluster.history, unsettled


async def _play(cluster: Cluster, steps: Sequence[Step]) -> NotSettledError | None:
    async with cluster:
        await perform(cluster, steps)
        try:
            await come_to_rest(cluster)
        except NotSettledError as error:
            return error
    return None


async def perform(cluster: Cluster, steps: Sequence[Step]) -> None:
    """Let these steps happen to a cluster, each at its time."""
    begin = anyio.current_time()
    for step in steps:
        await anyio.sleep_until(begin + step.at)
        await _act(cluster, step)


async def _act(cluster: Cluster, step: Step) -> None:
    match step.do:
        case "partition":
            cluster.partition(step.nodes)
        case "heal":
            cluster.heal()
        case "lose_server":
            cluster.lose_server()
        case "restart_server":
            cluster.restart_server()
        case "lose_power":
            cluster.lose_power(after=int(step.amount))
        case "fail_sync":
            cluster.disk.failing_syncs = 1
        case "slow_disk":
            cluster.disk.latency = step.amount
        case "mend":
            _mend(cluster)
        case "close" | "scale":
            able = (node for node in step.nodes if cluster.nodes[node].live and not cluster.nodes[node].paused)
            node = next(able, None)
            if node is not None:
                await _rewrite(cluster, node, step)
        case "wait":
            pass
        case method:
            for index in step.nodes:
                getattr(cluster, method)(index)


async def come_to_rest(cluster: Cluster) -> None:
    """End all faults, start every node, and wait until the cluster settles.

    Raises:
        NotSettledError: It does not settle in time.
    """
    cluster.network.faults = QUIET
    if cluster.server == "log":
        cluster.disk.mend()
    _mend(cluster)
    await cluster.settle()


def _mend(cluster: Cluster) -> None:
    cluster.heal()
    for index in range(len(cluster.nodes)):
        cluster.resume(index)
        cluster.start(index)


async def _rewrite(cluster: Cluster, node: int, step: Step) -> None:
    """Let a node close or scale the run, if it can; others may have closed it, or scaled it, meanwhile."""
    with suppress(RendezvousConnectionError):  # It may or may not have happened; the history knows.
        if step.do == "close":
            await cluster.close(node, "end of the scenario")
            return
        with suppress(RendezvousClosedError, RendezvousStateError, ValueError):
            await cluster.scale(node, step.sizes, step.target)
