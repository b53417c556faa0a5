"""See it work: a server in this process and real node processes on this machine, over loopback.

Nodes meet, the last one joins late, the coordinator is killed with SIGKILL, the others continue, and the run is
closed. Exits with 0 only if every step succeeded.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

from rendezvous_async.cli.parsing import Parser, count, seconds

MOST_NODES = 64
EXAMPLE = """  rdzv demo
  rdzv demo --nodes 16 --timeout 120
  rdzv demo | cat                      # plain lines"""


def configure(parser: Parser) -> None:
    parser.add_argument("--nodes", type=nodes, default=4, metavar="N", help="how many nodes, from 4 to 64 (4)")
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="seconds until the demo gives up (60)"
    )


def nodes(text: str) -> int:
    """Parse the number of nodes."""
    number = count(text)
    if not 4 <= number <= MOST_NODES:
        raise ArgumentTypeError(f"{text!r} is not a number of nodes from 4 to {MOST_NODES}")
    return number


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.cli.exits import Exit, Failure
    from rendezvous_async.cli.stage import Stage
    from rendezvous_async.cli.terminal import Terminal

    terminal = Terminal(quiet=options.quiet)

    async def play() -> None:
        with anyio.move_on_after(options.timeout) as scope:
            await Stage(terminal, options.nodes).play()
        if scope.cancelled_caught:
            raise Failure(Exit.TIMED_OUT, f"the demo did not finish within {options.timeout:g} s; see --timeout")

    anyio.run(play)
    return Exit.OK
