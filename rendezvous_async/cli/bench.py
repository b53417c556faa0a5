"""Measure an endpoint with nodes of this process, each with its own connection: formation, keep-alives, detection.

Forms a world of exactly N nodes, which waits for no last call, and re-forms it; then sees how fast the server answers
while all N are kept alive; then, in a second run, adds a node in a process of its own and kills that with SIGKILL, to
see when the others know. Both runs are removed at the end. Nodes share this process, so its CPU is in the figures.
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
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="how often to form a world (5)")
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="S", help="how long to keep alive (3)")
    parser.add_argument("--json", action="store_true", help="print it for machines")


def run(options: Namespace) -> int:
    import anyio
    import msgspec

    from rendezvous_async.cli.measuring import measure

    terminal = Terminal(quiet=options.quiet)
    figures = anyio.run(measure, options, terminal)
    if options.json:
        terminal.print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    else:
        for line in str(figures).splitlines():
            terminal.print(line)
    return 0
