"""Terminal output: progress lines, colours where supported, and a live view redrawn in place.

Progress goes to stderr, results to stdout. rich is imported only to draw on a terminal; pipes and files get plain
lines. Text from other nodes reaches rich as ``Text``, never as markup. Control characters are escaped first, since rich
does not escape them.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from rendezvous_async.texts import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = ["Terminal", "clean", "lines", "make_output_safe", "table"]

BAR = 24


def clean(text: str) -> str:
    """Escape the control characters in each line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def make_output_safe() -> None:
    """Escape control characters in log lines, and characters that the locale cannot encode on stdout.

    Reopen closed standard streams as /dev/null, before a socket gets their descriptors.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_SafeFormatter())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _SafeFormatter(logging.Formatter):
    """Escapes control characters: log lines may contain names of other nodes."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


class Terminal:
    """Where a command writes.

    Attributes:
        live: Whether stdout is a terminal that can be redrawn in place.
    """

    def __init__(self, *, quiet: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.quiet = quiet
        self.live = _is_capable(self.out)

    def print(self, *pieces: str | tuple[str, str]) -> None:
        """Write one line of results; a piece may have a style."""
        styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        if self.live and any(style for _, style in styled):
            from rich.text import Text

            line = Text.assemble(*((clean(text), style) for text, style in styled))
            self._console.print(line, soft_wrap=True)
        else:
            print(clean("".join(text for text, _ in styled)), file=self.out, flush=True)

    def print_json(self, value: object) -> None:
        """Write a result as indented JSON."""
        import msgspec

        self.print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

    def say(self, text: str) -> None:
        """Write a line of progress, unless quiet."""
        if not self.quiet:
            print(clean(text), file=self.err, flush=True)

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[int, str], None]]:
        """Yield a function that reports the steps done and the current one: a bar on a terminal, else lines."""
        if self.quiet or not _is_capable(self.err):
            yield lambda done, text: self.say(f"{done} of {total}: {text}")
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        bar = Progress(
            BarColumn(BAR, complete_style="green", finished_style="green", table_column=Column(min_width=BAR)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(file=self.err),
            auto_refresh=False,
            redirect_stdout=self.live,
        )
        with bar:
            task = bar.add_task("", total=total)
            yield lambda done, text: bar.update(task, completed=done, description=clean(text), refresh=True)

    @contextmanager
    def screen(self) -> Iterator[Callable[[RenderableType], None] | None]:
        """Yield a function that replaces the current picture; None if stdout cannot be redrawn in place."""
        if not self.live:
            yield None
            return
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False) as live:
            yield lambda picture: live.update(picture, refresh=True)

    @property
    def height(self) -> int:
        """The lines available for a picture."""
        return self._console.height

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self.out, highlight=False, markup=False, emoji=False)


def _is_capable(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def lines(texts: Iterable[str], style: str = "") -> Text:
    """Return lines for a picture, each truncated at the terminal's width."""
    from rich.text import Text

    return Text("\n".join(map(printable, texts)), style, no_wrap=True, overflow="ellipsis")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], styles: Iterable[str] = ()) -> Table:
    """Return a table for a picture, with an optional style for each row."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in header:
        made.add_column(name, no_wrap=True)
    style = iter(styles)
    for row in rows:
        made.add_row(*(lines([cell]) for cell in row), style=next(style, ""))
    return made
