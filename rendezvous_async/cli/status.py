"""Say how a run stands: who is here, who is missing, and why a round has not formed."""

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
    parser.add_argument("--json", action="store_true", help="print it for machines")


def run(options: Namespace) -> int:
    import anyio
    import msgspec

    from rendezvous_async.clock import answer_within
    from rendezvous_async.control import read_status

    terminal = Terminal(quiet=options.quiet)

    async def look() -> int:
        async with open_run(options, existing=True) as backend:
            with answer_within(options.timeout, f"read the status of run {options.run_id!r}"):
                status = known_run(await read_status(backend), options)
        terminal.print(
            msgspec.json.format(msgspec.json.encode(status), indent=2).decode() if options.json else str(status)
        )
        if status.closed is not None:
            raise Failure(Exit.CLOSED, f"run {options.run_id!r} is closed")
        return Exit.OK

    return anyio.run(look)
