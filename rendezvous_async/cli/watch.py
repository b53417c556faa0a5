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
from rendezvous_async.cli.folding import fold
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
LEAST_NEWS = 4
EMPTY_LINES = 4
"""Two between the parts of a picture, the header of the table, and one for the cursor."""
STYLES = {"absent": "red", "foreign": "red", "waiting": "yellow", "back": "yellow"}


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
        self._trouble = ""
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

        gone_since: float | None = None
        while True:
            await anyio.sleep(LOOK_AT_CONNECTION)
            trouble = backend.trouble
            was_gone = gone_since is not None
            if trouble is None:
                gone_since, self._trouble = None, ""
                if was_gone:
                    self._show("the backend is reachable again")
                continue
            gone_since = clock.now() if gone_since is None else gone_since
            self._trouble = f"for {clock.now() - gone_since:.0f} s: {trouble}"
            if was_gone:
                self._redraw()
            else:
                self._show(trouble)

    def _show(self, *what: str) -> None:
        news = [f"{clock.now() - self._began:8.2f} s  {change}" for change in what]
        self._news = [*self._news, *news][-REMEMBERED:]
        if self._draw is None:
            for line in news:
                self._terminal.print(line)
        self._redraw()

    def _redraw(self) -> None:
        if self._draw is not None and self._status is not None:
            self._draw(picture(self._status, self._news, self._terminal.height, self._trouble))


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


def picture(status: Status, news: list[str], height: int, trouble: str = "") -> RenderableType:
    """Draw a run: its state and what it waits for, its nodes in as many lines as there are, and the latest changes.

    Args:
        status: The run.
        news: The latest changes, the newest last.
        height: The lines of the terminal.
        trouble: For how long the backend has been out of reach, and why; then the rest is what was known before.
    """
    from rich.console import Group

    rows = [(absent.node, "absent", str(absent.rank), "") for absent in status.absent]
    rows += [
        (present.node, present.role.value, "-" if present.rank is None else str(present.rank), present.address)
        for present in status.here
    ]
    headline, *details = status.why()
    coordinator = [f"coordinator: {status.coordinator}"] if status.coordinator is not None else []
    top = [*([f"OUT OF DATE {trouble}"] if trouble else []), f"run {status.run_id!r}: {headline}"]
    below = [f"  {detail}" for detail in (*details, *coordinator)]
    space = height - len(top) - len(below) - EMPTY_LINES
    shown = fold(rows, max(1, space - min(len(news), LEAST_NEWS)), healthy="member")
    latest = news[-max(1, space - len(shown)) :]
    return Group(
        *([lines(top[:-1], "bold red")] if trouble else []),
        lines(top[-1:], "bold"),
        lines([*below, ""]),
        table(("NODE", "ROLE", "RANK", "ADDRESS"), shown, [STYLES.get(row[1], "") for row in shown]),
        lines(["", *latest]),
    )
