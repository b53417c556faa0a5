"""The coordinator's machine: each whole answer, and what it makes of what came of it. No loop, no backend."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.duty import Duty, Purpose, Read, StandDown, Todo, campaign
from rendezvous_async.core.rules import Wait
from rendezvous_async.core.state import Closed, Head, Node, Phase, Post, Seat, Stamp
from rendezvous_async.core.transaction import Capacity, Drop, Row, Save, Seen, Transaction
from rendezvous_async.settings import Settings
from tests.core.make import TWO_TO_FOUR, formed, record

POST, STATE, NEWER = ("epoch", 3), ("epoch", 7), ("epoch", 8)
FENCE = {"state": STATE, "coordinator": POST}
TWO = Settings(2, 2)
EMPTY = Head(settings=TWO)
ROOMY = Capacity(1000, 1 << 20)


def row(key: str, value: Node | Seat | bytes | None, revision: int = 1) -> Row:
    return key, value if value is None or isinstance(value, bytes) else encode(value), revision


def here(names: str, settings: Settings = TWO, arrival: int = 1) -> list[Row]:
    """Return the rows of nodes that have arrived in this order."""
    return [
        row(f"nodes/{name}", record(f"{name}{arrival}", settings=settings), order) for order, name in enumerate(names)
    ]


def duty_of(
    head: Head, seats: dict[str, Seat], roster: list[Row], capacity: Capacity = ROOMY, state: Stamp = STATE
) -> Duty:
    """Return a duty that has taken over; what it had to clean up is done."""
    duty = Duty(head.settings, POST, capacity)
    duty.look(Seen(head, state, POST))
    duty.read_seats([row(f"seats/{node}", seat) for node, seat in seats.items()])
    while duty.script:
        duty.won(("epoch", 0))
    duty.read_roster(roster)
    return duty


def plain(todo: Todo) -> Todo:
    """Return what a duty does without its record in the history, which is tested on its own."""
    if not isinstance(todo, Transaction):
        return todo
    writes = [
        Save("state", encode(replace(decode(Head, write.value), recorded=0)))
        if isinstance(write, Save) and write.key == "state"
        else write
        for write in todo.writes
        if not (isinstance(write, Save) and write.key.startswith("history/"))
    ]
    return Transaction(todo.what, tuple(writes), todo.when)


def answers(duty: Duty) -> Iterator[Todo]:
    """Yield what a duty does until it waits or stands down, all of it won."""
    revision = 100
    while True:
        todo = duty.next(0.0, "fresh")
        yield plain(todo)
        if not isinstance(todo, Transaction):
            return
        revision += 1
        duty.won(("epoch", revision))


# Taking over


def test_it_reads_the_head_then_the_seats_then_the_roster() -> None:
    duty = Duty(TWO, POST, ROOMY)
    with pytest.raises(AssertionError, match="looks before"):
        duty.next(0.0, "fresh")
    duty.look(Seen(EMPTY, STATE, POST))
    assert duty.next(0.0, "fresh") is Read.SEATS
    duty.read_seats([])
    assert duty.next(0.0, "fresh") is Read.ROSTER
    assert duty.read_roster(here("a")) == []
    assert duty.next(0.0, "fresh") == Wait()


def test_what_an_earlier_coordinator_left_is_deleted_before_the_roster_is_read() -> None:
    head, seats = formed("ab", round=2, settings=TWO)
    duty = Duty(TWO, POST, ROOMY)
    duty.look(Seen(head, STATE, POST))
    stale = replace(seats["a"], attempt="given up")
    rows = [*(row(f"seats/{node}", seat) for node, seat in seats.items()), row("seats/c", stale), row("seats/d", b"?")]
    duty.read_seats(rows)
    assert duty.tally.seats == seats
    drops = (Drop("forming"), Drop("seats/c"), Drop("seats/d"), Drop("rounds/1/"))
    assert duty.next(0.0, "fresh") == Transaction("clean up", drops, FENCE)
    duty.won(NEWER)
    assert duty.next(0.0, "fresh") is Read.ROSTER
    assert duty.state == STATE, "clean-up does not write the head"


def test_clean_up_goes_in_parts_and_each_ends_the_attempt_under_way() -> None:
    duty = Duty(TWO, POST, Capacity(3, 1000))
    duty.look(Seen(EMPTY, STATE, POST))
    duty.read_seats([row(f"seats/{node}", b"?") for node in "abc"])
    assert duty.script == [
        (Purpose.CLEAN_UP, (Drop("forming"), Drop("seats/a"), Drop("seats/b"))),
        (Purpose.CLEAN_UP, (Drop("forming"), Drop("seats/c"))),
    ]


def test_clean_up_that_is_refused_is_left_to_the_next() -> None:
    duty = Duty(TWO, POST, Capacity(2, 1000))
    duty.look(Seen(EMPTY, STATE, POST))
    duty.read_seats([row(f"seats/{node}", b"?") for node in "abc"])
    assert duty.lost(NEWER, POST)
    assert duty.next(0.0, "fresh") is Read.ROSTER


def test_news_of_the_head_waits_until_all_has_been_read() -> None:
    head, seats = formed("ab", settings=TWO)
    another = Seen(replace(head, attempt="another"), NEWER, POST)
    duty = Duty(TWO, POST, ROOMY)
    duty.look(Seen(head, STATE, POST))
    duty.look(another)
    assert (duty.unread, duty.tally.head, duty.state) == (Read.SEATS, head, STATE)
    duty.read_seats([row(f"seats/{node}", seat) for node, seat in seats.items()])
    duty.look(another)
    assert (duty.unread, duty.tally.head, duty.state) == (Read.ROSTER, head, STATE)
    duty.read_roster([])
    duty.look(another)
    assert (duty.unread, duty.tally.head, duty.state) == (Read.SEATS, another.head, NEWER)
    assert duty.tally.seats == {}


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Seen(EMPTY, STATE, None), "another node has the post"),
        (Seen(EMPTY, STATE, ("epoch", 4)), "another node has the post"),
        (Seen(None, None, POST), "the run's state is gone, or of other settings"),
        (Seen(replace(EMPTY, settings=TWO_TO_FOUR), STATE, POST), "the run's state is gone, or of other settings"),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_it_stands_down_when_there_is_nothing_to_coordinate(seen: Seen, reason: str, begun: bool) -> None:
    duty = duty_of(EMPTY, {}, here("a")) if begun else Duty(TWO, POST, ROOMY)
    duty.look(seen)
    assert duty.next(0.0, "fresh") == StandDown(reason)


# The roster


def test_it_keeps_up_with_the_roster() -> None:
    duty = duty_of(EMPTY, {}, here("abc"))
    assert set(duty.tally.records) == {"a", "b", "c"}
    errors = duty.read_roster([row("nodes/a", None), row("nodes/b", b"?"), row("nodes/d", record("d1"), 9)])
    assert set(duty.tally.records) == {"c", "d"}
    assert [str(error) for error in errors] == ["the record at 'nodes/b' is cut short: b'?'"]
    assert duty.tally.records["d"] == (record("d1"), 9)


# Rewriting


def test_counts_are_written_at_once_and_then_not_too_often() -> None:
    head, seats = formed("ab")
    duty = duty_of(head, seats, here("abc", TWO_TO_FOUR))
    waiting = replace(head, waiting=1)
    save = Save("state", encode(waiting))
    assert plain(duty.next(5.0, "fresh")) == Transaction("rewrite the head", (save,), FENCE)
    assert plain(duty.next(5.0, "fresh")) == Transaction("rewrite the head", (save,), FENCE), (
        "until it is told how that went"
    )
    duty.won(NEWER)
    assert (duty.state, duty.tally.head, duty.decision) == (NEWER, replace(waiting, recorded=1), None)
    duty.read_roster([row("nodes/c", None)])
    assert duty.next(5.05, "fresh") == Wait(5.1)
    assert plain(duty.next(5.1, "fresh")) == Transaction(
        "rewrite the head", (Save("state", encode(head)),), {"state": NEWER, "coordinator": POST}
    )


def test_a_rewrite_that_is_refused_is_decided_again() -> None:
    head, seats = formed("ab")
    duty = duty_of(head, seats, here("abc", TWO_TO_FOUR))
    duty.next(5.0, "fresh")
    assert duty.lost(NEWER, POST)
    closed = replace(head, closed=Closed("done", "x"))
    duty.look(Seen(closed, NEWER, POST))
    assert (duty.state, duty.tally.head) == (NEWER, closed)
    assert plain(duty.next(5.0, "fresh")) == Wait()
    duty.look(Seen(head, ("epoch", 9), POST))
    assert isinstance(duty.next(5.0, "fresh"), Transaction), "nothing was counted yet, so it need not wait"


@pytest.mark.parametrize(
    ("state", "post"), [(None, POST), (NEWER, None), (NEWER, ("epoch", 4)), (NEWER, ("other", 3))], ids=str
)
def test_without_the_post_or_a_head_a_refused_coordinator_stands_down(state: Stamp | None, post: Stamp | None) -> None:
    head, seats = formed("ab")
    duty = duty_of(head, seats, here("abc", TWO_TO_FOUR))
    duty.next(5.0, "fresh")
    assert duty.lost(state, post) is False, "the node must not learn from that answer"
    reason = "the post or the run's state is gone, or another node has the post"
    assert plain(duty.next(5.0, "fresh")) == StandDown(reason)


def test_a_head_of_another_attempt_means_to_read_all_again() -> None:
    head, seats = formed("ab")
    duty = duty_of(head, seats, here("ab", TWO_TO_FOUR))
    following, _ = formed("a", round=2, attempt="second")
    duty.look(Seen(following, NEWER, POST))
    assert duty.next(0.0, "fresh") is Read.SEATS
    assert (duty.state, duty.tally.head, duty.tally.records) == (NEWER, following, {})


# Handing over


def test_outnumbered_it_hands_the_run_over_and_stands_down() -> None:
    duty = duty_of(EMPTY, {}, [*here("a"), *here("bcd", TWO_TO_FOUR)])
    writes = (Save("state", encode(EMPTY.under(TWO_TO_FOUR))), Drop("coordinator"))
    assert list(answers(duty)) == [
        Transaction("hand the run over", writes, FENCE),
        StandDown(f"more nodes agree on {TWO_TO_FOUR.fingerprint!r}"),
    ]


# Forming


def seat(name: str, rank: int, round: int = 1, arrival: int = 1) -> Seat:
    return Seat(round=round, attempt="fresh", arrival=f"{name}{arrival}", rank=rank)


def head_of(round: int, settings: Settings, size: int) -> Head:
    return Head(settings=settings, round=round, phase=Phase.FORMED, attempt="fresh", size=size)


def test_a_round_that_fits_is_one_transaction() -> None:
    duty = duty_of(EMPTY, {}, here("abc"))
    head = head_of(1, TWO, 2)
    writes = (
        Save("seats/a", encode(seat("a", 0))),
        Save("seats/b", encode(seat("b", 1))),
        Save("state", encode(head)),
        Save("rounds/1", b""),
    )
    assert list(answers(duty)) == [Transaction("form the round", writes, FENCE), Wait()]
    stamp = ("epoch", 101)
    assert (duty.state, duty.tally.head) == (stamp, replace(head, token=stamp, recorded=1))
    assert duty.tally.seats == {"a": seat("a", 0), "b": seat("b", 1)}
    assert (duty.tally.holding, duty.tally.newcomers) == ({"a", "b"}, {"c"})


def test_the_next_round_takes_the_place_of_the_last_and_then_cleans_up_after_it() -> None:
    last, seats = formed("ab", round=4, settings=TWO)
    gathering = replace(last, phase=Phase.GATHERING)
    roster = [row("nodes/b", record("b2", (4, 1), settings=TWO), 5), row("nodes/c", record("c1", settings=TWO), 6)]
    duty = duty_of(gathering, seats, roster)
    form, clean_up, rest = answers(duty)
    writes = (
        Save("seats/b", encode(seat("b", 0, 5, 2))),
        Save("seats/c", encode(seat("c", 1, 5))),
        Save("state", encode(head_of(5, TWO, 2))),
        Save("rounds/5", b""),
        Drop("rounds/4"),
    )
    assert form == Transaction("form the round", writes, FENCE)
    drops = (Drop("forming"), Drop("seats/a"), Drop("rounds/4/"))
    assert clean_up == Transaction("clean up", drops, {"state": ("epoch", 101), "coordinator": POST})
    assert rest == Wait()


def test_a_round_that_does_not_fit_is_written_in_batches_and_the_head_comes_last() -> None:
    three = Settings(3, 3)
    duty = duty_of(Head(settings=three), {}, here("abc", three), Capacity(5, 1 << 20))
    seats = [Save(f"seats/{name}", encode(seat(name, rank))) for rank, name in enumerate("abc")]
    head = Save("state", encode(head_of(1, three, 3)))
    fence = FENCE | {"forming": ("epoch", 101)}
    *_, rest = found = list(answers(duty))
    assert found == [
        Transaction("begin an attempt", (Save("forming", b"fresh"),), FENCE),
        Transaction("write seats", (seats[0], seats[1]), fence),
        Transaction("write seats", (seats[2],), fence),
        Transaction("form the round", (head, Save("rounds/1", b""), Drop("forming")), fence),
        Wait(),
    ]
    assert duty.state == ("epoch", 104)
    duty.read_roster([row("nodes/c", None)])
    after = duty.next(1.0, "another")
    assert isinstance(after, Transaction)
    assert after.when == {"state": ("epoch", 104), "coordinator": POST}, "the attempt is over"
    assert rest == Wait()


@pytest.mark.parametrize("at", range(4))
def test_an_attempt_that_is_refused_anywhere_is_given_up_and_all_is_read_again(at: int) -> None:
    three = Settings(3, 3)
    duty = duty_of(Head(settings=three), {}, here("abc", three), Capacity(5, 1 << 20))
    for _ in range(at):
        duty.next(0.0, "fresh")
        duty.won(NEWER)
    assert isinstance(duty.next(0.0, "fresh"), Transaction)
    assert duty.lost(NEWER, POST)
    assert (duty.script, duty.decision) == ([], None)
    duty.look(Seen(Head(settings=three), NEWER, POST))
    assert duty.next(0.0, "fresh") is Read.SEATS
    duty.read_seats([row("seats/a", seat("a", 0))])
    clean_up = duty.next(0.0, "fresh")
    assert clean_up == Transaction(
        "clean up", (Drop("forming"), Drop("seats/a")), {"state": NEWER, "coordinator": POST}
    )


def test_in_the_middle_of_an_attempt_it_does_not_look() -> None:
    three = Settings(3, 3)
    duty = duty_of(Head(settings=three), {}, here("abc", three), Capacity(5, 1 << 20))
    duty.next(0.0, "fresh")
    duty.won(NEWER)
    duty.look(Seen(None, None, None))
    todo = duty.next(0.0, "other")
    assert isinstance(todo, Transaction)
    assert todo.when == FENCE | {"forming": NEWER}


def test_the_last_call_is_not_begun_again_by_an_arrival() -> None:
    settings = Settings(2, 4, last_call=30.0)
    duty = duty_of(Head(settings=settings), {}, here("ab", settings))
    assert duty.next(10.0, "fresh") == Wait(40.0)
    duty.read_roster(here("c", settings))
    assert duty.next(20.0, "fresh") == Wait(40.0)
    assert isinstance(duty.next(40.0, "fresh"), Transaction)


# The post


def test_the_post_is_taken_if_it_is_vacant_and_given_back_if_it_is_held() -> None:
    claim = Save("coordinator", encode(Post("a")), leased=True)
    assert campaign("a") == Transaction("campaign", (claim,), {"coordinator": None})
    duty = Duty(TWO, POST, ROOMY)
    assert duty.resignation() == Transaction("resign", (Drop("coordinator"),), {"coordinator": POST})


@pytest.mark.parametrize(
    "value", [StandDown("x"), campaign("a"), Drop("x"), Save("x", b""), Seen(None, None, None), ROOMY], ids=repr
)
def test_what_is_handed_out_does_not_change(value: msgspec.Struct) -> None:
    for name in value.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_a_duty_shows_where_it_is() -> None:
    duty = duty_of(EMPTY, {}, here("abc"))
    duty.next(0.0, "fresh")
    assert repr(duty) == "<Duty post=('epoch', 3) form the round>"
    assert repr(Duty(TWO, POST, ROOMY)) == "<Duty post=('epoch', 3) Read.HEAD>"
