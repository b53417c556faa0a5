"""Play random scenarios in virtual time and check every guarantee.

One seed makes a cluster, a network and a schedule of faults: crashes, freezes, partitions, a server that forgets.
A seed that fails is printed with the command that repeats it, and the exit code is 1.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.parsing import Parser, count, number

EXAMPLE = """  rdzv simulate --seeds 200
  rdzv simulate --first 4711 --seeds 1 --nodes 5"""


def configure(parser: Parser) -> None:
    parser.add_argument("--first", type=number, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--seeds", type=count, default=100, metavar="N", help="how many seeds (100)")
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes in each scenario (2 to 6, by seed)")
    parser.add_argument("--processes", type=count, default=1, metavar="N", help="how many to play at once (1)")


def run(options: Namespace) -> int:
    from rendezvous_async.cli.terminal import Terminal
    from rendezvous_async.testing.command import Progress, report

    terminal = Terminal(quiet=options.quiet)

    def show(done: Progress) -> None:
        terminal.progress(done.played, options.seeds, str(done))

    return report(options, "rdzv simulate", show)
