"""The plugin for torchrun: ``torchrun --rdzv-backend=async-tcp ...``; the only module that imports torch.

torchrun finds ``async-tcp``, ``async-etcd`` and ``async-file`` as entry points (``plugin.py``). Its agent then calls
``next_rendezvous``, polls ``num_nodes_waiting``, restarts its workers when that is not 0, and calls
``shutdown`` at the end. Who is in, and what happens when somebody is not, is decided by the blocking handler in
``rendezvous_async.sync``; this module gives each round what torch needs on top of it:

* a TCPStore, fresh for each round, on its rank 0. Its address goes through the round's own store, so that all members
  of a round see the same one, whoever is rank 0 now. The last round's server lives until all have left that round.
* torch's own error types;
* an exit code of 0 for a spare whose run is over. torch's agent makes a crash of ``RendezvousGracefulExitError``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import DistError, PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import api as torch_api

from rendezvous_async import errors
from rendezvous_async.addresses import get_free_port
from rendezvous_async.sync.handler import Round
from rendezvous_async.sync.registry import make_handler, read_timeout
from rendezvous_async.texts import printable

__all__ = ["TorchrunHandler"]

_log = logging.getLogger("rendezvous_async.torchrun")

CONNECT_SECONDS = 2
"""For one attempt to connect to a round's TCPStore; between two, it is seen whether the round still stands."""


class TorchrunHandler(torch_api.RendezvousHandler):
    """A torch handler over one of ours.

    Args:
        params: As torchrun gives them; see ``rendezvous_async.sync.registry.make_handler`` for the options.
    """

    def __init__(self, params: torch_api.RendezvousParameters) -> None:
        self._handler = make_handler(params)
        self._read_timeout = read_timeout(params)
        self._server: TCPStore | None = None

    def __repr__(self) -> str:
        return f"<TorchrunHandler {self._handler!r}>"

    def get_backend(self) -> str:
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    @property
    def use_agent_store(self) -> bool:
        """Whether workers use the round's TCPStore, as MASTER_ADDR and MASTER_PORT, and need none of their own."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> torch_api.RendezvousInfo:
        """Join the next round; see the blocking handler. A spare whose run is over ends the process with code 0."""
        try:
            with _as_torch_errors():
                return self._handler.next_round(self._set_up)
        except torch_api.RendezvousGracefulExitError as error:
            _log.info("%s; this spare ends", error)
            raise SystemExit(0) from error

    def is_closed(self) -> bool:
        with _as_torch_errors():
            return self._handler.is_closed()

    def set_closed(self) -> None:
        with _as_torch_errors():
            self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        with _as_torch_errors():
            return self._handler.num_nodes_waiting()

    def shutdown(self) -> bool:
        with _as_torch_errors():
            return self._handler.shutdown()

    def _set_up(self, round: Round) -> torch_api.RendezvousInfo:
        """Give the round its TCPStore: rank 0 serves it, all connect, and nobody goes on before everybody has."""
        setup = round.setup
        setup.set_timeout(self._read_timeout)
        if round.rank == 0:
            store = TCPStore(round.address, 0, None, True, self._read_timeout, wait_for_workers=False)
            workers_port = store.port if self.use_agent_store else get_free_port()
            setup.multi_set(["address", "port", "workers_port"], [round.address, str(store.port), str(workers_port)])
            address = round.address
        else:
            address, port, workers_port = (
                text.decode() for text in setup.multi_get(["address", "port", "workers_port"])
            )
            store = self._connect(round, address, int(port))
        setup.barrier("the TCPStore is there")
        self._server = store if round.rank == 0 else None
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
                _log.warning("attempt %d to connect to rank 0 at %s: %s", attempt + 1, where, printable(str(error)))
                problem = error
                round.check()
            else:
                store.set_timeout(self._read_timeout)
                return store
        raise errors.RendezvousConnectionError(
            f"rank 0 serves the TCPStore of round {round.number} at {where}, which cannot be reached from "
            "here: if the address is wrong, start its torchrun with --local-addr"
        ) from problem


@contextmanager
def _as_torch_errors() -> Iterator[None]:
    """Turn our errors into torch's of the same name; those that it does not have become RendezvousError."""
    try:
        yield
    except errors.RendezvousError as error:
        for kind in type(error).__mro__:
            ours = getattr(errors, kind.__name__, None)
            torchs = getattr(torch_api, kind.__name__, None)
            if ours is kind and torchs is not None:
                raise torchs(str(error)) from error
        raise
