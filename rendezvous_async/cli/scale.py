"""Change how many nodes a run may have, while it runs. The nodes that are here need not be restarted.

Nodes that join later still start with the --nodes that the run began with, and take what holds now from the run. A
round that is too large now re-forms at once, and its last ranks become spares. A round that is too small is kept until
a larger one can form.

With --target, no round has more nodes, and a round of that size forms at once. New --nodes end the old target; so does
--target 0. --grow lets newcomers in who are held back (rdzv launch --grow, Timeouts.grow).

A run that was scaled requires this version: nodes of an older one are out for good, so upgrade them before.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.close import author
from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import SIZES, Parser, number
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = """  rdzv scale tcp://head:29400 --run-id job-7 --nodes 2:12 --target 8
  rdzv scale tcp://head:29400 --run-id job-7 --target 0
  rdzv scale tcp://head:29400 --run-id job-7 --grow"""


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--nodes", metavar="SIZES", help=f"nodes in a round: {SIZES}")
    parser.add_argument("--target", type=number, metavar="N", help="no round has more nodes than this; 0: no target")
    parser.add_argument("--grow", action="store_true", help="let in newcomers who are held back")


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.sizes import parse_sizes

    if options.nodes is None and options.target is None and not options.grow:
        raise Failure(Exit.USAGE, "say what to change: --nodes, --target or both, or --grow; see rdzv scale --help")
    if options.nodes is not None:
        parse_sizes(options.nodes)
    return anyio.run(_scale, options)


async def _scale(options: Namespace) -> int:
    from rendezvous_async.admin import let_newcomers_in, read_status, scale_run
    from rendezvous_async.aio.deadline import answer_within
    from rendezvous_async.texts import counted

    terminal = Terminal(quiet=options.quiet)
    run_id = f"run {options.run_id!r}"
    async with open_run(options, existing=True) as backend:
        with answer_within(options.timeout, f"scale {run_id}"):
            before = known_run(await read_status(backend), options)
            if before.spec is None:
                raise Failure(Exit.NOT_FOUND, f"{run_id} is only just being founded; try again in a moment")
            scaled = False
            if options.nodes is not None or options.target is not None:
                now = await scale_run(backend, options.nodes, options.target, author())
                if now.generation == before.spec.generation:
                    terminal.print(f"{run_id} has the sizes {now} already; nothing was changed")
                else:
                    scaled = True
                    terminal.print(f"scaled {run_id} from {before.spec} to {now}")
            if options.grow:
                held_back = await let_newcomers_in(backend)
                if held_back:
                    terminal.print(f"let {counted(held_back, 'newcomer')} in")
                elif scaled:
                    terminal.print("newcomers for whom there is room now will be let in")
                else:
                    terminal.print("no newcomers are held back")
            terminal.print(str(await read_status(backend)))
    return Exit.OK
