"""Follow a run live: a table on a terminal, otherwise one line for each change.

Reports when the connection to the backend is lost and when it is back. Exits with 0 when the run is closed, and with 4
if it was closed already.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from rendezvous_async.aio import clock
from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser
from rendezvous_async.cli.terminal import Terminal, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rendezvous_async.backends.base import Backend, Entry
    from rendezvous_async.core.diagnosis import Status

EXAMPLE = """  rdzv watch tcp://head:29400 --run-id job-7
  rdzv watch tcp://head:29400 --run-id job-7 --wait | tee job-7.log"""
PAUSE = 0.1
"""The least seconds between two updates: people cannot read faster."""
LOOK_AT_CONNECTION = 0.25
REMEMBERED = 10


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--wait", action="store_true", help="wait for the first node if the run does not exist yet")


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_watch, options)


async def _watch(options: Namespace) -> int:
    import anyio

    terminal = Terminal(quiet=options.quiet)
    async with open_run(options, existing=not options.wait) as backend:
        with terminal.screen() as draw:
            viewer = Viewer(options, terminal, draw)
            async with anyio.create_task_group() as group:
                group.start_soon(viewer.watch_connection, backend)
                code = await viewer.watch_run(backend)
                group.cancel_scope.cancel()
    return code


class Viewer:
    """Shows a run as it changes.

    Args:
        options: The command's options.
        terminal: Gets a line for each change if ``draw`` is None.
        draw: Replaces the picture on the terminal.
    """

    def __init__(self, options: Namespace, terminal: Terminal, draw: Callable[[RenderableType], None] | None) -> None:
        self._options = options
        self._terminal = terminal
        self._draw = draw
        self._began = clock.now()
        self._status: Status | None = None
        self._news: list[str] = []

    async def watch_run(self, backend: Backend) -> int:
        """Show every change until the run is closed; return the exit code."""
        import anyio

        from rendezvous_async.core.changes import changes

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
                    self._show("the backend has lost the run's state; waiting for its nodes to reconnect")
                else:
                    self._show(*changes(before, status))
                    before = status if status.settings is not None else before
                if status.closed is not None:
                    return Exit.OK
                await anyio.sleep(PAUSE)
        return Exit.OK

    async def watch_connection(self, backend: Backend) -> None:
        """Report when the connection to the backend is lost and when it is back."""
        import anyio

        was_gone = False
        while True:
            await anyio.sleep(LOOK_AT_CONNECTION)
            trouble = backend.trouble
            if trouble is not None and not was_gone:
                self._show(trouble)
            elif trouble is None and was_gone:
                self._show("the backend is reachable again")
            was_gone = trouble is not None

    def _show(self, *what: str) -> None:
        news = [f"{clock.now() - self._began:8.2f} s  {change}" for change in what]
        self._news = [*self._news, *news][-REMEMBERED:]
        if self._draw is None:
            for line in news:
                self._terminal.print(line)
        elif self._status is not None:
            self._draw(picture(self._status, self._news, self._terminal.height))


async def statuses(backend: Backend) -> AsyncGenerator[Status, None]:
    """Yield the status of a run, now and after each change."""
    from rendezvous_async.admin import status_of
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


def picture(status: Status, news: list[str], height: int) -> RenderableType:
    """Draw a run: the diagnosis, as many nodes as fit, and the latest changes."""
    from rich.console import Group

    nodes = [
        (present.node, present.role.value, "-" if present.rank is None else str(present.rank), present.address)
        for present in status.here
    ]
    nodes += [(absent.node, "absent", str(absent.rank), "") for absent in status.absent]
    headline, *details = str(status).splitlines()
    room = max(1, height - len(details) - len(news) - 6)  # Headline, table header, empty lines, and "more nodes".
    more = [f"... and {len(nodes) - room} more"] if len(nodes) > room else []
    return Group(
        lines([headline], "bold"),
        lines([*details, ""]),
        table(("NODE", "ROLE", "RANK", "ADDRESS"), nodes[:room]),
        lines([*more, "", *news]),
    )
