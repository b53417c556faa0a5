"""The outcomes of won commits, so that a commit that is sent again is answered and not applied again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rendezvous_async.backends.names import name_size
from rendezvous_async.backends.table.usage import ANSWER_COST, CLIENT_COST, Usage

__all__ = ["LATE", "Answers", "CommitId"]

LATE: Final = -1
"""Instead of a revision: the commit was settled before, and this is a late copy."""
_SETTLED: Final = 0
"""The key, in a client's answers, of the number up to which all commits are settled; commits count from 1."""


class CommitId(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a commit, so that a repeat is not applied again.

    Attributes:
        client: The client that sent it.
        number: Counts this client's commits, from 1.
        settled: Every commit of this client up to this number was answered; the table may forget those answers.
    """

    client: str
    number: int
    settled: int = 0


class Answers:
    """The revisions of won commits that are not settled, by client and number.

    Args:
        usage: Accounts for the memory.
        numbers: Answers from a snapshot.
    """

    def __init__(self, usage: Usage, numbers: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self._usage = usage
        self._numbers = {client: dict(known) for client, known in (numbers or {}).items()}
        for client, known in self._numbers.items():
            usage.add_answers(client, _cost(client, known))

    def find(self, id: CommitId) -> int | None:
        """Return the revision of a won commit; None if it is unknown, ``LATE`` if it was settled."""
        numbers = self._numbers.get(id.client)
        if numbers is None:
            return None
        settled = numbers.get(_SETTLED, 0)
        if id.settled > settled:
            before = _cost(id.client, numbers)
            # Usually one number at a time is settled, but a client may claim any number.
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
        """Drop the answers of a client."""
        self._usage.add_answers(client, -_cost(client, self._numbers.pop(client, None)))

    def as_value(self) -> dict[str, dict[int, int]]:
        """Return all answers in the form that the constructor takes."""
        return {client: dict(numbers) for client, numbers in self._numbers.items()}


def _cost(client: str, numbers: Mapping[int, int] | None) -> int:
    return 0 if numbers is None else CLIENT_COST + name_size(client) + ANSWER_COST * len(numbers)
