"""The guarantees of the design, each as a function that finds its violations in a history.

The checks know nothing of the implementation: they read what the backend committed and what nodes believed. ``check``
runs them all and raises on the first violation. To prove that the checks can fail, the tests plant bugs and expect each
to be caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from rendezvous_async.testing.history import (
    Arrived,
    Believed,
    CloseCalled,
    Fault,
    Formed,
    HeadWritten,
    History,
    Released,
    ScaleCalled,
    Settled,
    StoreWritten,
    Vanished,
)
from rendezvous_async.texts import quoted

__all__ = ["CHECKS", "BrokenGuaranteeError", "check"]


class BrokenGuaranteeError(AssertionError):
    """A history violates a guarantee.

    Attributes:
        guarantee: The name of the check.
    """

    def __init__(self, guarantee: str, breach: str) -> None:
        self.guarantee = guarantee
        super().__init__(f"{guarantee}: {breach}")


def check(history: History) -> None:
    """Raise if a history violates a guarantee, or a program has failed.

    Raises:
        BrokenGuaranteeError: A guarantee is violated; the message says which, and how.
        Exception: The program of a node failed with it.
    """
    if not isinstance(history, History):
        raise TypeError(f"check() takes a History, such as cluster.history, not {quoted(history)}")
    history.failures.raise_first()
    for name, find in CHECKS.items():
        for breach in find(history):
            raise BrokenGuaranteeError(name, breach)


def one_world_per_round(history: History) -> Iterator[str]:
    """Find rounds that formed twice, and nodes that hold another world than the one that formed.

    This holds within one epoch: after a data loss, rounds continue from what the remaining nodes remember.
    """
    formed: dict[tuple[str, int], Formed] = {}
    for world in history.of(Formed):
        key = _epoch(world.token), world.round
        if key in formed:
            yield f"round {world.round} formed twice: {formed[key]} and {world}"
        formed[key] = world
    for belief in history.of(Believed):
        truth = formed.get((_epoch(belief.token), belief.round))
        if truth is None:
            yield f"{belief} in a round that never formed"
        elif (belief.size, belief.token) != (truth.size, truth.token):
            yield f"{belief} is not {truth}"
        elif (belief.node, belief.rank) not in {(node, rank) for node, _, rank in truth.seats}:
            yield f"{belief} has a seat that {truth} does not have"


def rounds_only_grow(history: History) -> Iterator[str]:
    """Find rounds that are not larger than the previous one of the epoch or of a member."""
    top: dict[str, int] = {}
    last: dict[str, int] = {}
    for record in history:
        match record:
            case Formed(round=round, token=token):
                if round <= top.get(_epoch(token), 0):
                    yield f"round {round} formed after round {top[_epoch(token)]}"
                top[_epoch(token)] = round
            case Believed(node=node, round=round):
                if round <= last.get(node, 0):
                    yield f"{record} after round {last[node]}"
                last[node] = round
            case Fault(nodes=nodes, kind="crash" | "leave" | "restart" | "end"):
                for node in nodes:
                    last.pop(node, None)  # The next process with this name remembers nothing.
            case _:
                pass


def size_within_bounds(history: History) -> Iterator[str]:
    """Find worlds of a size that the head did not allow when they formed: not listed, or above the target."""
    for world in history.of(Formed):
        shape = world.shape
        if shape is None:
            allowed: Sequence[int] = range(history.min_nodes, history.max_nodes + 1)
            target = None
        else:
            allowed, target = shape.sizes.allowed, shape.target
        if world.size not in allowed or world.size != len(world.seats) or world.size > (target or world.size):
            yield f"{world} where the allowed sizes are {allowed}, and the target {target}"


def domains_are_whole(history: History) -> Iterator[str]:
    """Find worlds with a part of a domain, with members of no domain, or with the ranks of a domain torn apart."""
    for world in history.of(Formed):
        shape = world.shape
        if shape is None or not shape.domain:
            continue
        counts = Counter(world.domains)
        if None in counts or any(count % shape.per_domain for count in counts.values()):
            yield f"{world} has members of {dict(counts)}, and must have multiples of {shape.per_domain}"
        blocks = [domain for domain, _ in groupby(world.domains)]
        if world.ranks in ("sticky", f"label:{shape.domain}") and len(blocks) > len(counts):
            yield f"{world} has domains without contiguous ranks: {world.domains}"


def the_spec_changes_only_by_scaling(history: History) -> Iterator[str]:
    """Find sizes or targets that changed, or were forgotten, though nobody scaled the run.

    Nodes that bring other settings may replace all of them; then the head names other ones that nodes must bring.
    """
    before: HeadWritten | None = None
    calls = changes = 0
    for record in history:
        match record:
            case ScaleCalled():
                calls += 1
            case Fault(kind="lose the server"):
                before = None
            case HeadWritten():
                if before is not None and before.origin == record.origin:
                    changes += record.generation - before.generation
                    same = record.generation == before.generation
                    if record.generation < before.generation or (same and record.spec != before.spec):
                        yield f"{record} after {before}"
                    elif changes > calls:
                        yield f"{record} after {calls} calls of scale()"
                before = record
            case _:
                pass


def ranks_are_exact(history: History) -> Iterator[str]:
    """Find worlds whose ranks are not exactly 0 to size - 1, each once."""
    for world in history.of(Formed):
        if sorted(rank for _, _, rank in world.seats) != list(range(world.size)):
            yield f"{world}"


def only_arrivals_are_in(history: History) -> Iterator[str]:
    """Find seats for arrivals that never happened, or that an earlier round has used."""
    arrived: set[tuple[str, str]] = set()
    used: set[tuple[str, str]] = set()
    for record in history:
        if isinstance(record, Arrived):
            arrived.add((record.node, record.arrival))
        elif isinstance(record, Formed):
            for node, arrival, _ in record.seats:
                if (node, arrival) not in arrived:
                    yield f"{node} is in round {record.round} without having arrived"
                if (node, arrival) in used:
                    yield f"{node} is in round {record.round} by an arrival that an earlier round used"
                used.add((node, arrival))


def one_rank_per_node(history: History) -> Iterator[str]:
    """Find nodes that hold two ranks in one round."""
    ranks: dict[tuple[str, str], int] = {}
    for belief in history.of(Believed):
        held = ranks.setdefault((belief.node, belief.token), belief.rank)
        if held != belief.rank:
            yield f"{belief} held rank {held} in the same round"


def members_are_accounted_for(history: History) -> Iterator[str]:
    """Find rounds that formed while a member of the previous round had neither returned nor been lost."""
    records: dict[str, str] = {}
    members: dict[str, str] = {}
    for record in history:
        if isinstance(record, Arrived):
            records[record.node] = record.arrival
        elif isinstance(record, Vanished):
            records.pop(record.node, None)
        elif isinstance(record, Fault) and record.kind == "lose the server":
            members = {}
        elif isinstance(record, Formed):
            holding = [node for node, arrival in members.items() if records.get(node) == arrival]
            if holding:
                yield f"round {record.round} formed while {holding} held the previous one"
            members = {node: arrival for node, arrival, _ in record.seats}


def closed_is_final(history: History) -> Iterator[str]:
    """Find rounds that formed after a close, runs that were reopened, and closes that no node requested."""
    closed = ""
    called = set()
    for record in history:
        if isinstance(record, CloseCalled):
            called.add(record.node)
        elif isinstance(record, Fault) and record.kind == "lose the server":
            closed = ""  # A server without a data directory loses its state; the README says so.
        elif isinstance(record, HeadWritten):
            if closed and record.closed != closed:
                yield f"{record} after the run was closed by {closed}"
            if record.closed and record.closed not in called:
                yield f"{record}, but {record.closed} never called close()"
            closed = record.closed
        elif isinstance(record, Formed) and closed:
            yield f"{record} after the run was closed by {closed}"


def old_tokens_are_refused(history: History) -> Iterator[str]:
    """Find store writes that were accepted for a round that was not current."""
    for write in history.of(StoreWritten):
        if write.round != write.current:
            yield f"{write}"


def out_by_own_clock(history: History) -> Iterator[str]:
    """Find running nodes that still held a round after their record had expired.

    A paused node cannot know; it must know as soon as it is resumed.
    """
    holds: dict[str, Believed] = {}
    paused: set[str] = set()
    gone: dict[str, Vanished] = {}

    def breaches(at: float) -> Iterator[str]:
        for node, vanished in list(gone.items()):
            if node in holds and node not in paused and at > vanished.at + history.ttl:
                yield f"{node} believes in round {holds[node].round} at {at:.3f}, gone since {vanished.at:.3f}"
                del gone[node]

    for record in history:
        yield from breaches(record.at)
        match record:
            case Believed(node=node):
                holds[node] = record
            case Released(node=node):
                holds.pop(node, None)
            case Vanished(node=node):
                gone[node] = record
            case Arrived(node=node):
                gone.pop(node, None)
            case Fault(kind="pause", nodes=nodes):
                paused.update(nodes)
            case Fault(kind="resume", nodes=nodes, at=at):
                paused.difference_update(nodes)
                for node in nodes:
                    if node in gone:
                        gone[node] = Vanished(at, node)
            case Fault(kind="crash", nodes=nodes):
                for node in nodes:
                    holds.pop(node, None)
            case _:
                pass


def no_ghosts(history: History) -> Iterator[str]:
    """Find records of nodes that do not run, once the cluster has settled."""
    for settled in history.of(Settled):
        ghosts = sorted(set(settled.roster) - set(settled.live))
        if ghosts:
            yield f"{ghosts} have a record at {settled.at:.3f} and do not run"


def _epoch(token: str) -> str:
    return token.rpartition(":")[0]


CHECKS: dict[str, Callable[[History], Iterator[str]]] = {
    function.__name__: function
    for function in (
        one_world_per_round,
        rounds_only_grow,
        size_within_bounds,
        domains_are_whole,
        the_spec_changes_only_by_scaling,
        ranks_are_exact,
        only_arrivals_are_in,
        one_rank_per_node,
        members_are_accounted_for,
        closed_is_final,
        old_tokens_are_refused,
        out_by_own_clock,
        no_ghosts,
    )
}
