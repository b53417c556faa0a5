"""``create_store``: a store of its own for a known number of workers, without rounds; one of them serves it.

It is the classic's ``create_c10d_store`` on our own server, with its full-rank barrier: with ``wait_for_workers``
nobody gets the store before everybody is there.
"""

from __future__ import annotations

import errno
from datetime import timedelta

import anyio

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend, Put, Token
from rendezvous_async.backends.tcp import TcpServer, start_server
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.core.state import round_key
from rendezvous_async.errors import RendezvousConnectionError, RendezvousTimeoutError
from rendezvous_async.notice import Notice
from rendezvous_async.settings import check_seconds, format_address
from rendezvous_async.store import Store as RoundStore
from rendezvous_async.sync.portal import Lease
from rendezvous_async.sync.store import Store

__all__ = ["OwnStore", "create_store"]

RUN_ID = "store"
_HERE = "workers here"
_ALL_HERE = "all workers here"


def create_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600.0,
    wait_for_workers: bool = True,
    retries: int = 3,
    *,
    secret: str | bytes | None = None,
    insecure: bool = False,
) -> OwnStore:
    """Return a store that ``world_size`` workers share; close it, or use it with ``with``.

    Args:
        is_server: Whether this worker serves it.
        server_addr: Of the one that does.
        server_port: Its port; -1 means any free one, for a world of one.
        world_size: How many workers there are.
        timeout: Seconds for all to come, and for each wait later on.
        wait_for_workers: Return only when all are here.
        retries: Has no use, since a free port is not lost between finding and using it.
        secret: What all workers know.
        insecure: Serve others without a secret.

    Raises:
        RendezvousTimeoutError: Not all came in time; it is a TimeoutError.
        RendezvousConnectionError: The server cannot be reached.
        RuntimeError: The port is in use.
    """
    check_seconds("timeout", timeout)
    if server_port == -1 and (world_size > 1 or not is_server):
        raise ValueError(f"give a server_port when there are {world_size} workers, or when another one serves")
    house = _House(server_addr, max(server_port, 0), timeout, secret, insecure)
    lease = Lease(repr(house), house.aclose)
    store: OwnStore | None = None
    try:
        inner = lease.call(house.open, is_server)
        store = OwnStore(inner, lease, house)
        if wait_for_workers:
            _wait_for_all(store, world_size, timeout)
        return store
    except BaseException:
        lease.call(house.aclose)
        lease.release()
        raise


class OwnStore(Store):
    """A store that is nobody's round.

    Attributes:
        host: Of the server.
        port: Of the server.
    """

    def __init__(self, store: RoundStore, lease: Lease, house: _House) -> None:
        super().__init__(store, lease.call)
        self.set_timeout(timedelta(seconds=house.timeout))
        self.host = house.host
        self.port = house.port
        self._lease = lease
        self._house = house

    def __repr__(self) -> str:
        return f"<OwnStore at {format_address(self.host, self.port)}>"

    def close(self) -> None:
        """Let go of it; if it is served here, it ends for everybody."""
        self._lease.check_process()
        try:
            self._lease.call(self._house.aclose)
        finally:
            self._lease.release()

    def __enter__(self) -> OwnStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_for_all(store: Store, world_size: int, timeout: float) -> None:
    """The full-rank barrier: the last to come tells all."""
    if store.add(_HERE, 1) == world_size:
        store.set(_ALL_HERE, b"")
    try:
        store.wait([_ALL_HERE])
    except RendezvousTimeoutError as error:
        here = store.add(_HERE, 0)
        raise RendezvousTimeoutError(
            f"timed out after {timeout:g} s waiting for all {world_size} workers to join; {here} are here"
        ) from error


class _House:
    """A store's server, if it is here, and its connection."""

    def __init__(self, host: str, port: int, timeout: float, secret: str | bytes | None, insecure: bool) -> None:
        self.host = host
        self.port = port
        self.timeout = timeout
        self._secret = secret
        self._insecure = insecure
        self._server: TcpServer | None = None
        self._backend: Backend | None = None

    def __repr__(self) -> str:
        return f"the store at {format_address(self.host, self.port)}"

    async def open(self, is_server: bool) -> RoundStore:
        if is_server:
            self._server = await self._serve()
            self.port = int(self._server.endpoint.rpartition(":")[2])
        endpoint = f"tcp://{format_address(self.host, self.port)}"
        backend = self._backend = await start_backend(
            endpoint, RUN_ID, is_host=False, connect_timeout=self.timeout, secret=self._secret
        )
        if is_server:
            await backend.commit(Put(round_key(0), b""))
        with anyio.move_on_after(self.timeout):
            token = await _marker(backend)
            return RoundStore(backend, 0, token, 0, 1, lambda: None, Notice(), self.timeout)
        raise RendezvousTimeoutError(f"{self} was not opened by its server within {self.timeout:g} s")

    async def aclose(self) -> None:
        backend, self._backend = self._backend, None
        server, self._server = self._server, None
        if backend is not None:
            await backend.aclose()
        if server is not None:
            await server.aclose()

    async def _serve(self) -> TcpServer:
        secret = None if self._secret is None else Secret.parse(self._secret)
        try:
            return await start_server(self.host, self.port, secret=secret, insecure=self._insecure)
        except RendezvousConnectionError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
                raise RuntimeError(f"on {self.host}, port {self.port} is already in use") from error
            raise


async def _marker(backend: Backend) -> Token:
    """Wait for the mark that the server's own worker makes, and that fences the store's writes."""
    async with backend.watch(round_key(0)) as watch:
        async for listing in watch:
            for entry in listing.entries:
                if entry.value is not None:
                    return entry.token
    raise AssertionError("a watch ends only when it is closed")
