"""What calls of the blocking facade cost, over ``tcp://`` with the server in a process of its own.

    python -m tests.benchmarks.bench_sync

JSON lines: median, least and most of several runs. First milliseconds for one call; then what goes over the wire, both
ways, while a member is asked ``num_nodes_waiting`` and ``is_closed`` 1,000 times a second each, next to what does when
nobody asks, which is keep-alives.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from threading import Event

from anyio.from_thread import start_blocking_portal

from rendezvous_async.sync import DynamicRendezvousHandler
from rendezvous_async.testing.proxy import Proxy
from tests.benchmarks.figures import summary
from tests.blocking import join_all, make_handler, serve_apart

RUNS = 5
TRAFFIC_RUNS = 3
SECONDS = 5
never = Event()


def measure(what: str, calls: int, function: Callable[[], object]) -> None:
    """Print what one call costs."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - began) / calls * 1000)
    print(json.dumps({"what": what, "calls": calls, "ms": summary(times)}), flush=True)


def traffic() -> None:
    """Print the bytes that a member costs at rest, and while it is asked again and again."""
    passed: list[int] = []
    with serve_apart() as (endpoint, _), start_blocking_portal() as portal:
        proxy = Proxy("127.0.0.1", int(endpoint.rpartition(":")[2]))
        proxy.listen_in = lambda _, data: passed.append(len(data))
        with portal.wrap_async_context_manager(proxy):
            member = make_handler(f"tcp://127.0.0.1:{proxy.port}?is_host=false", (1, 1))
            member.next_rendezvous()
            for what, asks in (("nobody asks", 0), ("asked 1,000 times a second", 1000)):
                rates, shares = [], []
                for _ in range(TRAFFIC_RUNS):
                    passed.clear()
                    began = time.monotonic()
                    used = time.process_time()
                    for second in range(SECONDS):
                        for _ in range(asks):
                            member.num_nodes_waiting()
                            member.is_closed()
                        never.wait(max(0.0, began + second + 1 - time.monotonic()))
                    took = time.monotonic() - began
                    rates.append(sum(passed) / took)
                    shares.append((time.process_time() - used) / took)
                line = {"what": what, "bytes_per_s": summary(rates), "cpu_percent": summary(shares, 100)}
                print(json.dumps(line), flush=True)
            member.shutdown()


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
            handler: DynamicRendezvousHandler = make_handler(endpoint, (1, 1), run_id=f"cycle-{next(names)}")
            handler.next_rendezvous()
            handler.shutdown()

        measure("create, join, shut down, with the loop's thread", 20, cycle)
    traffic()


if __name__ == "__main__":
    main()
