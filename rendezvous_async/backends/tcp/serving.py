"""Start a server: check that it is safe, listen, read the log, serve."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from rendezvous_async import clock
from rendezvous_async.backends.log import Log
from rendezvous_async.backends.options import OPTIONS
from rendezvous_async.backends.tcp.addresses import Address, listen_on, resolve
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.limits import Limits
from rendezvous_async.backends.tcp.server import DISCONNECT_GRACE, TcpServer
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import DEFAULT_PORTS, check_seconds, format_address

__all__ = ["serve", "start_server"]

LOG_NAME = "rendezvous.log"


@asynccontextmanager
async def serve(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORTS["tcp"],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    secret: str | bytes | None = None,
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    disconnect_grace: float = DISCONNECT_GRACE,
    limits: Limits | None = None,
) -> AsyncIterator[TcpServer]:
    """Serve ``tcp://`` for as long as the block runs; ``.endpoint`` of its value is ready to hand out.

    When the disk under ``data_dir`` fails, or the log in it is moved away, the server stops, though the block runs on:
    ``.failed`` is an event that is set then, and ``.failure`` the error. Wait for the one and raise the other; a server
    that is started again goes on with what the disk holds.

    Args:
        host: An address, or a name; all of its addresses are served, or none.
        port: 0 means any free port.
        data_dir: Keep everything on disk here: a restart with the same directory goes on where this server stopped.
            Without it, a restarted server begins a new history, and every node must join afresh.
        secret: What clients must know; see ``restrict`` for secrets that open some runs only.
        tls: A server-side context; or give the files ``tls_cert``, ``tls_key`` and, to demand certificates of clients,
            ``tls_ca``.
        insecure: Serve on an address that others can reach with neither secret nor TLS.
        disconnect_grace: Seconds that a session outlives its connection.
        limits: What clients are given.

    Raises:
        ValueError: The address can be reached by others, and there is neither secret nor TLS, nor ``insecure``.
        RendezvousConnectionError: The address cannot be had, or others could write in ``data_dir``.
        RendezvousStateError: The log in ``data_dir`` is damaged, or in use by another server.
    """
    files: dict[str, object] = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    _check_arguments(host, port, insecure, data_dir=data_dir, secret=secret, tls=tls, limits=limits, **files)
    encryption = Tls.make(tls, ca=tls_ca, cert=tls_cert, key=tls_key)
    if encryption.client is not None and encryption.server is None:
        raise ValueError("to serve with TLS give tls_cert and tls_key, or a server-side context as tls")
    server = await start_server(
        host,
        port,
        data_dir=data_dir,
        secret=None if secret is None else Secret.parse(secret),
        tls=encryption.server,
        insecure=insecure,
        disconnect_grace=disconnect_grace,
        limits=limits,
    )
    try:
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server.aclose()


def _check_arguments(host: object, port: object, insecure: object, **options: object) -> None:
    clock.check_asyncio()
    if not isinstance(host, str) or not host:
        raise ValueError(f"host must be an address or a name, not {host!r}")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"port must be a number from 0 to 65535, not {port!r}")
    if not isinstance(insecure, bool):
        raise ValueError(f"insecure must be True or False, not {insecure!r}")
    for name, value in options.items():
        if value is not None:
            OPTIONS["tcp"][name](name, value)


async def start_server(
    host: str,
    port: int,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    secret: Secret | None = None,
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    disconnect_grace: float = DISCONNECT_GRACE,
    limits: Limits | None = None,
) -> TcpServer:
    """Start a server; the caller closes it with ``aclose()``. See ``serve``."""
    check_seconds("disconnect_grace", disconnect_grace)
    where = format_address(host, port)
    try:
        addresses = await resolve(host, port)
    except OSError as error:
        raise RendezvousConnectionError(f"cannot serve on {where}: {error.strerror}") from error
    check_secure(addresses, secret is not None or tls is not None, insecure)
    try:
        sockets = listen_on(addresses)
    except OSError as error:
        why = str(error.strerror).removeprefix(f"{where}: ")  # It names the address, which the host may be.
        raise RendezvousConnectionError(f"cannot serve on {where}: {why}") from error
    return await start_on(
        sockets,
        host,
        data_dir=data_dir,
        secret=secret,
        tls=tls,
        disconnect_grace=disconnect_grace,
        limits=limits,
    )


async def start_on(
    sockets: Sequence[socket.socket],
    host: str,
    *,
    data_dir: str | os.PathLike[str] | None,
    secret: Secret | None,
    tls: ssl.SSLContext | None,
    disconnect_grace: float,
    limits: Limits | None,
) -> TcpServer:
    """Serve on sockets that listen; they are closed if it fails."""
    server = None
    try:
        log = None if data_dir is None else await _open_log_aside(os.path.join(data_dir, LOG_NAME))
        endpoint = f"tcp://{format_address(name_for_others(host), sockets[0].getsockname()[1])}"
        server = TcpServer(log=log, secret=secret, limits=limits, disconnect_grace=disconnect_grace, endpoint=endpoint)
        await server.start(sockets, tls)
    except BaseException:
        if server is not None:
            with anyio.CancelScope(shield=True):
                await server.aclose()
        for sock in sockets:
            sock.close()
        raise
    return server


async def _open_log_aside(path: str) -> Log:
    """Open a log on a thread; every session gets its full TTL from the moment that it is open."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open_log, path, clock.now())
    try:
        log = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread goes on. Nobody else could open a log that it has opened for nobody.
        opening.add_done_callback(_close_log)
        raise
    now = clock.now()
    for session, _ in log.table.open_sessions():
        log.table.keep_alive(session, now)
    log.table.due(now)  # None is; the table looks again at those whose time would have been over.
    return log


def _close_log(opening: asyncio.Future[Log]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _open_log(path: str, now: float) -> Log:
    """Open a log for a server; runs on a thread.

    What was read is written anew. The last server may have stopped because a sync failed: then some of what the kernel
    gives us to read was never on the disk, and no later sync would tell.
    """
    # Not before it is needed: a server without a log has no use for the file backend.
    from rendezvous_async.backends.file.directory import Directory

    where = os.path.realpath(os.path.dirname(path))
    directory = Directory.open(where, advice="use a directory of your own, for example a new one inside it")
    try:
        log = Log.open(path, directory=directory.fd, exclusive=True, now=now)
    finally:
        directory.close()
    try:
        log.compact(log.table.snapshot())
    except BaseException:
        log.close()
        raise
    return log


def check_secure(addresses: Sequence[Address], protected: bool, insecure: bool) -> None:
    """Raise ValueError if others could reach a server that lets everybody in."""
    if protected or insecure:
        return
    reachable = next((address for address in addresses if not address.is_loopback), None)
    if reachable is not None:
        raise ValueError(
            f"{reachable} can be reached by other machines, and whoever reaches it could read and write every run: set "
            "secret=..., or TLS (tls_cert=... and tls_key=...), or say insecure=True if the network is trusted "
            "(rdzv takes --secret-file, torchrun secret_file)"
        )


def name_for_others(host: str) -> str:
    """Return what clients should call a server that listens on ``host``."""
    try:
        wildcard = Address(host, 0).is_wildcard
    except ValueError:
        return host
    return socket.gethostname() if wildcard else host
