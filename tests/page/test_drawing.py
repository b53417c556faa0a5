"""The drawing: one well-formed page without outside assets, where what strangers wrote stays text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import anyio
import pytest

from rendezvous_async.page.drawing import Bar, Drawing, Lane, Mark, page_of

CHROMIUM = shutil.which("chromium")
EVIL = "<script>document.title = 'owned'</script>&\"'\x1b[2J\udc80"
MEASURE = """<script>
function overlaps() {
  const boxes = [...document.querySelectorAll(".tick")].map(tick => tick.getBoundingClientRect());
  const shown = boxes.filter(box => box.width);
  return shown.length + ":" + shown.filter((box, index) => index && box.left < shown[index - 1].right).length;
}
addEventListener("load", () => {
  const found = [];
  for (const button of document.querySelectorAll("button")) {
    button.click();
    found.push(overlaps());
  }
  document.body.append("measured " + found.join(" ") + " and " + document.title);
});
</script></body>"""


def drawing(end: float = 30.0, nodes: int = 3) -> Drawing:
    lanes = (
        Lane(
            f"node-{number}",
            (Bar(0.0, end / 2, "round", "holds round 1", "r1 0/3", 1), Bar(end / 2, end, "paused", "frozen")),
            (Mark(end / 3, "fault", f"node-{number}: crash"),),
        )
        for number in range(nodes)
    )
    return Drawing("A run", "some facts", tuple(lanes))


def parse(page: str) -> ElementTree.Element:
    assert re.search(r"https?://|//[a-z]|@import|url\(", page) is None
    return ElementTree.fromstring(page)


def find(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """Return the elements of a class."""
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def test_each_lane_has_its_bars_and_marks_where_they_belong() -> None:
    root = parse(page_of(drawing()))
    rows = [row for row in find(root, "row") if row.findtext("b", "").startswith("node-")]
    assert [row.findtext("b") for row in rows] == ["node-0", "node-1", "node-2"]
    (held,) = find(rows[0], "round")
    assert held.text == "r1 0/3"
    assert held.get("title") == "0.000 to 15.000 s: holds round 1"
    assert held.get("style", "").startswith("left:0.0000%;width:50.0000%;")
    (fault,) = find(rows[2], "fault")
    assert fault.get("title") == "10.000 s: node-2: crash"
    assert fault.get("style") == "left:33.3333%"
    assert len(list(root.iter("tr"))) == 9


def test_an_alarm_is_a_box_and_a_line_through_all_lanes() -> None:
    lane = Lane("node-0", (), (Mark(5.0, "broken", "what: it broke"), Mark(10.0, "fault", "crash")))
    root = parse(page_of(Drawing("A run", "", (lane,), (("what", "it broke"),))))
    (alarm,) = find(root, "alarm")
    assert ["".join(part.itertext()) for part in alarm] == ["what", "it broke"]
    (line,) = find(root, "line")
    assert line.get("style") == "left:50.0000%"


def test_what_strangers_wrote_stays_text() -> None:
    lane = Lane(EVIL, (Bar(0.0, 1.0, "round", EVIL, EVIL),), (Mark(0.5, "fault", EVIL),))
    page = page_of(Drawing(EVIL, EVIL, (lane,), ((EVIL, EVIL),)))
    root = parse(page)
    assert len(list(root.iter("script"))) == 1
    assert page.isprintable() or set(page) - {"\n"} == {letter for letter in page if letter.isprintable()}
    assert root.findtext("head/title", "").startswith("<script>")


def test_a_drawing_of_nothing_is_a_page() -> None:
    parse(page_of(Drawing("Nothing", "", ())))
    parse(page_of(Drawing("A moment", "", (Lane("a", (), (Mark(0.0, "fault", "crash"),)),))))


def test_the_list_ends_somewhere() -> None:
    marks = tuple(Mark(float(at), "fault", "crash") for at in range(3000))
    page = page_of(Drawing("Long", "", (Lane("a", (), marks),)))
    assert len(list(parse(page).iter("tr"))) == 2000
    assert "The first 2000." in page


@pytest.mark.parametrize(
    ("end", "some"),
    [
        (0.004, ("0.0005 s", "0.0010 s")),
        (3.0, ("0.5 s", "1.0 s")),
        (41.0, ("5 s", "40 s")),
        (100.0, ("1:00", "1:30")),
        (5000.0, ("10:00", "1:20:00")),
        (400_000.0, ("12:00:00", "108:00:00")),
        (9_000_000.0, ("264:00:00",)),
    ],
)
def test_the_axis_has_round_numbers(end: float, some: Sequence[str]) -> None:
    ticks = [tick for tick in find(parse(page_of(drawing(end))), "tick") if tick.get("class") == "tick"]
    assert 4 < len(ticks) <= 11
    assert {*some} <= {tick.text for tick in ticks}


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")
@pytest.mark.parametrize("width", [500, 1280])
async def test_no_number_covers_another_in_a_browser(width: int, tmp_path: Path) -> None:
    """In every zoom; and what strangers wrote does nothing."""
    assert CHROMIUM is not None
    lane = Lane(EVIL, (Bar(0.0, 1.0, "round", EVIL, EVIL),), (Mark(400.0, "broken", EVIL),))
    shown = drawing(900.0)
    page = page_of(Drawing(EVIL, EVIL, (lane, *shown.lanes), ((EVIL, EVIL),)))
    path = tmp_path / "drawing.html"
    path.write_text(page.replace("</body>", MEASURE))
    arguments = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    with anyio.fail_after(120):
        browser = await anyio.run_process(
            [CHROMIUM, *arguments, profile, f"--window-size={width},900", "--dump-dom", path.as_uri()]
        )
    found = re.search(r"measured (\S+) (\S+) (\S+) (\S+) and &lt;script&gt;", browser.stdout.decode())
    assert found is not None, browser.stdout[-500:]
    shown_and_covered = [tuple(map(int, numbers.split(":"))) for numbers in found.groups()]
    assert [covered for _, covered in shown_and_covered] == [0, 0, 0, 0]
    assert [count for count, _ in shown_and_covered] == sorted(count for count, _ in shown_and_covered)
    assert shown_and_covered[0][0] < shown_and_covered[-1][0]
