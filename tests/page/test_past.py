"""The drawing of a history: the run's lane, a lane for each node, and nothing obeyed that strangers wrote."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from rendezvous_async.core.history import HistoryRecord, Kind, Roll, Who
from rendezvous_async.page.drawing import page_of
from rendezvous_async.page.past import RUN, drawing_of
from tests.core.test_goodput import STORY


def test_lanes_of_the_run_and_of_each_node() -> None:
    drawing = drawing_of("job", STORY)
    assert [lane.name for lane in drawing.lanes] == [RUN, "a (10.0.0.1)", "b (10.0.0.2)", "c (10.0.0.3)"]
    run, _, b, c = drawing.lanes
    bars = [(bar.kind, bar.begin, bar.end) for bar in run.bars]
    assert bars[:4] == [
        ("waiting", 0.0, 9.5), ("waiting", 9.5, 10.0), ("round", 10.0, 70.0), ("waiting", 70.0, 75.0),
    ]  # fmt: skip
    assert bars[-1][0] == "closed"
    assert [(mark.at, mark.kind) for mark in b.marks] == [(10.0, "arrived"), (70.0, "gone"), (125.0, "arrived")]
    assert [(bar.begin, bar.end) for bar in c.bars] == [(105.0, 326.0)]
    assert drawing.facts == "9 changes, 5 min 26 s on record, 85.9 % of it with a round held"


def test_a_page_of_it_is_well_formed_whatever_strangers_wrote() -> None:
    evil = Who("<script>\x1b", "]]>&")
    records = [
        HistoryRecord(n=1, kind=Kind.FORMED, since=1.0, round=1, size=1, by="<b>", new=Roll((evil,), 1)),
        HistoryRecord(n=2, kind=Kind.CLOSED, since=1.0, round=1, size=1, by="<b>", detail="</body>"),
    ]
    page = page_of(drawing_of("</title>", records))
    ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "<script>\x1b" not in page


def test_an_empty_history_is_drawn_too() -> None:
    assert [lane.name for lane in drawing_of("job", []).lanes] == [RUN]
