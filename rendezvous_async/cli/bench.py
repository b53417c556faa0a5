"""Measure an endpoint with N nodes in this process, each on its own connection: formation, keep-alives, detection.

1. Form a world of exactly N nodes, so that no last call delays it, and re-form it.
2. Measure how fast the server answers while all N nodes send keep-alives.
3. In a second run, add a node in its own process, kill it with SIGKILL, and measure when the others know.

Both runs are removed at the end. All nodes share this process, so the figures include its CPU time.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.endpoints import add_connection, add_timeout
from rendezvous_async.cli.parsing import Parser, count, seconds
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = """  rdzv bench tcp://head:29400 --nodes 64
  rdzv bench tcp://head:29400 --nodes 256 --json > figures.json"""


def configure(parser: Parser) -> None:
    add_connection(parser)
    add_timeout(parser)
    parser.add_argument("--nodes", type=count, default=16, metavar="N", help="how many nodes (16)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="how many times to form a world (5)")
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="S", help="how long to send keep-alives (3)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.cli.measuring import measure

    terminal = Terminal(quiet=options.quiet)
    figures = anyio.run(measure, options, terminal)
    if options.json:
        terminal.print_json(figures)
    else:
        terminal.print(str(figures))
    return 0
