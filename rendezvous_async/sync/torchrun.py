"""The torchrun plugin: ``torchrun --rdzv-backend=async-tcp ...``. The only module that imports torch.

torchrun finds ``async-tcp``, ``async-etcd`` and ``async-file`` as entry points (``plugin.py``). Its agent calls
``next_rendezvous``, polls ``num_nodes_waiting``, restarts its workers when that is not 0, and calls ``shutdown`` at the
end. The blocking handler in ``rendezvous_async.sync`` decides membership. This module adds what torch needs:

* A fresh TCPStore for each round, on rank 0. Its address goes through the round's own store, so all members of a round
  see the same one. The previous server lives until the next round is set up.
* torch's own error types.
* An exit code of 0 for a spare whose run is over; torch's agent would crash on ``RendezvousGracefulExitError``.
* torch's rendezvous events, if it has a logging handler for them: the attempt to join, the round joined, the store
  served, the run closed, and every error. Polled calls record only errors. ``RENDEZVOUS_ASYNC_EVENTS=0`` disables them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

try:
    from torch.distributed import DistError, PrefixStore, TCPStore
    from torch.distributed.elastic.events import NodeState, construct_and_record_rdzv_event
    from torch.distributed.elastic.rendezvous import api as torch_api
except ModuleNotFoundError as error:
    raise ImportError(f"{error}: pip install 'rendezvous-async[torch]'", name=error.name) from None

from rendezvous_async import errors
from rendezvous_async.logs import log_fields
from rendezvous_async.node.addresses import get_free_port
from rendezvous_async.sync.handler import Round
from rendezvous_async.sync.options import read_timeout
from rendezvous_async.sync.params import RendezvousSettings
from rendezvous_async.sync.registry import make_handler
from rendezvous_async.texts import printable

__all__ = ["TorchrunHandler"]

_log = logging.getLogger("rendezvous_async.sync.torchrun")

CONNECT_SECONDS = 2
"""For one attempt to connect to a round's TCPStore; between attempts, the round is checked."""


class TorchrunHandler(torch_api.RendezvousHandler):
    """A torch handler over a ``DynamicRendezvousHandler``.

    Args:
        params: torch's parameters; ``rendezvous_async.sync.create_handler`` lists the options.
    """

    def __init__(self, params: torch_api.RendezvousParameters) -> None:
        self._records = os.getenv("RENDEZVOUS_ASYNC_EVENTS", "1") != "0"
        self._run_id, self._node = params.run_id, ""
        with self._reporting("init"):
            self._handler = make_handler(params)
            self._read_timeout = read_timeout(params)
        self._node = self._handler.node
        self._server: TCPStore | None = None

    def __repr__(self) -> str:
        return f"<TorchrunHandler {self._handler!r}>"

    @property
    def settings(self) -> RendezvousSettings:
        """The settings of the handler."""
        return self._handler.settings

    def get_backend(self) -> str:
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    @property
    def use_agent_store(self) -> bool:
        """Whether workers use the round's TCPStore, at MASTER_ADDR and MASTER_PORT, instead of their own."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> torch_api.RendezvousInfo:
        """Join the next round, as in the blocking handler. A spare whose run is over exits the process with 0."""
        self._record("next_rendezvous", f"node {self._node} attempts to join the next round of run {self._run_id!r}")
        try:
            with self._reporting("next_rendezvous"):
                return self._handler.next_round(self._set_up)
        except torch_api.RendezvousGracefulExitError as error:
            _log.info("%s; this spare exits", error, extra=log_fields(self._run_id, self._node))
            raise SystemExit(0) from error

    def is_closed(self) -> bool:
        with self._reporting("is_closed"):
            return self._handler.is_closed()

    def set_closed(self) -> None:
        with self._reporting("set_closed"):
            self._handler.set_closed()
        self._record("set_closed", f"node {self._node} has closed run {self._run_id!r}", NodeState.SUCCEEDED)

    def num_nodes_waiting(self) -> int:
        with self._reporting("num_nodes_waiting"):
            return self._handler.num_nodes_waiting()

    def shutdown(self) -> bool:
        with self._reporting("shutdown"):
            done = self._handler.shutdown()
        state, what = (NodeState.SUCCEEDED, "has shut down") if done else (NodeState.FAILED, "could not shut down")
        self._record("shutdown", f"node {self._node} {what} in run {self._run_id!r}", state)
        return done

    def _set_up(self, round: Round) -> torch_api.RendezvousInfo:
        """Set up the round's TCPStore: rank 0 serves it, all members connect, and each waits for all."""
        setup = round.setup
        setup.set_timeout(self._read_timeout)
        if round.rank == 0:
            store = TCPStore(round.address, 0, None, True, self._read_timeout, wait_for_workers=False)
            workers_port = store.port if self.use_agent_store else get_free_port()
            setup.multi_set(["address", "port", "workers_port"], [round.address, str(store.port), str(workers_port)])
            address = round.address
            where = f"{address}:{store.port}"
            message = f"node {self._node} serves the TCPStore of round {round.number} at {where}"
            self._record("next_rendezvous", message, NodeState.INIT, rank=0, master_endpoint=where)
        else:
            address, port, workers_port = (
                text.decode() for text in setup.multi_get(["address", "port", "workers_port"])
            )
            store = self._connect(round, address, int(port))
        setup.barrier("the TCPStore is there")
        self._server = store if round.rank == 0 else None
        message = f"node {self._node} is rank {round.rank} of {round.size} in round {round.number}"
        self._record("next_rendezvous", message, rank=round.rank)
        prefix = f"torch.rendezvous.{self.get_run_id()}.{round.number}"
        return torch_api.RendezvousInfo(
            PrefixStore(prefix, store),
            round.rank,
            round.size,
            torch_api.RendezvousStoreInfo(address, int(workers_port)),
        )

    def _connect(self, round: Round, address: str, port: int) -> TCPStore:
        where = f"{printable(address)}:{port}"
        for attempt in range(max(1, int(self._read_timeout.total_seconds()) // CONNECT_SECONDS)):
            try:
                store = TCPStore(address, port, None, False, timedelta(seconds=CONNECT_SECONDS), wait_for_workers=False)
            except DistError as error:
                fields = log_fields(self._run_id, self._node, round.number)
                text = "attempt %d to connect to rank 0 at %s: %s"
                _log.warning(text, attempt + 1, where, printable(str(error)), extra=fields)
                problem = error
                round.check()
            else:
                store.set_timeout(self._read_timeout)
                return store
        raise errors.RendezvousConnectionError(
            f"cannot connect to the TCPStore of round {round.number}, which rank 0 serves at {where}: "
            "if the address is wrong, start rank 0's torchrun with --local-addr"
        ) from problem

    @contextmanager
    def _reporting(self, method: str) -> Iterator[None]:
        """Record an error, and raise this package's as torch's of the same name, or as its RendezvousError."""
        try:
            yield
        except Exception as error:
            is_spare = isinstance(error, errors.RendezvousGracefulExitError)
            state = NodeState.SUCCEEDED if is_spare else NodeState.FAILED
            self._record(method, f"{type(error).__name__}: {error}", state)
            if isinstance(error, errors.RendezvousError):
                raise _torch_error(error) from error
            raise

    def _record(
        self,
        method: str,
        message: str,
        state: NodeState = NodeState.RUNNING,
        *,
        rank: int | None = None,
        master_endpoint: str = "",
    ) -> None:
        if self._records:
            construct_and_record_rdzv_event(
                name=f"TorchrunHandler.{method}",
                run_id=self._run_id,
                message=message,
                node_state=state,
                hostname=socket.gethostname(),  # By default, torch would query DNS.
                rank=rank,
                master_endpoint=master_endpoint,
            )


def _torch_error(error: errors.RendezvousError) -> Exception:
    """Return torch's error of the same name."""
    kinds = (kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    torchs: type[Exception] = next(filter(None, (getattr(torch_api, kind.__name__, None) for kind in kinds)))
    return torchs(str(error))
