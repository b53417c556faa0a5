"""Follow a run live, driven by pushes: a picture in a terminal, a line for each change elsewhere.

Ends with 0 when the run is closed, and with 4 if it was closed before.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from rendezvous_async import clock
from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser
from rendezvous_async.cli.terminal import Screen, Terminal, clean, table

if TYPE_CHECKING:
    from rendezvous_async.backends.base import Backend, Entry
    from rendezvous_async.core.diagnosis import Status

EXAMPLE = """  rdzv watch tcp://head:29400 --run-id job-7
  rdzv watch tcp://head:29400 --run-id job-7 --wait | tee job-7.log"""
PAUSE = 0.1
"""Seconds between two pictures, at least: people cannot read faster."""
REMEMBERED = 10


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--wait", action="store_true", help="wait for the run, if nobody has joined it yet")


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_watch, options)


async def _watch(options: Namespace) -> int:
    import anyio

    from rendezvous_async.cli.changes import changes

    terminal = Terminal(quiet=options.quiet)
    began = clock.now()
    before: Status | None = None
    lines: list[str] = []
    async with open_run(options) as backend, aclosing(statuses(backend)) as looks:
        screen = Screen(terminal)
        async for status in looks:
            if not options.wait:
                known_run(status, options)
            if before is None and status.closed is not None:
                raise Failure(Exit.CLOSED, str(status).splitlines()[0])
            news = [f"{clock.now() - began:8.2f} s  {clean(change)}" for change in changes(before, status)]
            lines = [*lines, *news][-REMEMBERED:]
            if terminal.live:
                with screen:
                    screen.draw([*picture(terminal, status), "", *lines])
            else:
                for line in news:
                    terminal.print(line)
            if status.closed is not None:
                return Exit.OK
            if status.settings is not None:
                before = status
            await anyio.sleep(PAUSE)
    return Exit.OK


async def statuses(backend: Backend) -> AsyncGenerator[Status, None]:
    """Yield how a run stands, and again whenever that has changed."""
    from rendezvous_async.control import status_of
    from rendezvous_async.core.state import COORDINATOR, NODES, SEATS, STATE

    entries: dict[str, Entry] = {}
    async with backend.watch(STATE, COORDINATOR, SEATS, NODES) as watch:
        async for listing in watch:
            for entry in listing.entries:
                if entry.value is None:
                    entries.pop(entry.key, None)
                else:
                    entries[entry.key] = entry
            yield status_of(
                backend.run_id,
                entries.get(STATE),
                entries.get(COORDINATOR),
                [entry for key, entry in entries.items() if key.startswith(SEATS)],
                [entry for key, entry in entries.items() if key.startswith(NODES)],
            )


def picture(terminal: Terminal, status: Status) -> list[str]:
    """Return a run as lines for a screen: the diagnosis, and a table of the nodes."""
    rows = [
        (present.node, present.role.value, "-" if present.rank is None else str(present.rank), present.address)
        for present in status.here
    ]
    rows += [(absent.node, "absent", str(absent.rank), "") for absent in status.absent]
    header, *nodes = table(("NODE", "ROLE", "RANK", "ADDRESS"), rows)
    headline, *details = clean(str(status)).splitlines()
    return [terminal.paint(headline, "bold"), *details, "", terminal.paint(header, "bold"), *nodes]
