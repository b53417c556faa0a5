"""See it work: a server in this process and real node processes on this machine, over loopback.

Three nodes meet, a fourth joins late, the coordinator is killed with SIGKILL, the others continue, and the run is
closed. Exits with 0 only if every step succeeded.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.parsing import Parser, seconds

EXAMPLE = """  rdzv demo
  rdzv demo | cat                      # plain lines"""


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="seconds until the demo gives up (60)"
    )


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.cli.exits import Exit, Failure
    from rendezvous_async.cli.stage import Stage
    from rendezvous_async.cli.terminal import Terminal

    terminal = Terminal(quiet=options.quiet)

    async def play() -> None:
        with anyio.move_on_after(options.timeout) as scope:
            await Stage(terminal).play()
        if scope.cancelled_caught:
            raise Failure(Exit.TIMED_OUT, f"the demo did not finish within {options.timeout:g} s; see --timeout")

    anyio.run(play)
    return Exit.OK
