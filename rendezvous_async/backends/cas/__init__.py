"""The backend over one fenced value: any store that can compare and set is enough.

Redis, a database row, an object with conditional puts, a key of Consul: whoever can read one value and replace it if it
is still the same has all of a backend. Without an endpoint or a scheme, it is made of an object::

    async with over_state(my_backend, run_id="job") as backend:
        async with rdzv.connect(backend=backend, run_id="job", nodes="2:4") as rendezvous: ...

``my_backend`` has the classic's three methods (``name``, ``get_state``, ``set_state``), blocking or coroutines. What is
written for this is a ``FencedValue``: ``Backend(CasDriver(value), run_id)``.

The value holds everything (``image.py``). Each client has a copy of it, and one task that moves the copy on
(``replica.py``). There is no clock but each client's own: a session's owner counts its counter on, and any client that
sees no change for the session's TTL, by its own monotonic clock, ends the session. So a killed node is missed after
its TTL and up to a quarter more, never sooner.

What it costs. Every client reads the whole value twice a second when nothing changes, and up to 100 times just after
a change; all sessions together up to 1,000 times. Every keep-alive is a write of the whole value, though one for all
that a process does at that moment. N nodes in N processes write N times in each keep-alive interval, and while one
write is under way all others that have begun lose, and are made again. A store that takes a write in t seconds carries
about ``interval / (2 t)`` nodes: with Redis on a local network (1 ms) and an interval of 1 s some hundred at rest, with
an object store (50 ms) ten, or fifty with an interval of 5 s. A formation is N contended writes: 8, 32 and 64 nodes in
one process on two busy cores took 0.4, 2.1 and 4.4 s with Redis (``python -m tests.benchmarks.bench_cas``), where c10d
takes 1.3 s, and ``tcp://`` milliseconds. So it is good for tens of nodes, not for hundreds. A node adds about 500 bytes
to the value, which has at most 1 MiB.
"""

from __future__ import annotations

from typing import Any

from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.cas.driver import CasDriver
from rendezvous_async.backends.cas.value import FencedValue, StateKeeper, StateValue
from rendezvous_async.backends.outage import Outage

__all__ = ["CasDriver", "FencedValue", "StateKeeper", "StateValue", "over_state"]


def over_state(keeper: StateKeeper, run_id: str, **options: Any) -> Backend:
    """Return a backend whose state is that of a classic ``RendezvousBackend``; the caller closes it, on this loop.

    Args:
        keeper: Where the state lives; it stays open. It must be used for nothing else.
        run_id: Whose keys the backend sees.
        **options: Of ``CasDriver``.
    """
    outage = Outage(f"run {run_id!r}", keeper.name)
    return Backend(CasDriver(StateValue(keeper), outage=outage, **options), run_id)
