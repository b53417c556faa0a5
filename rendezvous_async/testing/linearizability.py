"""Checks that a history is linearizable: that each call could have happened atomically between its call and return.

A history is a list of ``Operation`` values: what clients did and saw, each on one key, with the times of call and
return. For each key, ``check_linearizable`` searches for an order that explains the results (Wing and Gong's algorithm
with Lowe's memoization). A call that never returned may have happened at any time after its call, or not at all. All
times come from one clock, that of the recording process.

::

    history = [
        Operation("k", "write", 0.0, 1.0, value=b"1"),
        Operation("k", "read", 2.0, 3.0, value=None),      # too late to see nothing
    ]
    check_linearizable(history)                             # raises AssertionError and shows the conflict
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

__all__ = ["Operation", "check_linearizable"]


class Operation(msgspec.Struct, frozen=True):
    """One call and its result.

    Attributes:
        key: The register.
        kind: ``write`` sets ``value``; ``read`` saw ``value``; ``swap`` set ``value`` if it found ``expected``, and
            ``done`` says whether it did. A value of None is an absent key.
        called_at: The time just before it was sent.
        returned_at: The time just after it was answered; infinite if it never was.
        client: The client, for the message.
    """

    key: str
    kind: Literal["read", "write", "swap"]
    called_at: float
    returned_at: float = math.inf
    value: bytes | None = None
    expected: bytes | None = None
    done: bool = True
    client: str = ""

    @property
    def is_open(self) -> bool:
        """Whether its outcome is unknown."""
        return math.isinf(self.returned_at)

    def __str__(self) -> str:
        returned = "?" if self.is_open else f"{self.returned_at:.6f}"
        what = f"{self.value!r}" if self.kind != "swap" else f"{self.expected!r} -> {self.value!r} {self.done}"
        return f"[{self.called_at:.6f} .. {returned}] {self.client} {self.kind} {self.key} {what}"


def check_linearizable(history: Iterable[Operation], initial: bytes | None = None) -> None:
    """Raise AssertionError if no order of the calls explains the history.

    Args:
        history: In any order.
        initial: What every key holds at first.
    """
    by_key: dict[str, list[Operation]] = {}
    for operation in history:
        if not (operation.kind == "read" and operation.is_open):  # An unanswered read shows nothing.
            by_key.setdefault(operation.key, []).append(operation)
    for key, operations in by_key.items():
        operations.sort(key=lambda operation: operation.called_at)
        stuck = _search(operations, initial)
        if stuck is not None:
            lines = "\n  ".join(str(operation) for operation in stuck)
            raise AssertionError(f"the history of {key!r} is not linearizable; no order gets past these:\n  {lines}")


def _apply(operation: Operation, state: bytes | None) -> tuple[bool, bytes | None]:
    """Return whether an operation fits a register that holds ``state``, and the state afterwards."""
    match operation.kind:
        case "read":
            return operation.value == state, state
        case "write":
            return True, operation.value
        case "swap":
            if operation.is_open:
                return True, operation.value if state == operation.expected else state
            if operation.done:
                return state == operation.expected, operation.value
            return state != operation.expected, state


def _search(operations: Sequence[Operation], initial: bytes | None) -> list[Operation] | None:
    """Search orders depth-first; return the calls at the deepest dead end, or None if an order was found.

    A node of the search is the set of calls that have happened (one bit each) and the state. The next call may be any
    that was sent before the first return among those that have not happened.
    """
    closed = sum(1 << index for index, operation in enumerate(operations) if not operation.is_open)
    tried: set[tuple[int, bytes | None]] = set()
    stack: list[tuple[int, bytes | None]] = [(0, initial)]
    furthest, dead_end = -1, 0
    while stack:
        happened, state = stack.pop()
        if happened & closed == closed:
            return None
        if (happened, state) in tried:
            continue
        tried.add((happened, state))
        if (count := (happened & closed).bit_count()) > furthest:
            furthest, dead_end = count, happened
        stack.extend(
            (happened | 1 << index, after)
            for index in _next(operations, happened)
            for fits, after in (_apply(operations[index], state),)
            if fits
        )
    return [operations[index] for index in _next(operations, dead_end)]


def _next(operations: Sequence[Operation], happened: int) -> list[int]:
    """Return the calls that may happen next, the best guess last: the one that returned first."""
    first_return = math.inf
    possible = []
    lowest = (~happened & (happened + 1)).bit_length() - 1
    for index in range(lowest, len(operations)):
        operation = operations[index]
        if operation.called_at > first_return:
            break
        if not happened >> index & 1:
            possible.append(index)
            first_return = min(first_return, operation.returned_at)
    possible = [index for index in possible if operations[index].called_at <= first_return]
    return sorted(possible, key=lambda index: -operations[index].returned_at)
