"""Remove a node from a run. The other nodes re-form without it; the node is told and may join again."""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.endpoints import add_run, known_run, open_run
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, name
from rendezvous_async.cli.terminal import Terminal

EXAMPLE = "  rdzv evict tcp://head:29400 --run-id job-7 host3_4711_0c5e1f3a"


def configure(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("node", type=name, metavar="NODE", help="the node's id, as rdzv status prints it")


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.admin import evict_node, read_status
    from rendezvous_async.aio.deadline import answer_within
    from rendezvous_async.errors import RendezvousClosedError

    terminal = Terminal(quiet=options.quiet)

    async def evict() -> int:
        async with open_run(options, existing=True) as backend:
            with answer_within(options.timeout, f"evict node {options.node!r}"):
                if not await evict_node(backend, options.node):
                    status = known_run(await read_status(backend), options)
                    if status.closed is not None:
                        raise RendezvousClosedError(status.closed.reason, status.closed.by, run_id=options.run_id)
                    raise Failure(
                        Exit.NOT_FOUND, f"run {options.run_id!r} has no node {options.node!r}; rdzv status lists them"
                    )
        terminal.print(f"evicted node {options.node!r} from run {options.run_id!r}")
        return Exit.OK

    return anyio.run(evict)
