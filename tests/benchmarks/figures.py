"""What a benchmark prints: a figure is the median of several runs, with the least and the most of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TextIO, TypeAlias

import msgspec

__all__ = ["Figure", "Figures", "Part", "list_lines", "parser_of", "run_parts", "short", "summary"]


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was measured.

    Attributes:
        part: Of the suite.
        what: Was measured.
        who: Was it measured of: ours, a peer, or a floor.
        median: Of all runs; None if none of them came to its end.
        unit: Of median, least and most.
        runs: How many came to their end.
        failed: How many did not.
        nodes: How many there were, if it depends on that.
        note: What a reader should know.
    """

    part: str
    what: str
    who: str
    median: float | None
    unit: str
    least: float | None = None
    most: float | None = None
    runs: int = 0
    failed: int = 0
    nodes: int = 0
    note: str = ""


class Figures:
    """Prints every figure as a JSON line as soon as it is there, and all of them as a table in the end."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self.all: list[Figure] = []
        self._out = out

    def add(
        self,
        part: str,
        what: str,
        who: str,
        values: Sequence[float | None],
        unit: str = "s",
        nodes: int = 0,
        note: str = "",
    ) -> Figure:
        """Add what several runs gave; None stands for a run that did not come to its end."""
        there = [value for value in values if value is not None]
        figure = Figure(
            part,
            what,
            who,
            short(statistics.median(there)) if there else None,
            unit,
            short(min(there)) if there else None,
            short(max(there)) if there else None,
            len(there),
            len(values) - len(there),
            nodes,
            note,
        )
        self.all.append(figure)
        print(json.dumps(msgspec.to_builtins(figure)), file=self._out, flush=True)
        return figure

    def ratio(self, part: str, what: str, over: Figure, under: Figure) -> None:
        """Add how many times ``under`` fits into ``over``."""
        value = over.median / under.median if over.median is not None and under.median else None
        who = over.who if over.who == under.who else f"{over.who} / {under.who}"
        self.add(part, what, who, [value], "times", over.nodes)

    def table(self) -> str:
        """Return all figures as a Markdown table."""
        lines = [
            "| part | what | nodes | who | median | least | most | runs |",
            "|---|---|--:|---|--:|--:|--:|--:|",
        ]
        for figure in self.all:
            runs = f"{figure.runs}" + (f" ({figure.failed} did not end)" if figure.failed else "")
            median, least, most = (
                "never" if value is None else f"{value:g} {figure.unit}"
                for value in (figure.median, figure.least, figure.most)
            )
            note = f" ({figure.note})" if figure.note else ""
            lines.append(
                f"| {figure.part} | {figure.what}{note} | {figure.nodes or ''} | {figure.who} | {median} | {least} | "
                f"{most} | {runs} |"
            )
        return "\n".join(lines) + "\n"


Part: TypeAlias = Callable[[Figures, int, bool], Awaitable[None]]
"""Measures something: given where to put the figures, how many runs, and whether to be quick."""


def parser_of(parts: Iterable[str], description: str | None) -> argparse.ArgumentParser:
    """Return what reads a command line that names parts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*parts, []], help="which parts; all if none is named")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, shorter")
    parser.add_argument("--runs", type=int, default=5)
    return parser


def run_parts(parts: Mapping[str, Part], description: str | None) -> None:
    """Run the parts that the command line names; all if it names none."""
    options = parser_of(parts, description).parse_args()

    async def run() -> None:
        figures = Figures()
        for name in options.names or parts:
            await parts[name](figures, options.runs, options.quick)

    asyncio.run(run())


def short(value: float) -> float:
    """Return ``value`` to three digits."""
    return float(f"{value:.3g}")


def summary(values: Iterable[float], factor: float = 1.0) -> dict[str, float]:
    """Return the median, the least and the most of several runs and how many there were, for a JSON line."""
    scaled = [factor * value for value in values]
    median, least, most = (float(f"{value:.4g}") for value in (statistics.median(scaled), min(scaled), max(scaled)))
    return {"median": median, "least": least, "most": most, "runs": len(scaled)}


def list_lines(lines: Iterable[Mapping[str, object]]) -> str:
    """Return JSON lines as a Markdown list, one item for each."""
    return "".join(f"* {', '.join(f'{name} {_told(value)}' for name, value in line.items())}\n" for line in lines)


def _told(value: object) -> str:
    match value:
        case {"median": median, "least": least, "most": most, "runs": runs}:
            return f"{median} ({least} to {most}, {runs} runs)"
        case None:
            return "never"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
