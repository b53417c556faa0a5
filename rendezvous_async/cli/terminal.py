"""What a person sees: progress lines, colours where they are welcome, and a screen that is drawn in place.

Progress goes to stderr, results to stdout. Colours need a terminal, and no ``NO_COLOR``; a live screen needs a terminal
that can move its cursor. Otherwise everything is plain lines.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

__all__ = ["Screen", "Terminal", "clean", "table"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_HIDE, _SHOW, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[K", "\x1b[J"

BAR = 24


def clean(text: str) -> str:
    """Return a text that came from others with nothing in it that a terminal would obey."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in text)


class Terminal:
    """Where a command writes.

    Attributes:
        live: Whether stdout is a terminal on which a screen can be drawn in place.
    """

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.quiet = quiet
        self.live = self.out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self.live and not os.environ.get("NO_COLOR")

    def print(self, text: str = "") -> None:
        """Write a result."""
        print(clean(text), file=self.out, flush=True)

    def say(self, text: str) -> None:
        """Write a line of progress, unless that is not wanted."""
        if not self.quiet:
            print(clean(text), file=self.err, flush=True)

    def progress(self, done: int, total: int, text: str) -> None:
        """Say that so many steps of so many are done, and what is next: a bar on a terminal, else a line."""
        if self.quiet:
            return
        if not self.err.isatty():
            self.say(f"{done} of {total}: {text}")
            return
        bar = "#" * (BAR * done // total)
        self.err.write(f"\r[{bar:-<{BAR}}] {clean(text)}{_CLEAR_LINE}" + ("\n" if done == total else ""))
        self.err.flush()

    def paint(self, text: str, *styles: str) -> str:
        """Return ``text`` in colours, or as it is."""
        if not self._colours or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


class Screen:
    """Some lines at the end of the terminal that are drawn again and again, in place."""

    def __init__(self, terminal: Terminal) -> None:
        self._out = terminal.out
        self._height = 0

    def __enter__(self) -> Screen:
        self._out.write(_HIDE)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write(_SHOW)
        self._out.flush()

    def draw(self, lines: Iterable[str]) -> None:
        """Draw ``lines`` over those of the last time; what does not fit the terminal is left out, the oldest first."""
        size = shutil.get_terminal_size()
        shown = list(lines)[-(size.lines - 1) :]
        up = f"\x1b[{self._height}A\r" if self._height else "\r"
        self._out.write(up + "".join(f"{_cut(line, size.columns)}{_CLEAR_LINE}\n" for line in shown) + _CLEAR_BELOW)
        self._out.flush()
        self._height = len(shown)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; the first line is the header."""
    cells = [list(header), *(list(map(clean, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _cut(line: str, columns: int) -> str:
    """Return a line that fits; colours take no room."""
    width = at = 0
    while at < len(line):
        if line[at] == "\x1b":
            at = line.index("m", at) + 1
            continue
        if width == columns - 1:
            return line[:at] + ("\x1b[0m" if "\x1b" in line else "")
        width, at = width + 1, at + 1
    return line
