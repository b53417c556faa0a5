"""``RendezvousHandler``: the classic's blocking interface to a ``Rendezvous`` that lives on the process's loop.

What it does better than the classic, at the same calls: ``num_nodes_waiting`` counts members that were lost as well, so
that a launcher that restarts its workers when it is not 0 goes on without them; ``shutdown`` while an exception is
under way only leaves, so that a node that failed does not end the run of the others; and neither ``is_closed`` nor
``num_nodes_waiting`` costs a member any traffic.

Keep the handler for as long as the node is to be a member: one that is dropped leaves, as if the process had ended.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import finalize

from anyio.lowlevel import checkpoint

from rendezvous_async.backends.base import Backend
from rendezvous_async.connecting import connect
from rendezvous_async.core.state import Head
from rendezvous_async.errors import RendezvousClosedError, RendezvousError, RendezvousFencedError
from rendezvous_async.handler import Rendezvous
from rendezvous_async.settings import Endpoint, Timeouts, parse_endpoint
from rendezvous_async.sync.closed import ClosedRun, find_closed, remember_closed
from rendezvous_async.sync.params import RendezvousSettings
from rendezvous_async.sync.place import Place
from rendezvous_async.sync.portal import Lease
from rendezvous_async.sync.store import RendezvousStoreInfo, Store
from rendezvous_async.world import Glance, World

__all__ = ["RendezvousHandler", "RendezvousInfo", "Round"]

_log = logging.getLogger("rendezvous_async.sync")

T = TypeVar("T")


@dataclass(frozen=True)
class RendezvousInfo:
    """What a node gets for its arrival: a store that the round's members share, its rank, their number.

    Attributes:
        store: The round's own store.
        rank: Of this node.
        world_size: How many nodes are in the round.
        bootstrap_store_info: An address and a free port of rank 0, for the workers' own store.
    """

    store: Store
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo


class RoundLostError(RendezvousFencedError):
    """A member was lost before all of them had set the round up."""


class Round:
    """A round that was just joined and is being set up.

    Attributes:
        number: Of the round.
        rank: Of this node.
        size: How many members there are.
        address: By which others reach this node.
        store: The round's store, as user code gets it.
        setup: The same; but its calls fail as soon as a member is lost, so that nobody waits for what will not come.
    """

    def __init__(self, world: World, address: str, lease: Lease) -> None:
        self.number = world.round
        self.rank = world.rank
        self.size = world.size
        self.address = address
        self.store = Store(world.store, lease.call)
        self.setup = Store(world.store, self._call_while_whole)
        self._world = world
        self._lease = lease

    def __repr__(self) -> str:
        return f"<Round {self.number} rank={self.rank} size={self.size}>"

    def check(self) -> None:
        """Raise if a member was lost."""
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
        raise RoundLostError(f"round {self.number} lost a member before all had set it up")


class RendezvousHandler:
    """A node's place in a run, for blocking code; see ``create_handler`` for how to make one.

    Args:
        backend: The name that it goes by.
        endpoint: Where the run's state lives.
        settings: What the run is to be like.
        local_addr: By which others reach this node; by default it is found out.
        labels: What this node says about itself.
        **options: Of the endpoint.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str | Endpoint,
        settings: RendezvousSettings,
        *,
        local_addr: str | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings
        self._name = backend
        self._endpoint = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self._options = options
        self._address = local_addr or ""
        self._node = f"{socket.gethostname()}_{os.getpid()}_{random.Random().getrandbits(32):08x}"
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._place: Place | None = None
        self._dropped: finalize[[], RendezvousHandler] | None = None
        namespace = options.get("namespace", self._endpoint.options.get("namespace", ""))
        self._key = (str(self._endpoint), str(namespace), settings.run_id)
        self._end: ClosedRun | None = None
        self._connect = partial(_connect, self._endpoint, settings, dict(labels or {}), self._node)
        self._connect(self._address)  # Wrong settings are an error here, not at the first join.

    def __repr__(self) -> str:
        return f"<RendezvousHandler {self._name} run={self.settings.run_id!r} node={self._node!r}>"

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return self._name

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self.settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether workers can use ``info.store`` themselves, as a torch store: they cannot, it is not one."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Arrive at the barrier and wait until a round has formed with this node in it.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousGracefulExitError: It was closed while this node was a spare.
            RendezvousConnectionError: The backend cannot be reached.
            RendezvousStateError: What stands in it is damaged.
            RendezvousTimeoutError: No round formed in time.
        """
        return self.next_round(_bootstrap)

    def next_round(self, set_up: Callable[[Round], T]) -> T:
        """Join a round and set it up; if a member is lost meanwhile, the next one, until it works.

        Args:
            set_up: Is given the round, in this thread, and does what its members need to do together before it is of
                use, through ``round.setup``. Returns what this method returns.
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
            _log.info("node %s is rank %d of %d in round %d", self._node, round.rank, round.size, round.number)
            try:
                return set_up(round)
            except RoundLostError as error:
                _log.info("node %s joins again: %s", self._node, error)

    def is_closed(self) -> bool:
        """Tell whether the run is closed; a member reads what was pushed to it, others ask the backend.

        What a handler of this process knows to be closed is closed for all of them, for as long as that handler is
        there, also when the server that knew it is gone.
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
        """Close the run, for everyone and for good."""
        self._close(f"set_closed() of {self._node}")

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for the next round or were lost from this one; a member reads what was pushed.

        0 means go on; anything else means call ``next_rendezvous()``. It is 0 when the run is closed, and at least 1
        when this node is out of its round.
        """
        seen = self._glance()
        if (seen is None or seen.out) and self._known_end() is not None:
            return 0
        if seen is None:
            head = self._read_head()
            return 0 if head is None or head.closed is not None else head.waiting
        return 0 if seen.closed else max(seen.pending, 1) if seen.out else seen.pending

    def shutdown(self) -> bool:
        """Close the run and leave it; while an exception is under way, only leave it.

        Returns:
            False if the backend could not be told.
        """
        failing = sys.exc_info()[0] is not None
        try:
            try:
                if not failing and self._known_end() is None:
                    self._close(f"node {self._node} is done")
            finally:
                self._leave()
        except RendezvousError as error:
            _log.warning("node %s could not shut down run %r: %s", self._node, self.settings.run_id, error)
            return False
        return True

    def _close(self, reason: str) -> None:
        lease, place = self._open()
        lease.call(place.close_run, reason)
        self._remember(reason, self._node)

    def _known_end(self) -> ClosedRun | None:
        """Return how the run ended, if a handler of this process knows that it did."""
        if self._end is None:
            self._end = find_closed(self._key)
        return self._end

    def _remember(self, reason: str, by: str) -> None:
        self._end = remember_closed(self._key, reason, by)

    def _leave(self) -> None:
        with self._lock:
            lease, place = self._lease, self._place
            self._lease = self._place = None
            if self._dropped is not None:
                self._dropped.detach()
        if lease is not None and place is not None:
            try:
                lease.call(place.leave, self._end is not None)
            finally:
                lease.release()

    def _open(self) -> tuple[Lease, Place]:
        with self._lock:
            if self._lease is None or self._place is None:
                self._place = Place(
                    self._endpoint,
                    self.settings.run_id,
                    self._options,
                    self._connect,
                    self.settings.timeout.close.total_seconds(),
                    self._address,
                )
                self._lease = Lease(repr(self), self._place.leave)
                # Neither refers to this handler. When the process exits, the lease says farewell without it.
                self._dropped = finalize(self, self._lease.abandon)
                self._dropped.atexit = False
            self._lease.check_process()
            return self._lease, self._place

    def _glance(self) -> Glance | None:
        """Return what was pushed to this node; None before it has joined."""
        lease, place = self._lease, self._place
        if lease is None or place is None:
            return None
        lease.check_process()
        return place.glance()

    def _read_head(self) -> Head | None:
        lease, place = self._open()
        return lease.call(place.read_head)


def _connect(
    endpoint: Endpoint,
    settings: RendezvousSettings,
    labels: Mapping[str, str],
    node: str,
    address: str,
    backend: Backend | None = None,
) -> Rendezvous:
    timeout = settings.timeout
    return connect(
        endpoint if backend is None else None,
        backend=backend,
        run_id=settings.run_id,
        nodes=(settings.min_nodes, settings.max_nodes),
        timeouts=Timeouts(
            join=timeout.join.total_seconds(),
            last_call=timeout.last_call.total_seconds(),
            regroup=timeout.regroup.total_seconds(),
            close=timeout.close.total_seconds(),
            heartbeat=timeout.heartbeat.total_seconds(),
        ),
        keep_alive_interval=settings.keep_alive_interval.total_seconds(),
        keep_alive_max_attempt=settings.keep_alive_max_attempt,
        ranks=settings.ranks,
        address=address,
        labels=labels,
        node=node,
    )


def _bootstrap(round: Round) -> RendezvousInfo:
    info = RendezvousStoreInfo.build(round.rank, round.setup, round.address)
    return RendezvousInfo(round.store, round.rank, round.size, info)
