"""What a person sees: progress lines, colours where they are welcome, and a screen that is drawn in place.

Progress goes to stderr, results to stdout. Colours need a terminal, and no ``NO_COLOR``; a live screen needs a terminal
that can move its cursor. Otherwise everything is plain lines.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from rendezvous_async.texts import printable

__all__ = ["Screen", "Terminal", "clean", "end_bar", "make_output_safe", "table"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_HIDE, _SHOW, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[K", "\x1b[J"

BAR = 24


def clean(text: str) -> str:
    """Return lines of text with nothing in them that a terminal would obey."""
    return "\n".join(map(printable, text.split("\n")))


_unfinished: list[TextIO] = []
"""The terminal on whose last line a progress bar stands, if there is one."""


def end_bar() -> None:
    """Give what is written next a line of its own."""
    while _unfinished:
        _unfinished.pop().write("\n")


def make_output_safe() -> None:
    """Write log lines without control characters, and text that the locale cannot encode with escapes.

    What was closed by whoever started this process is /dev/null from now on, before a socket gets its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_SafeFormatter())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _SafeFormatter(logging.Formatter):
    """Formats what the library logs; names of other nodes may be in it."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


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
        end_bar()
        print(clean(text), file=self.out, flush=True)

    def say(self, text: str) -> None:
        """Write a line of progress, unless that is not wanted."""
        if not self.quiet:
            end_bar()
            print(clean(text), file=self.err, flush=True)

    def progress(self, done: int, total: int, text: str) -> None:
        """Say that so many steps of so many are done, and what is next: a bar on a terminal, else a line."""
        if self.quiet:
            return
        if not self.err.isatty():
            self.say(f"{done} of {total}: {text}")
            return
        bar = "#" * (BAR * done // total)
        _unfinished[:] = [self.err]  # First: an interrupt may come at any moment.
        room = shutil.get_terminal_size().columns - BAR - 4
        self.err.write(f"\r[{bar:-<{BAR}}] {clean(text)[:room]}{_CLEAR_LINE}" + ("\n" if done == total else ""))
        self.err.flush()
        if done == total:
            _unfinished.clear()

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
        shown = list(lines)[-max(1, size.lines - 1) :]
        up = f"\x1b[{self._height}A\r" if self._height else "\r"
        self._out.write(up + "".join(f"{_cut(line, size.columns)}{_CLEAR_LINE}\n" for line in shown) + _CLEAR_BELOW)
        self._out.flush()
        self._height = len(shown)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; the first line is the header."""
    cells = [list(header), *(list(map(printable, row)) for row in rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]
    return [
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _width(text: str) -> int:
    """Return how many columns a text takes: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _cut(line: str, columns: int) -> str:
    """Return a line that fits; colours take no room."""
    width = at = 0
    while at < len(line):
        if line[at] == "\x1b":
            at = line.index("m", at) + 1
            continue
        width += _width(line[at])
        if width >= columns:
            return line[:at] + ("\x1b[0m" if "\x1b" in line else "")
        at += 1
    return line
