"""``create_store``: a store without rounds for a known number of workers, one of which serves it.

This is the classic's ``create_c10d_store`` on this package's server. With ``wait_for_workers``, no worker gets the
store before all workers are there.
"""

from __future__ import annotations

import errno
import logging
from datetime import timedelta

from rendezvous_async.backends.tcp import TcpServer, start_server
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.errors import RendezvousConnectionError, RendezvousTimeoutError
from rendezvous_async.node.store import Store as RoundStore
from rendezvous_async.settings import check_seconds, format_address, parse_endpoint
from rendezvous_async.sync.backend import HeldBackend, open_kept_store
from rendezvous_async.sync.collectives import barrier
from rendezvous_async.sync.portal import LoopLease
from rendezvous_async.sync.store import BlockingStore

__all__ = ["OwnStore", "create_store"]

_log = logging.getLogger("rendezvous_async.sync")

RUN_ID = "store"
ALL_HERE = "workers"


def create_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600.0,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: bool | None = None,
    *,
    secret: str | bytes | None = None,
    insecure: bool = False,
) -> OwnStore:
    """Return a store that ``world_size`` workers share; close it, or use it with ``with``.

    Args:
        is_server: Whether this worker serves it.
        server_addr: The server's address.
        server_port: The server's port; -1 picks a free one, which only a server in a world of one may do.
        world_size: The number of workers.
        timeout: Seconds for all workers to join, and for each later wait.
        wait_for_workers: Return only when all workers have joined.
        retries: How many free ports to try with -1, in case another process takes one first.
        use_libuv: Ignored: the server is not torch's.
        secret: The workers' shared secret.
        insecure: Serve other machines without a secret.

    Raises:
        RendezvousTimeoutError: Some workers did not join in time; this is a TimeoutError.
        RendezvousConnectionError: The server cannot be reached.
        RuntimeError: The port is in use.
    """
    check_seconds("timeout", timeout)
    if use_libuv is not None:
        _log.warning("create_store ignores use_libuv")
    if server_port == -1 and (world_size > 1 or not is_server):
        raise ValueError(
            "server_port=-1 picks a free port, which only the server of a world of one can use: give a server_port"
        )
    house = _House(server_addr, max(server_port, 0), timeout, secret, insecure)
    lease = LoopLease(repr(house), house.aclose)
    try:
        if is_server:
            lease.call(house.serve, max(retries, 1) if server_port == -1 else 1)
        store = OwnStore(lease.call(house.open_store), lease, house)
        if wait_for_workers:
            _wait_for_all(store, world_size, timeout)
        return store
    except BaseException:
        lease.call(house.aclose)
        lease.release()
        raise


class OwnStore(BlockingStore):
    """A store without rounds.

    Attributes:
        host: The server's host.
        port: The server's port.
    """

    def __init__(self, store: RoundStore, lease: LoopLease, house: _House) -> None:
        super().__init__(store, lease.call)
        self.set_timeout(timedelta(seconds=house.timeout))
        self.host: str = house.host
        self.port: int = house.port
        self._lease = lease
        lease.end_with(self)

    def __repr__(self) -> str:
        return f"<OwnStore at {format_address(self.host, self.port)}>"

    def close(self) -> None:
        """Close the connection; if this worker serves the store, it ends for all workers."""
        self._lease.close()

    def __enter__(self) -> OwnStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_for_all(store: BlockingStore, world_size: int, timeout: float) -> None:
    """Wait until all workers have joined."""
    try:
        barrier(store, world_size, ALL_HERE, timeout)
    except RendezvousTimeoutError as error:
        here = store.add(f"{ALL_HERE}/num_members", 0)
        raise RendezvousTimeoutError(
            f"timed out after {timeout:g} s waiting for all {world_size} workers to join; {here} are here"
        ) from error


class _House(HeldBackend):
    """A store's connection, and its server if this worker serves it."""

    def __init__(self, host: str, port: int, timeout: float, secret: str | bytes | None, insecure: bool) -> None:
        super().__init__()
        self.host = host
        self.port: int = port
        self.timeout = timeout
        self._secret = secret
        self._insecure = insecure
        self._server: TcpServer | None = None

    def __repr__(self) -> str:
        return f"the store at {self.address}"

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    async def serve(self, attempts: int) -> None:
        """Start the server; with port 0, each attempt asks for another free port."""
        secret = None if self._secret is None else Secret.parse(self._secret)
        for attempt in range(1, attempts + 1):
            try:
                self._server = await start_server(self.host, self.port, secret=secret, insecure=self._insecure)
            except RendezvousConnectionError as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
                    raise
                if attempt == attempts:
                    raise RuntimeError(f"on {self.host}, port {self.port} is already in use") from error
                _log.warning("%s: %s; attempt %d of %d", self, error, attempt, attempts)
            else:
                self.port = parse_endpoint(self._server.endpoint).hosts[0][1]
                return

    async def open_store(self) -> RoundStore:
        options = {"is_host": False, "connect_timeout": self.timeout, "secret": self._secret}
        await self.open(parse_endpoint(f"tcp://{self.address}"), RUN_ID, options)
        assert self.backend is not None
        return await open_kept_store(self.backend, self.timeout)

    async def aclose(self) -> None:
        await super().aclose()
        server, self._server = self._server, None
        if server is not None:
            await server.aclose()
