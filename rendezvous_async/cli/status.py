"""Show the state of a run: which nodes are present or missing, and why a round has not formed."""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = """  rdzv status tcp://head:29400 --run-id job-7
  rdzv status tcp://head:29400 --run-id job-7 --json"""


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.admin import read_status
    from rendezvous_async.aio.deadline import answer_within

    terminal = Terminal(quiet=options.quiet)

    async def look() -> int:
        async with open_run(options, existing=True) as backend:
            with answer_within(options.timeout, f"read the status of run {options.run_id!r}"):
                status = known_run(await read_status(backend), options)
        if options.json:
            terminal.print_json(status)
        else:
            terminal.print(str(status))
        if status.closed is not None:
            raise Failure(Exit.CLOSED, f"run {options.run_id!r} is closed")
        return Exit.OK

    return anyio.run(look)
