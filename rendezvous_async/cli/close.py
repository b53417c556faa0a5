"""Close a run permanently for all nodes. With --purge, wait for its nodes to leave and remove all of its keys."""

from __future__ import annotations

import getpass
import os
import socket
from argparse import Namespace
from contextlib import suppress

from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = """  rdzv close tcp://head:29400 --run-id job-7 --reason 'bad data in shard 12'
  rdzv close tcp://head:29400 --run-id job-7 --purge"""


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--reason", default="closed by hand", metavar="TEXT", help="told to the nodes (closed by hand)")
    parser.add_argument("--purge", action="store_true", help="then remove the run's keys once its nodes have left")


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_close, options)


async def _close(options: Namespace) -> int:
    import anyio

    from rendezvous_async.admin import close_run, purge_run, read_status
    from rendezvous_async.aio.deadline import answer_within
    from rendezvous_async.core.state import NODES, STATE
    from rendezvous_async.errors import RendezvousStateError

    terminal = Terminal(quiet=options.quiet)
    async with open_run(options, existing=True) as backend:
        with answer_within(options.timeout, f"close run {options.run_id!r}"):
            before = None
            if await backend.get(STATE) is None:
                known_run(await read_status(backend), options)
            with suppress(RendezvousStateError):  # A damaged run can still be closed.
                before = (await read_status(backend)).closed
            closed = await close_run(backend, options.reason, author())
        if before is None:
            terminal.print(f"closed run {options.run_id!r}: {closed.reason}")
        elif not options.purge:
            raise Failure(Exit.CLOSED, f"run {options.run_id!r} was already closed by {before.in_words}")
        if options.purge:
            with anyio.move_on_after(options.timeout) as scope:
                terminal.say("waiting for the nodes to leave")
                async with backend.watch(NODES) as watch:
                    async for _ in watch:
                        if await purge_run(backend):
                            break
            if scope.cancelled_caught:
                raise Failure(
                    Exit.TIMED_OUT,
                    f"run {options.run_id!r} is closed, but some nodes did not leave within {options.timeout:g} s, so "
                    "nothing was removed; rdzv status lists them; try again once they have left",
                )
            terminal.print(f"removed all keys of run {options.run_id!r}")
    return Exit.OK


def author() -> str:
    """Return the user and host that run this command."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # A user id without a name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
