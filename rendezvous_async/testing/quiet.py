"""When a cluster is quiet: the largest round is held, or none can form, or the run is closed."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence

import anyio

from rendezvous_async.core.shape import Shape, largest_size
from rendezvous_async.core.state import Phase
from rendezvous_async.settings import Timeouts
from rendezvous_async.testing.nodes import SimulatedNode
from rendezvous_async.testing.witness import Witness

__all__ = ["STUBBORN", "NotSettledError", "end_programs", "is_quiet", "patience_of", "until_quiet"]

LOOK_EVERY = 0.1
ENDS_WITHIN = 3600.0
"""Seconds that a cancelled program has to clean up."""
STUBBORN = f"the program did not end within {ENDS_WITHIN:g} s of its cancellation: does it catch CancelledError?"


class NotSettledError(AssertionError):
    """An undisturbed cluster did not settle in time: a round that should form has not."""


def patience_of(timeouts: Timeouts, ttl: float) -> float:
    """Return the seconds in which an undisturbed cluster must be quiet."""
    held_back = timeouts.grow if timeouts.grow < math.inf else 0.0
    return timeouts.last_call + held_back + 6 * ttl + 30


def is_quiet(nodes: Sequence[SimulatedNode], witness: Witness, shape: Shape, timeouts: Timeouts) -> bool:
    """Return whether a cluster with a server is quiet.

    Args:
        nodes: Its nodes.
        witness: Knows what the server holds.
        shape: What the nodes ask for; it holds until the run has a head.
        timeouts: The nodes' timeouts.
    """
    head, roster = witness.head, set(witness.roster)
    live = [node for node in nodes if node.live]
    if head is not None and head.closed is not None:
        return not live and not roster
    if roster != {node.name for node in live}:
        return False
    shape = shape if head is None else head.shape
    largest = largest_size(Counter(shape.domain and node.labels[shape.domain] for node in live), shape)
    if not largest and not any(node.holds for node in live):
        return True
    if head is None or head.phase is not Phase.FORMED or head.waiting or head.lost:
        return False
    holding = {node.name for node in live if node.holds is not None and node.holds.round == head.round}
    seated = {node for node, _, _ in witness.seats(head)}
    waits_for_a_call = head.held_back > 0 and timeouts.grow == math.inf
    return holding == seated and (largest in (0, head.size) or waits_for_a_call)


async def until_quiet(
    is_quiet: Callable[[], bool], check: Callable[[], None], seconds: float, describe: Callable[[], str]
) -> None:
    """Wait until a cluster is quiet.

    Args:
        is_quiet: Returns whether it is.
        check: Raises if waiting is useless.
        seconds: How long to wait.
        describe: Returns the state of the cluster, for the error.

    Raises:
        NotSettledError: It is not quiet in time.
    """
    deadline = anyio.current_time() + seconds
    while True:
        check()
        if is_quiet():
            return
        if anyio.current_time() >= deadline:
            raise NotSettledError(f"not settled after {seconds:g} s: {describe()}")
        await anyio.sleep(LOOK_EVERY)


async def end_programs(nodes: Sequence[SimulatedNode]) -> list[SimulatedNode]:
    """Cancel the programs that run, and return the nodes of those that do not end."""
    running = {node.task: node for node in nodes if node.live and node.task is not None}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=ENDS_WITHIN)
    return [node for task, node in running.items() if not task.done()]
