"""Which commits have won, for clients that did not hear it: one that is sent again is answered, not done again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rendezvous_async.backends.names import name_size
from rendezvous_async.backends.usage import ANSWER_COST, CLIENT_COST, Usage

__all__ = ["LATE", "Answers", "CommitId"]

LATE: Final = -1
"""No revision of a commit: it was settled before, and this is a copy that comes late."""
_SETTLED: Final = 0
"""In a client's answers, where commits count from 1: up to which of them all are settled."""


class CommitId(msgspec.Struct, frozen=True, array_like=True):
    """Names a commit, so that one that is sent again is not done again.

    Attributes:
        client: Whose commit it is.
        number: Counts this client's commits, from 1.
        settled: Every commit of this client up to this number has been answered; the table may forget those answers.
    """

    client: str
    number: int
    settled: int = 0


class Answers:
    """The revisions of the commits that have won, by client and number, but for those that are settled.

    Args:
        usage: Where they are counted.
        numbers: What is remembered already.
    """

    def __init__(self, usage: Usage, numbers: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self._usage = usage
        self._numbers = {client: dict(known) for client, known in (numbers or {}).items()}
        for client, known in self._numbers.items():
            usage.add_answers(client, _cost(client, known))

    def find(self, id: CommitId) -> int | None:
        """Return with which revision a commit has won; None if it was not made, ``LATE`` if it was settled."""
        numbers = self._numbers.get(id.client)
        if numbers is None:
            return None
        settled = numbers.get(_SETTLED, 0)
        if id.settled > settled:
            before = _cost(id.client, numbers)
            # As a rule one number at a time is settled; a client may also claim any number at all.
            few = id.settled - settled <= len(numbers)
            for number in range(settled + 1, id.settled + 1) if few else [*numbers]:
                if number <= id.settled:
                    numbers.pop(number, None)
            settled = numbers[_SETTLED] = id.settled
            self._usage.add_answers(id.client, _cost(id.client, numbers) - before)
        return LATE if id.number <= settled else numbers.get(id.number)

    def note(self, id: CommitId, revision: int) -> None:
        """Remember that a commit has won."""
        numbers = self._numbers.get(id.client)
        before = _cost(id.client, numbers)
        if numbers is None:
            numbers = self._numbers[id.client] = {}
        numbers[id.number] = revision
        self._usage.add_answers(id.client, _cost(id.client, numbers) - before)

    def forget(self, client: str) -> None:
        """Drop all that is remembered for a client."""
        self._usage.add_answers(client, -_cost(client, self._numbers.pop(client, None)))

    def as_value(self) -> dict[str, dict[int, int]]:
        """Return all of it, as ``Answers`` takes it."""
        return {client: dict(numbers) for client, numbers in self._numbers.items()}


def _cost(client: str, numbers: Mapping[int, int] | None) -> int:
    return 0 if numbers is None else CLIENT_COST + name_size(client) + ANSWER_COST * len(numbers)
