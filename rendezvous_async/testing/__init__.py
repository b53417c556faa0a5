"""Prove it: test an elastic system with the real library, a simulated network, virtual time and faults on purpose.

* ``run(scenario, seed=7)`` runs a coroutine function in virtual time; one seed is one interleaving.
* ``Cluster`` is some nodes and a server between them, with crash, restart, pause, resume, partition and heal.
* ``check(history)`` finds every breach of the guarantees in what happened.
* ``check_backend(make)`` is the conformance kit for backends of your own.
* ``Proxy`` stands between a client and a server on real sockets, and delays, stalls and cuts.
* ``check_linearizable(history)`` tells whether what clients saw could have happened one call at a time.
* ``simulate(scenario_of(seed))`` plays a random scenario; ``python -m rendezvous_async.testing simulate`` plays many.
* ``python -m rendezvous_async.testing campaign`` disturbs real processes on a real backend, and checks what happened.
* ``rendezvous_async.testing.model`` explores every state of the protocol with a few nodes; ``python -m`` runs it.
* ``rendezvous_async.testing.fixtures`` has pytest fixtures; load it with ``pytest_plugins``.

Nothing in the library imports this package.
"""

from rendezvous_async.testing.checks import CHECKS, BrokenGuaranteeError, check
from rendezvous_async.testing.clock import (
    GROUP,
    DeadlockError,
    LivelockError,
    VirtualLoop,
    VirtualTimeError,
    run,
    virtual_loop,
)
from rendezvous_async.testing.cluster import Cluster, NotSettledError, elastic
from rendezvous_async.testing.conformance import BACKEND_CHECKS, check_backend
from rendezvous_async.testing.history import History
from rendezvous_async.testing.linearizability import Operation, check_linearizable
from rendezvous_async.testing.network import Faults, SimulatedBackend
from rendezvous_async.testing.proxy import Proxy
from rendezvous_async.testing.scenarios import Report, Scenario, scenario_of, simulate

__all__ = [
    "BACKEND_CHECKS",
    "CHECKS",
    "GROUP",
    "BrokenGuaranteeError",
    "Cluster",
    "DeadlockError",
    "Faults",
    "History",
    "LivelockError",
    "NotSettledError",
    "Operation",
    "Proxy",
    "Report",
    "Scenario",
    "SimulatedBackend",
    "VirtualLoop",
    "VirtualTimeError",
    "check",
    "check_backend",
    "check_linearizable",
    "elastic",
    "run",
    "scenario_of",
    "simulate",
    "virtual_loop",
]
