"""What a coordinator records: which steps have a record, who is in it, and why. No loop, no backend."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from rendezvous_async.causes import Cause
from rendezvous_async.core.chronicle import Chronicle
from rendezvous_async.core.codec import decode
from rendezvous_async.core.duty import Duty
from rendezvous_async.core.history import KEPT, NOBODY, HistoryRecord, Kind, Roll, Who, history_key, roll_of, shortened
from rendezvous_async.core.state import Closed, Head, Seat
from rendezvous_async.core.transaction import Capacity, Row, Save, Seen, Transaction
from tests.core import make
from tests.core.make import record
from tests.core.test_duty import POST, ROOMY, STATE, row


def here(names: str) -> list[Row]:
    """Return the rows of nodes that have arrived in this order; the arrivals of one node are of one life."""
    return [row(f"nodes/{name}", record(f"{name * 8}1"), order) for order, name in enumerate(names)]


def formed(names: str, lost: int = 0) -> tuple[Head, dict[str, Seat]]:
    """Return the head and the seats of a round of these nodes."""
    head, seats = make.formed(names, lost=lost)
    return head, {node: replace(seat, arrival=f"{node * 8}1") for node, seat in seats.items()}


def duty_of(head: Head, seats: dict[str, Seat], roster: list[Row], capacity: Capacity = ROOMY) -> Duty:
    """Return a duty that took over at second 100, and has seen the last change at second 90."""
    duty = Duty(head.settings, POST, capacity, "a")
    duty.look(Seen(head, STATE, POST, 90.0))
    duty.read_seats([row(f"seats/{node}", seat) for node, seat in seats.items()])
    while duty.script:
        duty.won(("epoch", 0))
    duty.read_roster(roster)
    return duty


def step(duty: Duty, now: float, wins: bool = True) -> HistoryRecord | None:
    """Do the next step; return its record."""
    found = None
    while isinstance(todo := duty.next(now, "fresh", wall=1000.0 + now), Transaction):
        for write in todo.writes:
            if isinstance(write, Save) and write.key.startswith("history/"):
                found = decode(HistoryRecord, write.value)
                assert write.key == history_key(found.n)
        if not wins:
            return found
        duty.won(("epoch", 1000))
        if duty.decision is None and not duty.script:
            break
    return found


def gone(duty: Duty, causes: dict[str, str], now: float) -> None:
    keyed = {f"nodes/{node}": cause for node, cause in causes.items()}
    duty.read_roster([row(key, None) for key in keyed], keyed, now)


def back(duty: Duty, names: str, now: float) -> None:
    duty.read_roster([row(f"nodes/{name}", record(f"{name * 8}2", (1, 0)), 50) for name in names], {}, now)


def names(roll: Roll) -> list[tuple[str, str]]:
    return [(who.node, who.cause) for who in roll.named]


def test_a_round_is_lost_gathered_and_formed_and_each_has_a_record() -> None:
    head, seats = formed("abcd")
    duty = duty_of(head, seats, here("abcd"))
    gone(duty, {"d": Cause.CUT}, 101.0)
    assert step(duty, 101.0) == HistoryRecord(
        n=1, kind=Kind.LOST, at=1101.0, since=11.0, round=1, size=4, by="a", gone=Roll((Who("d", "", "cut"),), 1)
    )
    back(duty, "b", 101.5)
    assert step(duty, 102.0) is None, "a count is no news"
    back(duty, "a", 103.0)
    duty.look(Seen(duty.tally.head, duty.state, POST, 101.0))
    gone(duty, {"c": ""}, 104.0)
    gathering = step(duty, 104.0)
    assert gathering is not None
    assert (gathering.kind, gathering.n, gathering.since) == (Kind.GATHERING, 2, 3.0)
    assert names(gathering.gone) == [("c", "")], "nobody guesses"
    assert [(who.node, who.after) for who in gathering.awaited.named] == [("a", 2.0), ("b", 0.5)], "the last one first"
    duty.look(Seen(duty.tally.head, duty.state, POST, 104.0))
    duty.read_roster([row("nodes/e", record("e1"), 60)], {}, 106.0)
    assert step(duty, 106.0) is None, "the last call goes on"
    last = step(duty, 107.0)
    assert last is not None
    assert (last.kind, last.round, last.size, last.since, last.last_call) == (Kind.FORMED, 2, 3, 3.0, True)
    assert names(last.gone) == [("c", ""), ("d", Cause.CUT)]
    assert names(last.new) == [("e", "")]
    assert [(who.node, who.after) for who in last.awaited.named] == [("e", 2.0)]


def test_newcomers_and_members_that_come_back_are_told_once() -> None:
    head, seats = formed("ab")
    duty = duty_of(head, seats, here("abc"))
    waiting = step(duty, 101.0)
    assert waiting is not None
    assert (waiting.kind, names(waiting.new), names(waiting.back)) == (Kind.WAITING, [("c", "")], [])
    duty.read_roster([row("nodes/d", record("d1"), 60)], {}, 102.0)
    assert step(duty, 102.0) is None

    duty = duty_of(head, seats, here("ab"))
    back(duty, "b", 102.0)
    waiting = step(duty, 102.0)
    assert waiting is not None
    assert (waiting.kind, names(waiting.new), names(waiting.back)) == (Kind.WAITING, [], [("b", "")])


def test_what_was_not_written_is_told_with_the_next_step() -> None:
    head, seats = formed("abc")
    duty = duty_of(head, seats, here("abc"))
    gone(duty, {"c": Cause.SILENT}, 101.0)
    first = step(duty, 101.0, wins=False)
    assert first is not None
    assert duty.lost(("epoch", 8), POST)
    duty.look(Seen(replace(head, waiting=1), ("epoch", 8), POST, 90.0))
    again = step(duty, 101.1)
    assert again is not None
    assert again.gone == first.gone


def test_a_new_process_with_the_id_of_a_member_is_told() -> None:
    head, seats = formed("ab")
    duty = duty_of(head, seats, here("ab"))
    duty.read_roster([row("nodes/b", record("otherlife"), 9)], {}, 101.0)
    lost = step(duty, 101.0)
    assert lost is not None
    assert (lost.kind, names(lost.gone)) == (Kind.LOST, [("b", "replaced")])


def test_a_member_that_has_no_place_is_a_spare_and_not_gone() -> None:
    head, seats = formed("abcd")
    head = replace(head, target=3)
    duty = duty_of(head, seats, here("abcd"))
    back(duty, "abcd", 101.0)
    last = step(duty, 101.0)
    assert last is not None
    assert (last.kind, [cause for _, cause in names(last.gone)]) == (Kind.FORMED, ["spare"])


def explained(told: Iterable[HistoryRecord], causes: dict[str, str]) -> HistoryRecord | None:
    """Return what a coordinator tells that finds b and c gone when it takes over."""
    head, seats = formed("abc", lost=1)
    duty = duty_of(head, seats, here("a"))
    assert duty.chronicle.is_in_the_dark(duty.tally)
    assert not duty.chronicle.is_in_the_dark(duty.tally), "it asks once"
    duty.chronicle.explain(duty.tally, told, causes)
    return step(duty, 101.0)


def test_what_happened_before_is_told_if_somebody_knows_and_not_told_twice() -> None:
    told = HistoryRecord(n=4, kind=Kind.LOST, gone=roll_of([Who("b", "", Cause.EVICTED)]))
    lost = explained([told], {"c": Cause.CUT})
    assert lost is not None
    assert names(lost.gone) == [("c", Cause.CUT)]
    before = [told, HistoryRecord(n=5, kind=Kind.FORMED)]
    lost = explained(before, {})
    assert lost is not None
    assert names(lost.gone) == [("b", ""), ("c", "")], "of an earlier round, and nobody knows of c"


@pytest.mark.parametrize("capacity", [Capacity(1, 1 << 20), Capacity(1000, 300)], ids=str)
def test_without_room_in_the_transaction_the_step_goes_without_its_record(capacity: Capacity) -> None:
    writes = (Save("state", b"x" * 200),)
    assert capacity.with_one_more(writes, Save("history/1", b"x" * 200)) == writes
    assert ROOMY.with_one_more(writes, Save("history/1", b"")) == (*writes, Save("history/1", b""))


def test_a_roll_is_bounded() -> None:
    assert roll_of([]) is NOBODY
    many = roll_of([Who(f"node-{index}") for index in range(1000)])
    assert (len(many.named), many.count) == (8, 1000)
    assert len(roll_of([Who("x" * 400), Who("y" * 400)]).named) == 1
    assert len(shortened("x" * 10_000)) == 200
    assert history_key(1) == history_key(1 + KEPT) != history_key(2)


def test_a_chronicle_forgets_a_crash_loop() -> None:
    head, seats = formed("ab")
    chronicle, duty = Chronicle("a"), duty_of(head, seats, here("ab"))
    for index in range(5000):
        duty.tally.put(f"n{index}", record("x1"), index)
        chronicle.went(duty.tally, f"n{index}", Cause.CUT)
        duty.tally.remove(f"n{index}")
    assert "gone=4096" in repr(chronicle)


def test_a_closed_run_records_nothing_more() -> None:
    head, seats = formed("ab")
    duty = duty_of(replace(head, closed=Closed("done", "a")), seats, here("a"))
    assert step(duty, 101.0) is None
