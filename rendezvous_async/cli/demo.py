"""See it work: a server in this process and real node processes on this machine, over loopback.

Three nodes meet, a fourth comes late, the one that coordinates is killed with SIGKILL, the others go on, and the run is
closed. Exits 0 only if every step that it shows has happened.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.parsing import Parser, seconds

EXAMPLE = """  rdzv demo
  rdzv demo | cat                      # plain lines"""


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="seconds after which it has failed (60)"
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
            raise Failure(Exit.TIMED_OUT, f"the demo was not done after {options.timeout:g} s; see --timeout")

    anyio.run(play)
    return Exit.OK
