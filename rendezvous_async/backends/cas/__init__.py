"""The backend over one fenced value: any store that can compare and set is enough.

Redis, a database row, an object with conditional puts, a key of Consul: all it takes is to read one value, and to
replace it if it is still the same. There is no scheme for it; make it from an object::
    async with over_state(my_backend, run_id="job") as backend:
        async with rdzv.connect(backend=backend, run_id="job", nodes="2:4") as rendezvous: ...

``my_backend`` has the classic's three methods (``name``, ``get_state``, ``set_state``), blocking or coroutines. For a
store of your own, write a ``FencedValue`` and use ``Backend(CasDriver(value), run_id)``.

The value holds everything (``image.py``). Each client has a copy of it, and one task that keeps the copy up to date
(``replica.py``). There is no clock but each client's own: a session's owner increments its counter, and any client that
sees no change for the session's TTL, by its own monotonic clock, ends the session. So a killed node is noticed after
its TTL plus at most a quarter of it, never sooner.

**Cost.** Every client reads the whole value twice a second when nothing changes, and up to 100 times a second just
after a change; all sessions together up to 1,000 times. Every keep-alive writes the whole value, in one write with
everything else that the process does at that moment. N nodes in N processes write N times in each keep-alive interval,
and of several writes in flight one wins, and the others are repeated. A store that takes a write in t seconds carries
about ``interval / (2 t)`` nodes: with Redis on a local network (1 ms) and an interval of 1 s some hundred at rest, with
an object store (50 ms) ten, or fifty with an interval of 5 s. A formation is N contended writes: 8, 32 and 64 nodes in
one process on two busy cores took 0.4, 2.1 and 4.4 s with Redis (``python -m tests.benchmarks.bench_cas``), where c10d
takes 1.3 s, and ``tcp://`` milliseconds. So it is good for tens of nodes, not for hundreds. A node adds about 500 bytes
to the value, which may have 1 MiB.
"""

from __future__ import annotations

from typing import Any

from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.cas.driver import CasDriver
from rendezvous_async.backends.cas.value import FencedValue, StateKeeper, StateValue
from rendezvous_async.backends.outage import Outage
from rendezvous_async.logs import log_fields

__all__ = ["CasDriver", "FencedValue", "StateKeeper", "StateValue", "over_state"]


def over_state(keeper: StateKeeper, run_id: str, **options: Any) -> Backend:
    """Return a backend whose state is that of a classic ``RendezvousBackend``; the caller closes it, on this loop.

    Args:
        keeper: Where the state lives; it stays open. Nothing else may use it.
        run_id: The run whose keys the backend sees.
        **options: Options of ``CasDriver``.
    """
    outage = Outage(f"run {run_id!r}", keeper.name, fields=log_fields(run_id))
    return Backend(CasDriver(StateValue(keeper), outage=outage, **options), run_id)
