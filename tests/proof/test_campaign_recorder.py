"""When what was committed happened: seen a moment later, and known to its node before."""

from __future__ import annotations

from rendezvous_async.testing.checks import CHECKS
from rendezvous_async.testing.history import Arrived, Believed, History, Record, Vanished
from tests.proof.campaign.recorder import as_heard
from tests.proof.campaign.records import Heard

OUT = CHECKS["out_by_own_clock"]


def history_of(*records: Record) -> History:
    history = History(1, 2, 5.0)
    for record in sorted(records, key=lambda record: record.at):
        history.add(record)
    return history


def test_an_arrival_counts_from_when_its_node_knew_of_it() -> None:
    committed: list[Record] = [Vanished(1.0, "a"), Arrived(10.03, "a", "second"), Arrived(10.03, "b", "other")]
    lines = [Heard(10.0, "a", "arrived", 1, "second"), Heard(10.01, "a", "joined", 2, "rank 0 of 1")]
    believed = Believed(10.01, "a", 2, 0, 1, "epoch:7")
    assert list(OUT(history_of(*committed, believed))), "the check is right to complain of what was seen"
    assert as_heard(committed, lines) == [
        Vanished(1.0, "a"),
        Arrived(10.0, "a", "second"),
        Arrived(10.03, "b", "other"),
    ]
    assert not list(OUT(history_of(*as_heard(committed, lines), believed)))


def test_what_came_before_an_arrival_stays_before_it() -> None:
    committed: list[Record] = [Vanished(10.03, "a"), Arrived(10.03, "a", "second")]
    assert as_heard(committed, [Heard(10.0, "a", "arrived", 1, "second")]) == [
        Vanished(10.0, "a"),
        Arrived(10.0, "a", "second"),
    ]


def test_who_knows_of_its_arrival_only_later_has_arrived_when_it_was_seen() -> None:
    committed: list[Record] = [Arrived(10.03, "a", "first"), Vanished(11.0, "a")]
    assert as_heard(committed, [Heard(12.0, "a", "arrived", 1, "first")]) == committed


def test_a_node_that_is_gone_and_believes_on_is_still_found() -> None:
    committed: list[Record] = [Arrived(1.0, "a", "first"), Vanished(3.0, "a")]
    believed = Believed(2.0, "a", 1, 0, 1, "epoch:7")
    heard = [Heard(1.0, "a", "arrived", 0, "first")]
    late = Arrived(20.0, "b", "other")
    assert list(OUT(history_of(*as_heard([*committed, late], heard), believed)))
