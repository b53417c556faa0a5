"""Shrinking: a scenario that fails becomes the smallest one found that still fails the same way, printed as a test.

It is a search among values: a candidate has fewer steps, fewer nodes, a simpler field, less time between two steps, or
is one of these with another seed. The first candidate that fails as the scenario did takes its place, until none does.
It works for whatever is a frozen struct with a tuple of steps somewhere in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from textwrap import wrap
from typing import Any, TypeVar

import msgspec
from msgspec.structs import fields, replace

from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.scenarios import Step
from rendezvous_async.texts import printable

__all__ = ["as_test", "shrink"]

V = TypeVar("V", bound=msgspec.Struct)

TRIES = 2000
SECONDS = 60.0
SEEDS = 5
"""With how many other seeds a candidate is tried: without a node or a step, the same bug may need other luck."""
WIDTH = 100
TAB = "    "


def shrink(
    scenario: V,
    play: Callable[[V], object],
    *,
    tries: int = TRIES,
    seconds: float = SECONDS,
) -> V:
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
    begin = time.monotonic()
    position = 0
    while True:
        for place, candidate in enumerate(_candidates(scenario)):
            if place < position:
                continue  # These did not fail when there was more of everything; they come last.
            if tries == 0 or time.monotonic() - begin > seconds:
                return scenario
            tries -= 1
            found = _failure(candidate, play)
            if found is not None and _kind(found) == _kind(failure):
                scenario, position = candidate, place
                break
        else:
            if position == 0:
                return scenario
            position = 0


def _failure(scenario: V, play: Callable[[V], object]) -> Exception | None:
    try:
        play(scenario)
    except Exception as error:
        return error
    return None


def _kind(error: Exception) -> str:
    return error.guarantee if isinstance(error, BrokenGuaranteeError) else type(error).__name__


# Candidates, those that are much smaller first


def _candidates(scenario: V) -> Iterator[V]:
    yield from _smaller(scenario)
    for seed in range(SEEDS):
        for candidate in _smaller(scenario):
            yield replace(candidate, seed=seed)


def _smaller(scenario: V) -> Iterator[V]:
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
                if field.default not in (msgspec.NODEFAULT, part):
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


# The test


def as_test(scenario: V, play: Callable[[V], object]) -> str:
    """Return a test module that plays a scenario, with the error that it raises now as a comment.

    Args:
        scenario: What to play.
        play: A function of a module; the test imports it by its name.
    """
    failure = _failure(scenario, play)
    why = "" if failure is None else printable(f"{type(failure).__name__}: {failure}")
    comment = "".join(f"{TAB}# {line}\n" for line in wrap(why, WIDTH))
    homes: dict[str, set[str]] = {}
    things: list[Any] = [play, *_types(scenario)]
    for thing in things:
        homes.setdefault(_home(thing), set()).add(thing.__name__)
    imports = "\n".join(f"from {home} import {', '.join(sorted(names))}" for home, names in sorted(homes.items()))
    return f"{imports}\n\n\ndef test_it() -> None:\n{comment}{TAB}{play.__name__}({_code(scenario, TAB)})\n"


def _types(value: Any) -> Iterator[type]:
    if isinstance(value, msgspec.Struct):
        yield type(value)
        for field in fields(value):
            if (part := getattr(value, field.name)) != field.default:
                yield from _types(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _types(part)


def _home(thing: Any) -> str:
    """Return the module to import something from: the package that has its name, rather than the module inside."""
    module: str = thing.__module__
    package = module.rpartition(".")[0]
    return package if thing.__name__ in getattr(import_module(package), "__all__", ()) else module


def _code(value: Any, indent: str) -> str:
    """Return a value as code, without the fields that have their defaults."""
    match value:
        case msgspec.Struct():
            given = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
            parts = [f"{name}={_code(part, indent + TAB)}" for name, part, default in given if part != default]
            before = f"{type(value).__name__}("
        case tuple():
            parts = [_code(part, indent + TAB) for part in value]
            before = "("
        case str():
            return json.dumps(value)
        case _:
            return repr(value)
    comma = "," if before == "(" and len(parts) == 1 else ""
    line = f"{before}{', '.join(parts)}{comma})"
    if len(indent + line) <= WIDTH and "\n" not in line:
        return line
    lines = "".join(f"{indent}{TAB}{part},\n" for part in parts)
    return f"{before}\n{lines}{indent})"
