"""Automatic hosting: a process on the machine that the endpoint names starts the server if none runs there.

The host binds all addresses of the name, in sorted order, all or none. So of the processes that race on one machine
exactly one wins, and the others become its clients; when the host is gone, they race again. A machine that has only
some of the addresses never hosts: otherwise two machines could each serve a part of one name.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping
from typing import NoReturn

import anyio

from rendezvous_async.backends.table.log import LogInUseError
from rendezvous_async.backends.tcp.addresses import listen_on, resolve
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.client.dialing import Dialer, DialError
from rendezvous_async.backends.tcp.options import TcpOptions
from rendezvous_async.backends.tcp.server.server import TcpServer
from rendezvous_async.backends.tcp.server.serving import check_secure, start_on
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousError

__all__ = ["Host"]

logger = logging.getLogger("rendezvous_async.server")

_PASSING = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


class Host:
    """Hosts the server when no other process does.

    Args:
        dialer: Has the endpoint; its port is set to the chosen one if it is 0.
        options: Whether and how to host.
        tls: The TLS contexts.
        secret: The secret that clients must know.
        fields: What log records carry in ``extra=``.

    Attributes:
        linger: Seconds for which ``aclose`` waits until no session is open.
    """

    def __init__(
        self,
        dialer: Dialer,
        options: TcpOptions,
        tls: Tls,
        secret: Secret | None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        self.server: TcpServer | None = None
        self.linger = options.linger
        self._dialer = dialer
        self._options = options
        self._must = options.is_host == "true"
        self._tls = tls
        self._secret = secret
        self._fields = fields

    def __repr__(self) -> str:
        return f"<Host {self._dialer} {self.server or 'not hosting'}>"

    async def prepare(self, failure: DialError | None) -> None:
        """Start the server if none runs there; called before each round of dialling.

        Args:
            failure: The error of the last round.

        Raises:
            DialError: This process must host and cannot, or only it could host and its options forbid it.
        """
        if self.server is not None:
            if self.server.failure is None:
                return
            # The server has stopped but still locks the log. The next host starts from what the disk holds.
            server, self.server = self.server, None
            with anyio.CancelScope(shield=True):
                await server.aclose()
        elif failure is not None and not failure.refused:
            return
        try:
            reason = await self._try()
        except LogInUseError as error:
            # The previous host has released the addresses and waits for its last sync.
            reason = str(error)
        except RendezvousError as error:
            self._give_up(f"cannot host: {error}", final=not _may_pass(error))
        if reason is None:
            return
        self._dialer.attempts.add(f"{self._dialer}: not hosting: {reason}")
        if self._must:
            self._give_up(f"this process must host (is_host=true), but {reason}")

    async def aclose(self) -> None:
        """Stop the server when no session is open, after ``linger`` seconds at the latest, or at once if cancelled."""
        server, self.server = self.server, None
        if server is None:
            return
        try:
            with anyio.move_on_after(self.linger):
                await server.without_sessions()
        finally:
            with anyio.CancelScope(shield=True):
                await server.aclose()

    async def _try(self) -> str | None:
        """Host, or return the reason why not; None also if another process serves the addresses."""
        dialer = self._dialer
        try:
            addresses = await resolve(dialer.host, dialer.port)
        except OSError as error:
            return f"cannot look up {dialer.host}: {error.strerror}"
        foreign = [address for address in addresses if not (address.is_loopback or address.is_local())]
        if foreign:
            return f"{foreign[0].host} is not an address of this machine"
        try:
            sockets = listen_on(addresses)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and not self._must:
                return None  # another process serves there, or is about to
            return str(error.strerror)
        try:
            if not self._tls.can_serve:
                raise ValueError("TLS is asked for, but a host needs a certificate: set tls_cert and tls_key")
            check_secure(addresses, self._secret is not None or self._tls.server is not None, self._options.insecure)
        except ValueError as error:
            # No other process would host, so waiting is pointless.
            for sock in sockets:
                sock.close()
            self._give_up(f"this process would host, but {error}")
        self.server = await start_on(
            sockets,
            dialer.host,
            data_dir=self._options.data_dir,
            secret=self._secret,
            tls=self._tls.server,
            disconnect_grace=self._options.disconnect_grace,
            limits=self._options.limits,
        )
        dialer.port = sockets[0].getsockname()[1]
        logger.info("hosting the server at %s", self.server.endpoint, extra=self._fields)
        misleading = any(address.is_loopback and address.host != dialer.host for address in addresses)
        if misleading and dialer.host != "localhost":
            logger.warning(
                "%s means %s here: nodes on other machines cannot reach it; see /etc/hosts, or give an address",
                dialer.host,
                " and ".join(address.host for address in addresses),
                extra=self._fields,
            )
        return None

    def _give_up(self, message: str, *, final: bool = True) -> NoReturn:
        self._dialer.attempts.add(f"{self._dialer}: {message}")
        raise DialError(message, definite=True, final=final, refused=True)


def _may_pass(error: RendezvousError) -> bool:
    """Tell whether the error may be transient, such as a full disk."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING
