"""Run a command on every node of an elastic world, and restart it when the world changes.

Start one launcher on each machine. Each worker gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RDZV_ROUND, RDZV_RUN_ID, RDZV_ENDPOINT (without its secret) and RDZV_TOKEN.
Workers need no code from this library.

When a node joins, leaves or dies, all workers are stopped (SIGTERM, grace period, SIGKILL) and started again in the
next round. So they are when rdzv scale changes how many nodes a round may have; launchers that join later still start
with the same --nodes. When all workers have succeeded, the run is closed and every launcher exits with 0. A failed
worker is restarted up to --max-restarts times. After that the launcher exits with the worker's exit code; the other
nodes continue if there are enough of them, otherwise the run is closed.

Signals are forwarded to the workers. SIGTERM, SIGINT and SIGHUP also stop the launcher; a second one skips the grace
period.
"""

from __future__ import annotations

from argparse import Namespace

from rendezvous_async.cli.endpoints import add_connection, open_to_join, shown
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import SIZES, Parser, count, grow_seconds, label, name, number, seconds
from rendezvous_async.cli.terminal import Terminal

TAKES_COMMAND = True
EXAMPLE = """  rdzv launch tcp://head:29400 --run-id job-7 --nodes 2:4 --nproc-per-node 8 -- python train.py
  rdzv launch tcp://head:29400 --run-id job-7 --nodes 8:64:8 --domain rack --per-domain 4 --label rack=r7 -- ./train
  rdzv launch tcp://localhost --run-id try --nodes 1 -- sh -c 'echo rank $RANK of $WORLD_SIZE'"""


def configure(parser: Parser) -> None:
    parser.usage = "rdzv launch ENDPOINT --run-id ID --nodes SIZES [options] -- COMMAND ..."
    add_connection(parser)
    parser.add_argument(
        "--run-id", type=name, metavar="ID", required=True, help="nodes with the same run id form one world"
    )
    parser.add_argument("--nodes", metavar="SIZES", required=True, help=f"nodes in a round: {SIZES}")
    parser.add_argument(
        "--domain", type=name, metavar="NAME", help="the label that names each node's domain, such as rack"
    )
    parser.add_argument(
        "--per-domain", type=count, default=1, metavar="N", help="a round has a multiple of N nodes of each domain (1)"
    )
    parser.add_argument(
        "--label", type=label, action="append", metavar="NAME=VALUE", help="a label of this node, such as rack=r7"
    )
    parser.add_argument("--nproc-per-node", type=count, default=1, metavar="N", help="workers on this node (1)")
    parser.add_argument(
        "--max-restarts", type=number, default=3, metavar="N", help="restarts after worker failures here (3)"
    )
    parser.add_argument("--grace", type=seconds, default=15.0, metavar="S", help="time from SIGTERM to SIGKILL (15)")
    parser.add_argument(
        "--join-timeout", type=seconds, default=600.0, metavar="S", help="time for a round to form (600)"
    )
    parser.add_argument("--last-call", type=seconds, default=30.0, metavar="S", help="wait for late nodes (30)")
    parser.add_argument("--regroup", type=seconds, metavar="S", help="the same when re-forming (last call, at most 3)")
    parser.add_argument(
        "--grow",
        type=grow_seconds,
        default=0.0,
        metavar="S",
        help="wait for more newcomers before a round grows (0); inf: until rdzv scale --grow",
    )
    parser.add_argument("--connect-timeout", type=seconds, default=30.0, metavar="S", help="time to connect (30)")
    parser.add_argument("--keep-alive", type=seconds, default=1.0, metavar="S", help="time between keep-alives (1)")
    parser.add_argument("--address", metavar="HOST", help="this node's address for other nodes (detected)")
    parser.add_argument("--node", type=name, metavar="ID", help="this node's id (host_pid_random)")


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_launch, options)


async def _launch(options: Namespace) -> int:
    from rendezvous_async.launch.launcher import launch
    from rendezvous_async.launch.plan import LaunchError, Plan
    from rendezvous_async.settings import Timeouts

    if not options.command:
        raise Failure(Exit.USAGE, "there is no command to launch: put it after --; see rdzv launch --help")
    labels = dict(options.label or ())
    if len(labels) < len(options.label or ()):
        raise Failure(Exit.USAGE, "a label is given twice: see --label")
    plan = Plan(
        endpoint=options.endpoint,
        run_id=options.run_id,
        nodes=options.nodes,
        command=tuple(options.command),
        workers=options.nproc_per_node,
        max_restarts=options.max_restarts,
        grace=options.grace,
        timeouts=Timeouts(
            join=options.join_timeout, last_call=options.last_call, regroup=options.regroup, grow=options.grow
        ),
        connect_timeout=options.connect_timeout,
        keep_alive_interval=options.keep_alive,
        address=options.address,
        node=options.node,
        labels=labels,
        domain=options.domain or "",
        per_domain=options.per_domain,
    )
    terminal = Terminal(quiet=options.quiet)
    terminal.say(f"connecting to {shown(options)}")
    try:
        async with open_to_join(options, plan.connect_timeout) as backend:
            return await launch(plan, backend, None if options.quiet else terminal.say)
    except LaunchError as error:
        raise Failure(error.code, str(error)) from None
