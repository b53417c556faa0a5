"""What calls of the blocking facade cost, over ``tcp://`` with the server in a process of its own.

    python -m tests.benchmarks.bench_sync

JSON lines, medians of 5 runs, in milliseconds for one call.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable

from rendezvous_async.sync import RendezvousHandler
from tests.blocking import join_all, make_handler, serve_apart

RUNS = 5


def measure(what: str, calls: int, function: Callable[[], object]) -> None:
    """Print what one call costs."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - began) / calls * 1000)
    print(json.dumps({"what": what, "calls": calls, "median_ms": round(statistics.median(times), 4)}), flush=True)


def main() -> None:
    with serve_apart() as (endpoint, _):
        members = [make_handler(endpoint) for _ in range(2)]
        store = join_all(*members)[0].store
        measure("num_nodes_waiting", 1000, members[0].num_nodes_waiting)
        measure("is_closed", 1000, members[0].is_closed)
        measure("store.set", 200, lambda: store.set("key", b"value"))
        measure("store.get", 200, lambda: store.get("key"))
        measure("next_rendezvous of both members", 20, lambda: join_all(*members))
        for member in members:
            member.shutdown()
        names = itertools.count()

        def cycle() -> None:
            handler: RendezvousHandler = make_handler(endpoint, (1, 1), run_id=f"cycle-{next(names)}")
            handler.next_rendezvous()
            handler.shutdown()

        measure("create, join, shut down, with the loop's thread", 20, cycle)


if __name__ == "__main__":
    main()
