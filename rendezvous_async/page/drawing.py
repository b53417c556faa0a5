"""A drawing of who was in which round when, as one HTML page that needs nothing else.

A ``Drawing`` is a value: lanes, with bars for what lasts and marks for what happens at one moment. A ``Sketch``
collects them in the order of time. Neither knows where they come from: the simulator's history, or the history of a
real run. Texts may come from strangers; all are escaped. The page is well-formed XML, so that a test can read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from rendezvous_async.texts import counted, printable

__all__ = ["Bar", "Drawing", "Lane", "Mark", "Sketch", "page_of"]

BARS = {
    "round": "the round that a node holds: r3 1/4 is round 3, rank 1 of 4",
    "present": "the backend has a record of the node",
    "waiting": "the next round is being gathered",
    "paused": "frozen",
    "cut": "cut off from the server",
    "closed": "the run is closed",
}
"""The kinds of bars, with their meaning."""
MARKS = {
    "arrived": ("▲", "arrives at the barrier"),
    "gone": ("▽", "its record is deleted"),
    "formed": ("◆", "the commit that forms a round"),
    "fault": ("✕", "a fault"),
    "called": ("■", "closes or scales the run"),
    "broken": ("!", "a broken guarantee"),
}
"""The kinds of marks, with their glyph and their meaning."""

TICKS = {"tick": 10, "tick fine": 60, "tick finest": 600}
"""So many numbers on the axis at most; the others appear when one zooms in."""
ZOOMS = (1, 4, 16, 64)
LISTED = 2000
"""The list below the drawing ends after so many lines."""
NICE = (
    *(digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0),
)
DAY = 86400.0
HUE = 137.5
"""The angle between the colours of two rounds that follow each other: neighbours differ, none comes back soon."""


class Bar(msgspec.Struct, frozen=True):
    """Something that lasts.

    Attributes:
        begin: Since when, in seconds.
        end: Until when.
        kind: A key of ``BARS``.
        tip: The whole text.
        text: What stands in the bar; what does not fit is cut off.
        round: Decides the colour of a round.
    """

    begin: float
    end: float
    kind: str
    tip: str
    text: str = ""
    round: int = 0


class Mark(msgspec.Struct, frozen=True):
    """Something that happens at one moment; its kind is a key of ``MARKS``."""

    at: float
    kind: str
    tip: str


class Lane(msgspec.Struct, frozen=True):
    """One line of the drawing: a node, a machine, or the run itself."""

    name: str
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def parts(self) -> list[Bar | Mark]:
        """Its bars and its marks."""
        return [*self.bars, *self.marks]


class Drawing(msgspec.Struct, frozen=True):
    """What is drawn.

    Attributes:
        title: The heading.
        facts: One line about the whole.
        lanes: From top to bottom.
        alarms: What is wrong, each a short title and a text.
        begin: When the axis begins, unless something happens before.
    """

    title: str
    facts: str
    lanes: tuple[Lane, ...]
    alarms: tuple[tuple[str, str], ...] = ()
    begin: float = 0.0

    @property
    def span(self) -> tuple[float, float]:
        """When the drawing begins and ends."""
        times = [at for lane in self.lanes for bar in lane.bars for at in (bar.begin, bar.end)]
        times += [mark.at for lane in self.lanes for mark in lane.marks]
        begin, end = min([self.begin, *times]), max([self.begin, *times])
        return begin, end if end > begin else begin + 1.0


class Sketch:
    """Lanes that grow as time goes by, in the order in which they are first named."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Bar | Mark]] = {}
        self._open: dict[str, dict[str, Bar]] = {}

    def mark(self, lane: str, at: float, kind: str, tip: str) -> None:
        """Add a mark."""
        self._parts.setdefault(lane, []).append(Mark(at, kind, tip))

    def begin(self, lane: str, bar: Bar) -> None:
        """Begin a bar; one of its kind that goes on in this lane ends."""
        self.end(lane, bar.begin, bar.kind)
        self._open.setdefault(lane, {})[bar.kind] = bar
        self._parts.setdefault(lane, [])

    def end(self, lane: str, at: float, kind: str = "", why: str = "") -> None:
        """End the bar of a kind that goes on in a lane, or all that do."""
        going_on = self._open.get(lane, {})
        for ended in [kind] if kind else list(going_on):
            if (bar := going_on.pop(ended, None)) is not None:
                self._parts[lane].append(replace(bar, end=at, tip=bar.tip + why))

    def where(self, kind: str) -> list[str]:
        """Return the lanes in which a bar of this kind goes on."""
        return [lane for lane, going_on in self._open.items() if kind in going_on]

    def lanes(self, at: float) -> list[Lane]:
        """Return the lanes; what goes on ends here."""
        for lane in self._parts:
            self.end(lane, at)
        return [
            Lane(
                lane,
                tuple(part for part in parts if isinstance(part, Bar)),
                tuple(part for part in parts if isinstance(part, Mark)),
            )
            for lane, parts in self._parts.items()
        ]


def page_of(drawing: Drawing) -> str:
    """Return the drawing as an HTML page."""
    assets = files("rendezvous_async.page") / "assets"
    style, script = ((assets / f"drawing.{kind}").read_text("utf-8") for kind in ("css", "js"))
    alarms = "".join(
        f'<section class="alarm" role="alert"><h2>{_safe(title)}</h2><p>{_safe(text)}</p></section>\n'
        for title, text in drawing.alarms
    )
    used = {part.kind for lane in drawing.lanes for part in lane.parts}
    legend = "".join(
        f'<li><i class="{_class(kind)}">{glyph}</i> {_safe(meaning)}</li>'
        for kind, (glyph, meaning) in ({kind: ("", meaning) for kind, meaning in BARS.items()} | MARKS).items()
        if kind in used
    )
    begin, end = drawing.span
    broken = [mark.at for lane in drawing.lanes for mark in lane.marks if mark.kind == "broken"]
    lines = "".join(f'<i class="line" style="left:{_percent(at, begin, end)}"></i>' for at in broken)
    zooms = "".join(f'<button value="{zoom}">{zoom}</button>' for zoom in ZOOMS)
    lanes = "\n".join(_lane(lane, begin, end) for lane in drawing.lanes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{_safe(drawing.title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{_safe(drawing.title)}</h1><p>{_safe(drawing.facts)}</p></header>
{alarms}<ul class="legend">{legend}</ul>
<p class="zoom">Zoom: {zooms}</p>
<div id="frame"><div id="plot">
<div class="row axis"><b>time</b><div class="track">{"".join(_ticks(begin, end))}</div></div>
{lanes}
<div class="row over"><b></b><div class="track">{lines}</div></div>
</div></div>
<p id="what" aria-live="polite">Point at something, or tap it, to read what it is.</p>
{_list(drawing)}
<script>
{script}</script>
</body>
</html>
"""


def _lane(lane: Lane, begin: float, end: float) -> str:
    bars = "".join(
        f'<i class="{_class(bar.kind)}" style="left:{_percent(bar.begin, begin, end)};'
        f'width:{_percent(begin + bar.end - bar.begin, begin, end)};--hue:{bar.round * HUE % 360:g}" '
        f'title="{_safe(_timed(bar))}">{_safe(bar.text)}</i>'
        for bar in lane.bars
    )
    marks = "".join(
        f'<i class="{_class(mark.kind)}" style="left:{_percent(mark.at, begin, end)}" '
        f'title="{_safe(_timed(mark))}">{MARKS[mark.kind][0]}</i>'
        for mark in lane.marks
    )
    name = _safe(lane.name)
    return f'<div class="row"><b title="{name}">{name}</b><div class="track">{bars}{marks}</div></div>'


def _ticks(begin: float, end: float) -> Iterator[str]:
    """Yield the numbers of the axis; those that only fit when one has zoomed in are ``fine``."""
    steps = {kind: _step(end - begin, most) for kind, most in TICKS.items()}
    finest = steps["tick finest"]
    for count in range(math.ceil(begin / finest), math.floor(end / finest) + 1):
        at = count * finest
        kind = next(kind for kind, step in steps.items() if math.isclose(at / step, round(at / step), abs_tol=1e-6))
        yield f'<i class="{kind}" style="left:{_percent(at, begin, end)}">{_clock(at, steps[kind])}</i>'


def _step(span: float, most: int) -> float:
    return next((nice for nice in NICE if span / nice <= most), DAY * math.ceil(span / most / DAY))


def _clock(at: float, step: float) -> str:
    if step < 1:
        return f"{at:.{math.ceil(-math.log10(step))}f} s"
    minutes, seconds = divmod(round(at), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}" if minutes else f"{seconds} s"


def _list(drawing: Drawing) -> str:
    """Return everything in the order of time, for those who read rather than look."""
    found = sorted(
        (part.begin if isinstance(part, Bar) else part.at, lane.name, part.tip)
        for lane in drawing.lanes
        for part in lane.parts
    )
    rows = "".join(
        f"<tr><td>{at:.3f} s</td><td>{_safe(name)}</td><td>{_safe(tip)}</td></tr>" for at, name, tip in found[:LISTED]
    )
    more = f"<p>The first {LISTED}.</p>" if len(found) > LISTED else ""
    return f"<details><summary>{counted(len(found), 'event')} as a list</summary>{more}<table>{rows}</table></details>"


def _timed(part: Bar | Mark) -> str:
    if isinstance(part, Bar):
        return f"{part.begin:.3f} to {part.end:.3f} s: {part.tip}"
    return f"{part.at:.3f} s: {part.tip}"


def _class(kind: str) -> str:
    return f"{'mark' if kind in MARKS else 'bar'} {kind}"


def _percent(at: float, begin: float, end: float) -> str:
    return f"{100 * (at - begin) / (end - begin):.4f}%"


def _safe(text: str) -> str:
    return escape(printable(text))
