"""``DynamicRendezvousHandler``: the classic's blocking interface to a ``Rendezvous`` on the process's loop.

Improvements over the classic behind the same calls:

* ``num_nodes_waiting`` also counts lost members, so a launcher that restarts its workers continues without them.
* ``shutdown`` during an exception only leaves, so a failed node does not close the run for the others.
* ``is_closed`` and ``num_nodes_waiting`` cost a member no traffic.

Keep a reference to the handler: a dropped one leaves the run, as if the process had ended.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from anyio.lowlevel import checkpoint

from rendezvous_async.backends.base import Backend
from rendezvous_async.core.state import Head
from rendezvous_async.errors import RendezvousClosedError, RendezvousError, RendezvousFencedError
from rendezvous_async.logs import ROUND, log_fields
from rendezvous_async.node.connect import connect
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.node.world import Glance, World
from rendezvous_async.settings import Timeouts
from rendezvous_async.sync.carrier import Carrier, carry
from rendezvous_async.sync.closed import ClosedRun, find_closed, remember_closed
from rendezvous_async.sync.interface import RendezvousBackend, RendezvousHandler, RendezvousInfo
from rendezvous_async.sync.params import RendezvousSettings, RendezvousTimeout
from rendezvous_async.sync.place import Place
from rendezvous_async.sync.portal import LoopLease
from rendezvous_async.sync.prefix import under_prefix
from rendezvous_async.sync.store import BlockingStore, RendezvousStoreInfo
from rendezvous_async.texts import quoted

__all__ = ["DynamicRendezvousHandler", "Round"]

_log = logging.getLogger("rendezvous_async.sync")

T = TypeVar("T")


class RoundLostError(RendezvousFencedError):
    """A member was lost before the round was set up."""


class Round:
    """A round that was just joined and is being set up.

    Attributes:
        number: The round's number.
        rank: This node's rank.
        size: The number of members.
        address: This node's address for the others.
        store: The round's store.
        setup: The same store, but its calls fail as soon as a member is lost or goes back to the barrier, so that no
            member waits in vain. Newcomers and scaling alone do not make them fail.
    """

    def __init__(self, world: World, address: str, lease: LoopLease) -> None:
        self.number: int = world.round
        self.rank: int = world.rank
        self.size: int = world.size
        self.address = address
        self.store: BlockingStore = BlockingStore(world.store, lease.call)
        self.setup: BlockingStore = BlockingStore(world.store, self._call_while_whole)
        self._world = world
        self._lease = lease

    def __repr__(self) -> str:
        return f"<Round {self.number} rank={self.rank} size={self.size}>"

    def check(self) -> None:
        """Raise if a member was lost or went back to the barrier."""
        self._call_while_whole(checkpoint)

    def _call_while_whole(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        result: T = self._lease.call(self._while_whole, function, args)
        return result

    async def _while_whole(self, function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> T:
        try:
            async with self._world.while_whole():
                return await function(*args)
        except RendezvousFencedError as error:
            raise RoundLostError(str(error)) from error
        raise RoundLostError(f"round {self.number} lost a member before it was set up")


class DynamicRendezvousHandler(RendezvousHandler):
    """A node's place in a run; made by ``create_handler`` or ``from_backend``.

    Args:
        backend: The backend's registered name.
        carrier: Where the run lives.
        settings: The settings of the run.
        store: The store that ``next_rendezvous`` returns, under a prefix for each round; None for the round's own.
        local_addr: This node's address for the others; by default detected.
        labels: This node's labels.

    Attributes:
        settings: The settings of the run.
        node: This node's id.

    Raises:
        ValueError: A setting is invalid.
        TypeError: The store is not one.
    """

    def __init__(
        self,
        backend: str,
        carrier: Carrier,
        settings: RendezvousSettings,
        *,
        store: Any = None,
        local_addr: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if store is not None and not all(callable(getattr(store, name, None)) for name in ("get", "set")):
            raise TypeError(f"a store has get() and set(), unlike {quoted(store)}")
        self.settings = settings
        self.node: str = f"{socket.gethostname()}_{os.getpid()}_{random.Random().getrandbits(32):08x}"
        self._fields = log_fields(settings.run_id, self.node, 0)
        self._name = backend
        self._carrier = carrier
        self._store = store
        self._address = local_addr or ""
        self._lock = threading.Lock()
        self._lease: LoopLease | None = None
        self._place: Place | None = None
        self._key = (carrier.place, settings.run_id)
        self._end: ClosedRun | None = None
        self._connect = partial(_connect, settings, dict(labels or {}), self.node)
        self._connect(self._address)  # Reject invalid settings here, not at the first join.

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float = 1,
        keep_alive_max_attempt: int = 5,
    ) -> DynamicRendezvousHandler:
        """Make the handler of a run on a backend. The handler keeps the backend open.

        Args:
            run_id: The run's id.
            store: The store that ``next_rendezvous`` returns, under a prefix for each round; None for the round's own.
            backend: Where the run lives.
            min_nodes: The fewest nodes in a round.
            max_nodes: The most nodes in a round.
            local_addr: This node's address for the others; by default detected.
            timeout: The timeouts.
            keep_alive_interval: Seconds between keep-alives.
            keep_alive_max_attempt: Consecutive missed keep-alives after which this node counts as lost.
        """
        if isinstance(keep_alive_interval, bool) or not isinstance(keep_alive_interval, int | float):
            raise TypeError(f"keep_alive_interval must be a number of seconds, not {quoted(keep_alive_interval)}")
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt,
        )
        carrier = carry(backend)
        return cls(backend.name, carrier, settings, store=store, local_addr=local_addr)

    def __repr__(self) -> str:
        return f"<DynamicRendezvousHandler {self._name} run={self.settings.run_id!r} node={self.node!r}>"

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self.settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        return self.next_round(self._describe)

    def next_round(self, set_up: Callable[[Round], T]) -> T:
        """Join the next round and set it up; if a member is lost meanwhile, try the next one.

        Args:
            set_up: Called with the round in this thread. Sets the round up together with the other members, through
                ``round.setup``. Its result is the result of this method.
        """
        while True:
            end = self._known_end()
            if end is not None:
                raise RendezvousClosedError(end.reason, end.by, run_id=self.settings.run_id)
            lease, place = self._open()
            try:
                world = lease.call(place.join)
            except RendezvousClosedError as error:
                self._remember(error.reason, error.by)
                raise
            round = Round(world, place.address, lease)
            self._fields[ROUND] = round.number
            text = "node %s is rank %d of %d in round %d"
            _log.info(text, self.node, round.rank, round.size, round.number, extra=self._fields)
            try:
                return set_up(round)
            except RoundLostError as error:
                _log.info("node %s joins again: %s", self.node, error, extra=self._fields)

    def is_closed(self) -> bool:
        """Return whether the run is closed. A member uses pushed state; any other node reads the backend.

        A run that any handler of this process knows to be closed is closed for all of them, as long as that handler
        exists, even if the server is gone.
        """
        if self._end is not None:
            return True
        seen = self._glance()
        if seen is not None and (seen.closed is not None or not seen.out):
            closed = seen.closed
        elif self._known_end() is not None:
            return True
        else:
            head = self._read_head()
            closed = None if head is None else head.closed
        if closed is not None:
            self._remember(closed.reason, closed.by)
        return closed is not None

    def set_closed(self) -> None:
        """Close the run permanently for all nodes."""
        self._close(f"set_closed() of {self.node}")

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for the next round or were lost from this one. A member uses pushed state.

        If it is not 0, call ``next_rendezvous()``. It is 0 when the run is closed, and at least 1 when this node is out
        of its round or when the run was scaled and the round is too large now. Neither spares nor newcomers that are
        held back (``grow``) count.
        """
        seen = self._glance()
        if (seen is None or seen.out) and self._known_end() is not None:
            return 0
        if seen is None:
            head = self._read_head()
            return 0 if head is None or head.closed is not None else head.waiting
        return 0 if seen.closed else max(seen.pending, 1) if seen.out else seen.pending

    def shutdown(self) -> bool:
        """Close the run and leave it; during an exception, only leave it.

        Returns:
            False if the backend could not be reached.
        """
        failing = sys.exc_info()[0] is not None
        try:
            try:
                if not failing and self._known_end() is None:
                    self._close(f"node {self.node} is done")
            finally:
                self._leave()
        except RendezvousError as error:
            text = "node %s could not shut down run %r: %s"
            _log.warning(text, self.node, self.settings.run_id, error, extra=self._fields)
            return False
        return True

    def _describe(self, round: Round) -> RendezvousInfo:
        info = RendezvousStoreInfo.build(round.rank, round.setup, round.address)
        prefix = f"torch.rendezvous.{self.settings.run_id}.{round.number}"
        store = round.store if self._store is None else under_prefix(prefix, self._store)
        return RendezvousInfo(store, round.rank, round.size, info)

    def _close(self, reason: str) -> None:
        lease, place = self._open()
        lease.call(place.close_run, reason)
        self._remember(reason, self.node)

    def _known_end(self) -> ClosedRun | None:
        """Return how the run was closed, if a handler of this process knows that it was."""
        if self._end is None:
            self._end = find_closed(self._key)
        return self._end

    def _remember(self, reason: str, by: str) -> None:
        self._end = remember_closed(self._key, reason, by)

    def _leave(self) -> None:
        with self._lock:
            lease, place = self._lease, self._place
            self._lease = self._place = None
        if lease is not None and place is not None:
            try:
                lease.call(place.leave, self._end is not None)
            finally:
                lease.release()

    def _open(self) -> tuple[LoopLease, Place]:
        with self._lock:
            if self._lease is None or self._place is None:
                self._place = Place(
                    self._carrier,
                    self.settings.run_id,
                    self._connect,
                    self.settings.timeout.close.total_seconds(),
                    self._address,
                )
                self._lease = LoopLease(repr(self), self._place.leave, self._fields)
                self._lease.end_with(self)
            self._lease.check_process()
            return self._lease, self._place

    def _glance(self) -> Glance | None:
        """Return the latest pushed state of this node's round; None before it has joined."""
        lease, place = self._lease, self._place
        if lease is None or place is None:
            return None
        lease.check_process()
        return place.glance()

    def _read_head(self) -> Head | None:
        lease, place = self._open()
        return lease.call(place.read_head)


def _connect(
    settings: RendezvousSettings,
    labels: Mapping[str, str],
    node: str,
    address: str,
    backend: Backend | None = None,
) -> Rendezvous:
    timeout = settings.timeout
    return connect(
        "memory://anywhere" if backend is None else None,
        backend=backend,
        run_id=settings.run_id,
        nodes=settings.sizes or (settings.min_nodes, settings.max_nodes),
        timeouts=Timeouts(
            join=timeout.join.total_seconds(),
            last_call=timeout.last_call.total_seconds(),
            regroup=timeout.regroup.total_seconds(),
            close=timeout.close.total_seconds(),
            heartbeat=timeout.heartbeat.total_seconds(),
            grow=math.inf if timeout.grow == timedelta.max else timeout.grow.total_seconds(),
        ),
        keep_alive_interval=settings.keep_alive_interval.total_seconds(),
        keep_alive_max_attempt=settings.keep_alive_max_attempt,
        ranks=settings.ranks,
        address=address,
        labels=labels,
        domain=settings.domain,
        per_domain=settings.per_domain,
        node=node,
    )
