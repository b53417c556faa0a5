"""List all runs at an endpoint, with the state of each in one word; runs that need attention come first.

stuck or waiting: its nodes wait for a round. damaged: its records cannot be read. formed: a round is held. idle: nobody
is there. closed: it is over. Nothing here knows for how long; the status page of rdzv serve --http does.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from rendezvous_async.cli.endpoints import add_connection, add_timeout, open_run, shown
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, count
from rendezvous_async.cli.terminal import Terminal

if TYPE_CHECKING:
    from rendezvous_async.core.diagnosis import Status
    from rendezvous_async.errors import RendezvousStateError
    from rendezvous_async.runs import RunState

EXAMPLE = """  rdzv list tcp://head:29400
  rdzv list tcp://head:29400 --json | jq '.runs[] | select(.state == "waiting")'"""
LIMIT = 100
ANY_RUN = "rdzv-list"
"""A backend is always that of a run; nothing is read or written under this id."""
STYLES = {"waiting": "yellow", "damaged": "red", "formed": "green", "closed": "dim", "idle": "dim"}


def configure(parser: Parser) -> None:
    add_connection(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--limit", type=count, default=LIMIT, metavar="N", help=f"show at most N runs ({LIMIT})")
    add_timeout(parser)


def run(options: Namespace) -> int:
    import anyio

    return anyio.run(_list, options)


async def _list(options: Namespace) -> int:
    from rendezvous_async.aio.deadline import answer_within
    from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
    from rendezvous_async.runs import RunState, read_runs, state_of
    from rendezvous_async.texts import counted

    terminal = Terminal(quiet=options.quiet)
    async with open_run(options, ANY_RUN) as backend:
        with answer_within(options.timeout, "list the runs", lambda: backend.trouble):
            try:
                found = await read_runs(backend)
            except RendezvousConnectionError:
                raise
            except RendezvousError as error:
                raise Failure(Exit.FAILED, f"too many keys to list, or not allowed: {error}") from None
    order = list(RunState)
    states = {run_id: state_of(None if isinstance(status, Exception) else status) for run_id, status in found.items()}
    chosen = sorted(found, key=lambda run_id: (order.index(states[run_id]), run_id))
    counts = {state.value: sum(each is state for each in states.values()) for state in order}
    rows = [_facts(run_id, states[run_id], found[run_id]) for run_id in chosen[: options.limit]]
    if options.json:
        terminal.print_json({"total": len(found), "states": counts, "runs": rows})
        return Exit.OK
    if not found:
        terminal.print(f"no runs at {shown(options)}")
        return Exit.OK
    summary = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    terminal.print(f"{counted(len(found), 'run')} at {shown(options)}: {summary}")
    width = max(len(str(row["run_id"])) for row in rows)
    for row in rows:
        state = str(row["state"])
        terminal.print((f"{state:8}", STYLES.get(state, "")), f" {row['run_id']:{width}}  {row['headline']}")
    if len(found) > len(rows):
        terminal.print(f"... and {len(found) - len(rows)} more; see --limit")
    return Exit.OK


def _facts(run_id: str, state: RunState, found: Status | RendezvousStateError) -> dict[str, object]:
    """Return what is shown of a run."""
    if isinstance(found, Exception):
        return {"run_id": run_id, "state": state, "headline": str(found)}
    return {
        "run_id": run_id,
        "state": state,
        "round": found.round,
        "nodes": len(found.here),
        "absent": len(found.absent),
        "missing": found.missing,
        "headline": found.why()[0],
    }
