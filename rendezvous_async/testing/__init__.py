"""Test an elastic system with the real library, a simulated network, virtual time and fault injection.

* ``run(scenario, seed=7)`` runs a coroutine function in virtual time; one seed is one interleaving.
* ``Cluster`` is some nodes and their server, with crash, restart, pause, resume, partition and heal.
* ``Wire`` is the network below it: machines, processes and TCP connections, for programs of yours too; ``cluster.wire``
  resets connections, cuts one direction, and takes faults while the cluster runs.
* ``check(history)`` finds violations of the guarantees in a history.
* ``check_backend(make)`` is the conformance kit for your own backend.
* ``Proxy`` sits between a client and a server on real sockets, and delays, stalls and cuts.
* ``check_linearizable(history)`` checks that a history of calls is linearizable.
* ``simulate(scenario_of(seed))`` runs a random scenario, with your program if you like; ``rdzv simulate`` runs many.
* ``shrink(scenario, simulate)`` reduces one that fails; its ``repr`` is code to paste into a test.
* ``draw(history, path)`` draws a history as one HTML page, with the broken guarantee in red.
* The fixtures ``virtual`` and ``memory_backends`` come with a pytest plugin, ``rendezvous_async.pytest_plugin``.

Nothing in the library imports this package.
"""

from rendezvous_async.testing.checks import CHECKS, BrokenGuaranteeError, check
from rendezvous_async.testing.cluster import Cluster, NotSettledError
from rendezvous_async.testing.conformance import BACKEND_CHECKS, check_backend
from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.history import History
from rendezvous_async.testing.linearizability import Operation, check_linearizable
from rendezvous_async.testing.loop.clock import (
    GROUP,
    DeadlockError,
    LivelockError,
    VirtualLoop,
    VirtualTimeError,
    run,
    virtual_loop,
)
from rendezvous_async.testing.network import SimulatedDriver
from rendezvous_async.testing.picture import draw
from rendezvous_async.testing.programs import elastic
from rendezvous_async.testing.proxy import Proxy
from rendezvous_async.testing.scenarios import Report, Scenario, Step, scenario_of, simulate
from rendezvous_async.testing.shrinking import shrink
from rendezvous_async.testing.wire import Wire

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
    "SimulatedDriver",
    "Step",
    "VirtualLoop",
    "VirtualTimeError",
    "Wire",
    "check",
    "check_backend",
    "check_linearizable",
    "draw",
    "elastic",
    "run",
    "scenario_of",
    "shrink",
    "simulate",
    "virtual_loop",
]
