"""Follow a run live, driven by pushes: a picture in a terminal, a line for each change elsewhere.

It says when the backend cannot be reached, and when it can be again. Ends with 0 when the run is closed, and with 4 if
it was closed before.
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
LOOK_AT_CONNECTION = 0.25
REMEMBERED = 10


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--wait", action="store_true", help="wait for the run, if nobody has joined it yet")


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_watch, options)


async def _watch(options: Namespace) -> int:
    import anyio

    viewer = Viewer(options)
    async with open_run(options, existing=not options.wait) as backend, anyio.create_task_group() as group:
        group.start_soon(viewer.watch_connection, backend)
        code = await viewer.watch_run(backend)
        group.cancel_scope.cancel()
    return code


class Viewer:
    """Shows a run as it changes: a picture in a terminal, a line for each change elsewhere."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._terminal = Terminal(quiet=options.quiet)
        self._screen = Screen(self._terminal)
        self._began = clock.now()
        self._status: Status | None = None
        self._lines: list[str] = []

    async def watch_run(self, backend: Backend) -> int:
        """Show every change, until the run is closed; returns the exit code."""
        import anyio

        from rendezvous_async.cli.changes import changes

        before: Status | None = None
        async with aclosing(statuses(backend)) as looks:
            async for status in looks:
                if self._status is None and not self._options.wait:
                    known_run(status, self._options)
                if before is None and status.closed is not None:
                    raise Failure(Exit.CLOSED, str(status).splitlines()[0])
                self._status = status
                if before is not None and status.settings is None:
                    before = None
                    self._show("the backend holds nothing of the run any more; waiting for its nodes")
                else:
                    self._show(*changes(before, status))
                    before = status if status.settings is not None else before
                if status.closed is not None:
                    return Exit.OK
                await anyio.sleep(PAUSE)
        return Exit.OK

    async def watch_connection(self, backend: Backend) -> None:
        """Show when the backend cannot be reached, and when it can be again."""
        import anyio

        was_gone = False
        while True:
            await anyio.sleep(LOOK_AT_CONNECTION)
            trouble = backend.trouble
            if trouble is not None and not was_gone:
                self._show(trouble)
            elif trouble is None and was_gone:
                self._show("the backend can be reached again")
            was_gone = trouble is not None

    def _show(self, *what: str) -> None:
        news = [f"{clock.now() - self._began:8.2f} s  {clean(change)}" for change in what]
        self._lines = [*self._lines, *news][-REMEMBERED:]
        if not self._terminal.live:
            for line in news:
                self._terminal.print(line)
        elif self._status is not None:
            with self._screen:
                self._screen.draw([*picture(self._terminal, self._status), "", *self._lines])


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
