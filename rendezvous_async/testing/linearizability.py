"""Is a history of calls linearizable: could they have happened one at a time, each between its call and its return?

A history is what clients did and saw: ``Operation`` values, each on one key, with the times of its call and of its
return. ``check_linearizable`` looks, for each key by itself, for an order that explains what was seen (Wing and Gong's
search, with Lowe's memory of what was tried). A call whose return was never seen may have happened at any time after
its call, or not at all. Times come from one clock, that of the process which recorded them.

::

    history = [
        Operation("k", "write", 0.0, 1.0, value=b"1"),
        Operation("k", "read", 2.0, 3.0, value=None),      # too late to still see nothing
    ]
    check_linearizable(history)                             # raises AssertionError, and shows what is in the way
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

__all__ = ["Operation", "check_linearizable"]


class Operation(msgspec.Struct, frozen=True):
    """One call and what came of it.

    Attributes:
        key: The register.
        kind: ``write`` sets ``value``; ``read`` saw ``value``; ``swap`` set ``value`` if it found ``expected``, and
            ``done`` tells whether it did. A value of None is an absent key.
        called_at: Just before it was sent.
        returned_at: Just after it was answered; infinite if it never was.
        client: Who did it, for the message.
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
        """Whether nobody knows if it happened."""
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
        if not (operation.kind == "read" and operation.is_open):  # a read that nobody saw tells nothing
            by_key.setdefault(operation.key, []).append(operation)
    for key, operations in by_key.items():
        operations.sort(key=lambda operation: operation.called_at)
        stuck = _search(operations, initial)
        if stuck is not None:
            lines = "\n  ".join(str(operation) for operation in stuck)
            raise AssertionError(f"the history of {key!r} is not linearizable; no order gets past these:\n  {lines}")


def _apply(operation: Operation, state: bytes | None) -> tuple[bool, bytes | None]:
    """Whether ``operation`` fits a register that holds ``state``, and what it holds afterwards."""
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
    """Depth first over orders; returns the calls at the deepest dead end, or None if an order was found.

    A place in the search is the set of calls that have happened (a bit each) and the state. Next may happen any call
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
    """The calls that may happen next; the one that returned first comes last, since that is the best guess."""
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
