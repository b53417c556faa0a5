"""Tell what happened to a run, and why: one line for each change, the oldest first. The last 512 changes are kept.

Works while the run goes on, and after it was closed. Times of day are those of the machines that wrote the lines;
lengths are by one machine's steady clock, where one saw both ends. --goodput adds up where the time went. --html draws
it, in one file that needs nothing else.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit
from rendezvous_async.cli.parsing import Parser
from rendezvous_async.cli.terminal import Terminal

if TYPE_CHECKING:
    from rendezvous_async.backends.base import Backend
    from rendezvous_async.core.history import HistoryRecord

EXAMPLE = """  rdzv history tcp://head:29400 --run-id job-7
  rdzv history tcp://head:29400 --run-id job-7 --goodput
  rdzv history tcp://head:29400 --run-id job-7 --html job-7.html"""


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print JSON; with --follow, one line for each change")
    parser.add_argument("--follow", action="store_true", help="go on with each change as it comes, until it is closed")
    parser.add_argument("--goodput", action="store_true", help="add up where the time went, instead of the changes")
    parser.add_argument("--html", metavar="FILE", help="draw it into a file for a browser, instead of printing it")


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_history, options)


async def _history(options: Namespace) -> int:
    from rendezvous_async.admin import read_history, read_status
    from rendezvous_async.aio.deadline import answer_within

    terminal = Terminal(quiet=options.quiet)
    async with open_run(options, existing=True) as backend:
        with answer_within(options.timeout, f"read the history of run {options.run_id!r}"):
            records = await read_history(backend)
            if not records:
                known_run(await read_status(backend), options)
        if options.html:
            _draw(options, terminal, records)
        elif options.goodput:
            _sum_up(options, terminal, records)
        elif options.follow:
            await _follow(backend, _teller(options, terminal))
        elif options.json:
            terminal.print_json(records)
        else:
            if not records:
                terminal.say(f"nothing has happened to run {options.run_id!r} yet: no round has formed")
            _teller(options, terminal)(records)
    return Exit.OK


def _sum_up(options: Namespace, terminal: Terminal, records: Sequence[HistoryRecord]) -> None:
    from rendezvous_async.aio import clock
    from rendezvous_async.core.goodput import goodput_of
    from rendezvous_async.core.history import Kind
    from rendezvous_async.core.retelling import sum_up

    goodput = goodput_of(records, clock.wall())
    if options.json:
        terminal.print_json(goodput)
        return
    rounds = sum(record.kind == Kind.FORMED for record in records)
    for line in sum_up(options.run_id, goodput, rounds):
        terminal.print(line)


def _draw(options: Namespace, terminal: Terminal, records: Sequence[HistoryRecord]) -> None:
    from rendezvous_async.page.drawing import page_of
    from rendezvous_async.page.past import drawing_of

    with open(options.html, "w", encoding="utf-8") as file:
        file.write(page_of(drawing_of(options.run_id, records)))
    terminal.say(f"wrote {options.html}")


async def _follow(backend: Backend, tell: Callable[[Sequence[HistoryRecord]], None]) -> None:
    """Tell what is there, and each change as it comes, until the run is closed."""
    from rendezvous_async.admin import read_records
    from rendezvous_async.core.history import HISTORY, Kind

    async with backend.watch(HISTORY) as watch:
        async for listing in watch:
            records = list(read_records(entry for entry in listing.entries if entry.value is not None))
            tell(records)
            if any(record.kind == Kind.CLOSED for record in records):
                return


def _teller(options: Namespace, terminal: Terminal) -> Callable[[Sequence[HistoryRecord]], None]:
    """Return what prints the next records, each day under its date."""
    import msgspec

    from rendezvous_async.core.retelling import Retelling

    retelling, day = Retelling(), ""

    def tell(records: Sequence[HistoryRecord]) -> None:
        nonlocal day
        for record in records:
            if options.json:
                terminal.print(msgspec.json.encode(record).decode())
                continue
            then = time.localtime(record.at)
            if (today := time.strftime("%A, %d %B %Y", then)) != day:
                day = today
                terminal.print(f"{day} (times are {time.strftime('%Z', then)})")
            for line in retelling.lines(record, time.strftime("%H:%M:%S", then)):
                terminal.print(line)

    return tell
