"""Shrinking: a scenario that fails becomes the smallest one found that still fails the same way.

It is a search among values: a candidate has fewer steps, fewer nodes, a simpler field, less time between two steps, or
is one of these with another seed. The first candidate that fails as the scenario did takes its place, until none does.
It works for any frozen struct with the numbers of nodes and, somewhere inside, a tuple of steps. Its ``repr`` is code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import fields, replace

from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.scenarios import Step

__all__ = ["shrink"]

V = TypeVar("V", bound=msgspec.Struct)

TRIES = 2000
SECONDS = 60.0
SEEDS = 5
"""With how many other seeds a candidate is tried: without a node or a step, the same bug may need other luck."""


def shrink(scenario: V, play: Callable[[V], object], *, tries: int = TRIES, seconds: float = SECONDS) -> V:
    """Return the smallest scenario found that fails as this one does: in the same guarantee, or with the same error.

    Args:
        scenario: A scenario that fails.
        play: Plays a scenario and raises if it fails: ``simulate``, or a function that passes it a program.
        tries: How many candidates are played at most.
        seconds: After so many seconds of real time, no other candidate is played.

    Raises:
        ValueError: The scenario does not fail.
    """
    failure = _failure(scenario, play)
    if failure is None:
        raise ValueError(f"this scenario does not fail, so there is nothing to shrink: {scenario}")
    end = time.monotonic() + seconds
    seeds = (None, *range(SEEDS))
    tried = place = stage = 0

    def find(seed: int | None, first: int) -> tuple[int, V] | None:
        nonlocal tried
        for place, candidate in enumerate(_smaller(scenario)):
            if place >= first and tried < tries and time.monotonic() < end:
                tried += 1
                reseeded = candidate if seed is None else replace(candidate, seed=seed)
                found = _failure(reseeded, play)
                if found is not None and _kind(found) == _kind(failure):
                    return place, reseeded
        return None

    while stage < len(seeds):
        found = find(seeds[stage], place)
        if found is not None:
            place, scenario = found  # Those before did not fail when there was more of everything: they come last.
        elif place:
            place = 0
        else:
            stage += 1
    return scenario


def _failure(scenario: V, play: Callable[[V], object]) -> Exception | None:
    try:
        play(scenario)
    except Exception as error:
        return error
    return None


def _kind(error: Exception) -> str:
    return error.guarantee if isinstance(error, BrokenGuaranteeError) else type(error).__name__


def _smaller(scenario: V) -> Iterator[V]:
    """Yield candidates: those that are much smaller first."""
    yield from _less(scenario)
    nodes, least, most = (getattr(scenario, name) for name in ("nodes", "min_nodes", "max_nodes"))
    for node in reversed(range(nodes if nodes > 1 else 0)):
        rest = _without(scenario, node)
        for fewer in (1, 0):
            max_nodes = min(max(most - fewer, 1), nodes - 1)
            yield replace(rest, nodes=nodes - 1, max_nodes=max_nodes, min_nodes=min(max(least - fewer, 1), max_nodes))


def _less(value: Any) -> Iterator[Any]:
    """Yield values with a part cut out or replaced by its default."""
    match value:
        case Step():
            pass  # It is needed as it is, or not at all.
        case msgspec.Struct():
            for field in fields(value):
                part = getattr(value, field.name)
                if field.default is not msgspec.NODEFAULT and part is not field.default:  # repr goes by identity, too
                    yield replace(value, **{field.name: field.default})
                for less in _less(part):
                    yield replace(value, **{field.name: less})
        case (msgspec.Struct(), *_):
            size = len(value) // 2
            while size:
                for begin in range(0, len(value), size):
                    yield value[:begin] + value[begin + size :]
                size //= 2
            for index, part in enumerate(value):
                for less in _less(part):
                    yield (*value[:index], less, *value[index + 1 :])
            yield from _sooner(value)
        case _:
            pass


def _sooner(steps: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the steps with one of them at the time of its predecessor, and all later ones sooner by as much."""
    before = 0.0
    for index, step in enumerate(steps):
        if isinstance(step, Step) and step.at > before:
            gap, before = step.at - before, step.at
            yield (*steps[:index], *(replace(late, at=round(late.at - gap, 3)) for late in steps[index:]))


def _without(value: Any, node: int) -> Any:
    """Return a value without a node; those after it move up."""
    match value:
        case Step(nodes=nodes):
            return replace(value, nodes=tuple(other - (other > node) for other in nodes if other != node))
        case msgspec.Struct():
            return replace(value, **{name: _without(getattr(value, name), node) for name in value.__struct_fields__})
        case (msgspec.Struct(), *_):
            return tuple(
                _without(part, node) for part in value if not (isinstance(part, Step) and part.nodes == (node,))
            )
        case _:
            return value
