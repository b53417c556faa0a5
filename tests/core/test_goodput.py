"""Where the time went: every second has a phase, a cause and a machine; and how a history reads."""

from __future__ import annotations

import time

import pytest

from rendezvous_async.causes import Cause
from rendezvous_async.core.goodput import Activity, goodput_of, stretches
from rendezvous_async.core.history import HistoryRecord, Kind, Roll, Who
from rendezvous_async.core.retelling import Retelling, cause_in_words, duration, sentence_of, sum_up

A, B = Who("a", "10.0.0.1"), Who("b", "10.0.0.2")


def roll(*nodes: Who) -> Roll:
    return Roll(nodes, len(nodes))


STORY = [
    HistoryRecord(
        n=1, kind=Kind.FORMED, at=100.0, since=10.0, round=1, size=2, by="a", new=roll(A, B),
        awaited=roll(Who("b", "10.0.0.2", after=9.0)), forming=0.5,
    ),
    HistoryRecord(n=2, kind=Kind.LOST, at=160.0, since=60.0, round=1, size=2, by="a",
                  gone=roll(Who("b", "10.0.0.2", Cause.CUT))),
    HistoryRecord(n=3, kind=Kind.GATHERING, at=165.0, since=5.0, round=1, size=2, by="a", back=roll(A),
                  awaited=roll(Who("a", after=5.0))),
    HistoryRecord(n=4, kind=Kind.FORMED, at=195.0, since=30.0, round=2, size=2, by="b", new=roll(Who("c", "10.0.0.3")),
                  gone=roll(Who("b", "10.0.0.2", Cause.CUT)), last_call=True,
                  awaited=roll(Who("c", "10.0.0.3", after=20.0))),
    HistoryRecord(n=5, kind=Kind.SCALED, at=205.0, round=2, size=2, by="me@here", detail="2:4 to 2:8"),
    HistoryRecord(n=6, kind=Kind.WAITING, at=215.0, since=10.0, round=2, size=2, by="b", new=roll(B)),
    HistoryRecord(n=7, kind=Kind.FORMED, at=216.0, since=1.0, round=3, size=3, by="b", new=roll(B)),
    HistoryRecord(n=9, kind="magic", at=316.0, since=100.0, round=3, size=3, by="b"),
    HistoryRecord(n=10, kind=Kind.CLOSED, at=416.0, since=100.0, round=3, size=3, by="a", detail="done"),
]  # fmt: skip


def test_every_second_has_a_name() -> None:
    goodput = goodput_of(STORY)
    assert goodput.seconds == {"held": 280.0, "gathering": 39.5, "stopping": 6.0, "forming": 0.5}
    assert (goodput.total, goodput.named, goodput.by_wall) == (326.0, 1.0, 10.0)
    assert goodput.causes == {"start": 10.0, "cut": 35.0, "newcomers": 1.0}
    assert goodput.machines == {"10.0.0.2": 36.0}
    assert goodput.awaited == {"10.0.0.2": 9.0, "10.0.0.3": 20.0, "last call": 10.5}


def test_what_goes_on_is_counted_up_to_now_and_what_is_over_is_not() -> None:
    assert goodput_of(STORY, now=1000.0) == goodput_of(STORY)
    until_now = goodput_of(STORY[:4], now=295.0)
    assert (until_now.seconds["held"], until_now.by_wall) == (160.0, 100.0)
    standing = goodput_of(STORY[:3], now=175.0)
    assert (standing.seconds["gathering"], standing.outages[-1].seconds) == (19.5, 15.0)
    assert goodput_of([]).named == 1.0


@pytest.mark.parametrize(
    ("kind", "was"), [(Kind.LOST, Activity.HELD), (Kind.FORMED, Activity.GATHERING), ("magic", Activity.UNKNOWN)]
)
def test_a_history_whose_beginning_is_gone_begins_with_what_its_first_record_ended(kind: str, was: Activity) -> None:
    (stretch,) = stretches([HistoryRecord(n=600, kind=kind, since=5.0)])
    assert (stretch.phase, stretch.seconds) == (was, 5.0)


def test_a_clock_that_went_back_takes_no_time() -> None:
    back = [HistoryRecord(n=1, kind=Kind.FORMED, at=50.0, since=1.0), HistoryRecord(n=2, kind=Kind.CLOSED, at=20.0)]
    assert goodput_of(back).total == 1.0


def retell(records: list[HistoryRecord]) -> list[str]:
    retelling = Retelling()
    return [
        line
        for record in records
        for line in retelling.lines(record, time.strftime("%H:%M:%S", time.gmtime(record.at)))
    ]


def test_a_history_reads_as_sentences() -> None:
    assert retell(STORY) == [
        "00:01:40  round 1 formed with 2 nodes after 10 s, the last to come was b",
        "00:02:40  lost b (10.0.0.2): its connection was cut; round 1 lasted 1 min 0 s",
        "00:02:45  round 1 is over, the last to let go was a, after 5.0 s; gathering",
        "00:03:15  b coordinates now, in place of a",
        "00:03:15  round 2 formed with 2 nodes after 30 s, the last to come was c, when",
        "          the last call was over; new: c (10.0.0.3); without b (10.0.0.2)",
        "00:03:25  scaled from 2:4 to 2:8 by me@here",
        "00:03:35  1 newcomer waits: b (10.0.0.2)",
        "00:03:36  round 3 formed with 3 nodes after 1.0 s; new: b (10.0.0.2)",
        "00:05:16  (1 change before this not on record)",
        "00:05:16  magic (a newer version wrote this)",
        "00:06:56  closed by a: done",
    ]
    assert sentence_of(STORY[1]) == "lost b (10.0.0.2): its connection was cut"


def test_no_line_is_wider_than_a_terminal_and_no_text_is_obeyed() -> None:
    evil = Who("\x1b[2J" + "x" * 60, "y" * 60, "\x07")
    records = [HistoryRecord(n=1, kind=kind, by="\x1b", new=Roll((evil,) * 8, 900), gone=Roll((evil,) * 8, 900),
                             detail="\x1b]0;") for kind in (*Kind, "\x1b")]  # fmt: skip
    for line in retell(records):
        assert "\x1b" not in line
        assert len(line) <= 80
    assert "and 897 more" in sentence_of(records[1])


def test_the_sums_read_as_tables() -> None:
    lines = list(sum_up("job-7", goodput_of(STORY), 3))
    assert lines[0] == "run 'job-7': 5 min 26 s on record, 3 rounds formed"
    assert "  held         4 min 40 s  85.9 %  a round was held" in lines
    assert "  (10 s of this by wall clocks, which may differ)" in lines
    assert "          35 s  a node was lost: its connection was cut (once)" in lines
    assert "          36 s  10.0.0.2" in lines
    assert "          20 s  10.0.0.3" in lines
    assert max(map(len, lines)) <= 80


def test_words() -> None:
    assert [duration(s) for s in (0, 0.02, 0.999, 17.4, 242, 665, 3569.4, 3599, 3780, 90_000)] == [
        "0 s", "0.02 s", "1.0 s", "17 s", "4 min 2 s", "11 min", "59 min", "1 h 0 min", "1 h 3 min", "1 d 1 h",
    ]  # fmt: skip
    assert all(cause_in_words(cause) != cause for cause in Cause)
    assert cause_in_words("") == "cause unknown"
