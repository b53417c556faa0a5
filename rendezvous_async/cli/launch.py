"""Run a command on every node of an elastic world, and again when the world changes.

Start it on every machine. Each worker gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RDZV_ROUND, RDZV_RUN_ID, RDZV_ENDPOINT (without its secret) and RDZV_TOKEN,
and needs no code of this library. When a node comes, leaves or dies, all workers are ended (SIGTERM, a grace, SIGKILL)
and started in the next round. When all have ended well the run is closed, and every launcher exits 0. A worker that
fails is started again, as often as --max-restarts allows; after that the launcher exits with the worker's code: it
leaves the others to go on if they are enough, else it closes the run. SIGTERM, SIGINT and SIGHUP are passed on and end
it (a second one at once); SIGUSR1 and SIGUSR2 are passed on.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.endpoints import add_connection
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, count, number, seconds

TAKES_COMMAND = True
EXAMPLE = """  rdzv launch tcp://head:29400 --run-id job-7 --nodes 2:4 --nproc-per-node 8 -- python train.py
  rdzv launch tcp://localhost --run-id try --nodes 1 -- sh -c 'echo rank $RANK of $WORLD_SIZE'"""


def configure(parser: Parser) -> None:
    parser.usage = "rdzv launch ENDPOINT --run-id ID --nodes MIN:MAX [options] -- COMMAND ..."
    add_connection(parser)
    parser.add_argument("--run-id", metavar="ID", required=True, help="nodes with the same run id meet")
    parser.add_argument("--nodes", metavar="MIN:MAX", required=True, help="how many launchers a round has; or a count")
    parser.add_argument("--nproc-per-node", type=count, default=1, metavar="N", help="workers on this node (1)")
    parser.add_argument(
        "--max-restarts", type=number, default=3, metavar="N", help="after failures of workers here (3)"
    )
    parser.add_argument("--grace", type=seconds, default=15.0, metavar="S", help="between SIGTERM and SIGKILL (15)")
    parser.add_argument("--join-timeout", type=seconds, default=600.0, metavar="S", help="for a round to form (600)")
    parser.add_argument("--last-call", type=seconds, default=30.0, metavar="S", help="for late comers, at min (30)")
    parser.add_argument("--regroup", type=seconds, metavar="S", help="the same with survivors (min(last call, 3))")
    parser.add_argument("--connect-timeout", type=seconds, default=30.0, metavar="S", help="for a connection (30)")
    parser.add_argument("--keep-alive", type=seconds, default=1.0, metavar="S", help="between signs of life (1)")
    parser.add_argument("--address", metavar="HOST", help="how other nodes reach this one (found out)")
    parser.add_argument("--node", metavar="ID", help="this node's id (host_pid_random)")


def run(options: Namespace) -> int:
    import anyio

    from rendezvous_async.cli.launcher import launch
    from rendezvous_async.cli.terminal import Terminal

    if not options.command:
        raise Failure(Exit.USAGE, "launch needs a command, behind --; see rdzv launch --help")
    return anyio.run(launch, options, Terminal(quiet=options.quiet))
