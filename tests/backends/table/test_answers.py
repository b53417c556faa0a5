"""A commit that is sent again is answered as it was; what is settled is forgotten, and counts no longer."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.table.answers import LATE, Answers, CommitId
from rendezvous_async.backends.table.usage import ANSWER_COST, CLIENT_COST, Usage

CLIENT = "c"


def noted(*numbers: int) -> tuple[Answers, Usage]:
    """Return answers to these commits, each with ten times its number as its revision."""
    usage = Usage()
    answers = Answers(usage)
    for number in numbers:
        answers.note(CommitId(CLIENT, number), 10 * number)
    return answers, usage


def cost(count: int) -> int:
    return CLIENT_COST + len(CLIENT) + count * ANSWER_COST


def test_what_has_won_is_found_by_its_client_and_number() -> None:
    answers, usage = noted(1, 2)
    assert [answers.find(CommitId(CLIENT, number)) for number in (1, 2, 3)] == [10, 20, None]
    assert answers.find(CommitId("other", 1)) is None
    assert answers.as_value() == {CLIENT: {1: 10, 2: 20}}
    assert usage.all.bytes == cost(2)


@pytest.mark.parametrize("settled", range(1, 12))
def test_what_is_settled_is_late_and_the_rest_is_there(settled: int) -> None:
    answers, usage = noted(1, 3, 4, 7)
    kept = {number: 10 * number for number in (1, 3, 4, 7) if number > settled}
    assert answers.find(CommitId(CLIENT, 12, settled)) is None
    assert answers.as_value() == {CLIENT: {0: settled, **kept}}
    assert usage.all.bytes == cost(len(kept) + 1)
    for number in range(1, 12):
        expected = LATE if number <= settled else kept.get(number)
        assert answers.find(CommitId(CLIENT, number, settled)) == expected
        assert answers.find(CommitId(CLIENT, number)) == expected, "it is never taken back"


def test_a_client_settles_on_from_where_it_was() -> None:
    answers, usage = noted(1, 2, 3, 4, 5)
    for settled in (2, 2, 1, 4):
        answers.find(CommitId(CLIENT, 9, settled))
    assert answers.as_value() == {CLIENT: {0: 4, 5: 50}}
    assert usage.all.bytes == cost(2)
    assert answers.find(CommitId(CLIENT, 10**12 + 1, 10**12)) is None, "any number at all, at once"
    assert answers.as_value() == {CLIENT: {0: 10**12}}


def test_who_is_forgotten_costs_nothing() -> None:
    answers, usage = noted(1, 2)
    answers.forget("other")
    assert usage.all.bytes == cost(2)
    answers.forget(CLIENT)
    answers.forget(CLIENT)
    assert (answers.as_value(), usage.all.bytes) == ({}, 0)
    assert answers.find(CommitId(CLIENT, 1)) is None


def test_answers_from_a_value_count_and_are_its_own() -> None:
    value = {CLIENT: {0: 2, 3: 30}, "other": {1: 5}}
    usage = Usage()
    answers = Answers(usage, value)
    assert answers.as_value() == value
    assert usage.all.bytes == cost(2) + CLIENT_COST + len("other") + ANSWER_COST
    answers.note(CommitId(CLIENT, 4), 40)
    answers.as_value()[CLIENT].clear()
    assert value == {CLIENT: {0: 2, 3: 30}, "other": {1: 5}}
    assert answers.find(CommitId(CLIENT, 3)) == 30
    assert [answers.find(CommitId(CLIENT, number)) for number in (2, 4)] == [LATE, 40]
