"""Breadth first through every state that can be reached; the first broken check comes with the shortest way to it.

A state is kept only as a digest of its canonical form, with its predecessor: memory is bounded by the number of
states, and the way to one is found by walking it once more.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from tests.proof.model.canonical import canonical, compact, encode
from tests.proof.model.checks import PROGRESS, broken_by, broken_in, is_settled
from tests.proof.model.moves import Moves
from tests.proof.model.protocol import Config, Protocol
from tests.proof.model.values import State, start

__all__ = ["Broken", "Result", "explore"]


class Broken(msgspec.Struct, frozen=True):
    """A check that does not hold.

    Attributes:
        check: Which.
        detail: What was seen.
        trace: The shortest way to it, one move after another, in words.
    """

    check: str
    detail: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = "".join(f"\n  {number:2}. {move}" for number, move in enumerate(self.trace, 1))
        return f"{self.check!r} does not hold: {self.detail}{steps}"


class Result(msgspec.Struct, frozen=True):
    """What an exploration has found.

    Attributes:
        config: What was explored.
        states: How many states there are, counting those that differ only in names once.
        moves: How many moves lead from one to another.
        depth: How many moves the farthest state is away.
        seconds: How long it took.
        broken: The first check that does not hold, if there is one.
    """

    config: Config
    states: int
    moves: int
    depth: int
    seconds: float
    broken: Broken | None = None

    def __str__(self) -> str:
        verdict = "every check holds" if self.broken is None else str(self.broken)
        return (
            f"{self.config}: {self.states:,} states, {self.moves:,} moves, depth {self.depth}, "
            f"{self.seconds:.1f} s: {verdict}"
        )


def explore(config: Config, protocol: type[Protocol] = Protocol) -> Result:
    """Visit every state that ``config`` allows, and check each of them; stop at the first check that is broken.

    Args:
        config: How many nodes, which sizes, how much trouble.
        protocol: What nodes and the store do; or one with a bug planted in it.
    """
    rules = protocol(config)
    return _Exploration(rules, Moves(rules)).run()


class _Exploration:
    """One walk through everything; states are numbered as they are found."""

    def __init__(self, protocol: Protocol, moves: Moves) -> None:
        self._config = protocol.config
        self._protocol = protocol
        self._moves = moves
        self._known: dict[bytes, int] = {}
        self._parents = array("L")
        self._settled = bytearray()
        self._edges = array("L")
        self._ends = array("L")
        self._count = 0

    def run(self) -> Result:
        began = time.perf_counter()
        collects = gc.isenabled()
        gc.disable()  # Millions of tuples come and go, and none of them is part of a cycle.
        try:
            broken, depth = self._search()
            if broken is None and (stuck := self._stuck()) is not None:
                trace, state = self._walk(stuck)
                broken = Broken(PROGRESS, f"no free move leads on from {state}", tuple(trace))
        finally:
            if collects:
                gc.enable()
        seconds = time.perf_counter() - began
        return Result(self._config, len(self._parents), self._count, depth, seconds, broken)

    def _search(self) -> tuple[Broken | None, int]:
        """Visit every state, level by level; return the first broken check, and how deep it went."""
        first = canonical(start(self._config.nodes, self._config.budget, self._config.domains))
        self._add(_digest(first), 0, first)
        level, depth, index = [first], 0, 0
        before: dict[bytes, int] = {}
        while level:
            following: list[State] = []
            seen: dict[bytes, int] = {}  # As moves make them: most come in several ways, and need no canonical form.
            for state in level:
                for _, free, after in self._moves.of(state):
                    for check, _ in broken_by(state, after, self._protocol):
                        return self._broken(check, index), depth + 1
                    digest = _digest(after)
                    there = seen.get(digest, before.get(digest))
                    if there is None:
                        form = canonical(after)
                        there = self._known.get(name := _digest(form))
                        if there is None:
                            for check, _ in broken_in(after, self._protocol):
                                return self._broken(check, index), depth + 1
                            there = self._add(name, index, form)
                            following.append(form)
                        seen[digest] = there
                    if there != index:
                        self._count += 1
                        if free:
                            self._edges.append(there)
                self._ends.append(len(self._edges))
                index += 1
            level, before = following, seen
            depth += bool(level)
        return None, depth

    def _add(self, digest: bytes, parent: int, state: State) -> int:
        index = self._known[digest] = len(self._parents)
        self._parents.append(parent)
        self._settled.append(is_settled(state, self._protocol))
        return index

    def _stuck(self) -> int | None:
        """Return the first state from which no free moves lead to a settled one; None if there is none."""
        good, ends, edges = self._settled, self._ends, self._edges
        found = True
        while found:
            found = False
            for index in range(len(good) - 1, -1, -1):
                if not good[index]:
                    begin = ends[index - 1] if index else 0
                    if any(good[there] for there in edges[begin : ends[index]]):
                        good[index] = found = True
        return good.find(0) if 0 in good else None

    def _broken(self, check: str, index: int) -> Broken:
        """Return what is broken by a move from a state, with the way to it."""
        trace, state = self._walk(index)
        for what, _, after in self._moves.of(state):
            for found, detail in (*broken_by(state, after, self._protocol), *broken_in(after, self._protocol)):
                if found == check:
                    return Broken(check, detail, (*trace, what))
        raise AssertionError(f"a move that breaks {check!r} cannot be found again")

    def _walk(self, index: int) -> tuple[list[str], State]:
        """Return the moves to a state, and that state with the names that the nodes have on this way."""
        digests = {number: digest for digest, number in self._known.items()}
        state = start(self._config.nodes, self._config.budget, self._config.domains)
        trace: list[str] = []
        for goal in self._way(index):
            for what, _, after in self._moves.of(state):
                if _digest(canonical(after)) == digests[goal]:
                    trace.append(what)
                    state = compact(after)
                    break
            else:
                raise AssertionError("a state that was found cannot be found again")
        return trace, state

    def _way(self, index: int) -> Iterator[int]:
        way = []
        while index:
            way.append(index)
            index = self._parents[index]
        return reversed(way)


def _digest(state: State) -> bytes:
    return blake2b(encode(state), digest_size=16).digest()
