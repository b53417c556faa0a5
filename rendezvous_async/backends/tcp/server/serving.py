"""Starts a server: checks that it is secure, listens, reads the log, serves."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from rendezvous_async.aio import clock
from rendezvous_async.backends.options import parse_option
from rendezvous_async.backends.system import System, system
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.tcp.addresses import Address, listen_on, resolve
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.options import TcpOptions
from rendezvous_async.backends.tcp.server.limits import DISCONNECT_GRACE, Limits
from rendezvous_async.backends.tcp.server.server import TcpServer
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import DEFAULT_PORTS, check_seconds, format_address
from rendezvous_async.texts import quoted

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
    """Serve ``tcp://`` for as long as the block runs; ``.endpoint`` of the server is the endpoint for clients.

    When the disk under ``data_dir`` fails, or the log in it is moved away, the server stops, but the block continues:
    the event ``.failed`` is set, and ``.failure`` is the error. Wait for the event and raise the error; a restarted
    server continues from what the disk holds.

    Args:
        host: An address, or a name, whose addresses are all served, or none.
        port: The port; 0 means any free one.
        data_dir: Keep everything on disk here: a restart with the same directory continues where this server stopped.
            Without it, a restarted server begins a new history, and every node must join again.
        secret: The secret that clients must know; see ``restrict`` for secrets that open only some runs.
        tls: A server-side context; or give the files ``tls_cert``, ``tls_key`` and, to demand client certificates,
            ``tls_ca``.
        insecure: Allow an address that other machines can reach with neither secret nor TLS.
        disconnect_grace: Seconds that a session outlives its connection.
        limits: The limits for clients.

    Raises:
        ValueError: Other machines can reach the address, and there is neither secret nor TLS, nor ``insecure``.
        RendezvousConnectionError: The address is not available, or others could write in ``data_dir``.
        RendezvousStateError: The log in ``data_dir`` is damaged, of a newer version, or in use by another server.
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
        raise ValueError(f"host must be an address or a name, not {quoted(host)}")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"port must be a number from 0 to 65535, not {quoted(port)}")
    if not isinstance(insecure, bool):
        raise ValueError(f"insecure must be True or False, not {quoted(insecure)}")
    for name, value in options.items():
        if value is not None:
            parse_option(TcpOptions, name, value)


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
        why = str(error.strerror).removeprefix(f"{where}: ")  # the address may be the host itself
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
    """Serve on listening sockets, which are closed on failure."""
    server = None
    try:
        log = None if data_dir is None else await _open_log_aside(os.path.join(data_dir, LOG_NAME))
        endpoint = f"tcp://{format_address(name_for_others(host), sockets[0].getsockname()[1])}"
        server = TcpServer(log=log, secret=secret, limits=limits, disconnect_grace=disconnect_grace, endpoint=endpoint)
        system().serves(server.table)
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
    """Open a log on a thread; every session gets its full TTL from the moment that the log is open."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open_log, path, clock.now(), system())
    try:
        log = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread continues. Close the log that it opens, or it would stay locked.
        opening.add_done_callback(_close_log)
        raise
    now = clock.now()
    for session, _ in log.table.open_sessions():
        log.table.keep_alive(session, now)
    log.table.due(now)  # none is; this updates the expiry heap
    return log


def _close_log(opening: asyncio.Future[Log]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _open_log(path: str, now: float, where: System) -> Log:
    """Open a log for a server; runs on a thread.

    The log is rewritten. The last server may have stopped because a sync failed: then some of what the kernel returns
    was never on disk, and no later sync would report it.
    """
    # Imported late: a server without a log does not need the file backend.
    from rendezvous_async.backends.file.directory import Directory

    files, epoch = where.files, where.random_bytes(8).hex()
    advice = "use a directory of your own, for example a new one inside it"
    directory = Directory.open(os.path.realpath(os.path.dirname(path)), advice=advice, files=files)
    try:
        log = Log.open(path, directory=directory.fd, epoch=epoch, exclusive=True, now=now, files=files)
    finally:
        directory.close()
    try:
        log.compact(log.table.snapshot())
    except BaseException:
        log.close()
        raise
    return log


def check_secure(addresses: Sequence[Address], protected: bool, insecure: bool) -> None:
    """Raise ValueError if other machines could reach a server that admits every client."""
    if protected or insecure:
        return
    reachable = next((address for address in addresses if not address.is_loopback), None)
    if reachable is not None:
        raise ValueError(
            f"{reachable} can be reached by other machines, and any of them could read and write every run: set "
            "secret=..., or TLS (tls_cert=... and tls_key=...), or say insecure=True if the network is trusted "
            "(rdzv takes --secret-file, torchrun secret_file)"
        )


def name_for_others(host: str) -> str:
    """Return the host that clients should use for a server that listens on ``host``."""
    try:
        wildcard = Address(host, 0).is_wildcard
    except ValueError:
        return host
    return socket.gethostname() if wildcard else host
