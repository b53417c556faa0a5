"""Who hosts the server when nobody was told to: a process on the machine that the endpoint names.

The host binds all addresses that the name resolves to, in sorted order, all or none. So of processes that race on one
machine exactly one wins, and the others become its clients; when it goes, those that are refused race again. A machine
that has only some of the addresses never hosts: two machines would each serve their own part of one name.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Literal, NoReturn

import anyio

from rendezvous_async.backends.log import LogInUseError
from rendezvous_async.backends.tcp.addresses import listen_on, resolve
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.dialing import Dialer, DialError
from rendezvous_async.backends.tcp.limits import Limits
from rendezvous_async.backends.tcp.server import DISCONNECT_GRACE, TcpServer
from rendezvous_async.backends.tcp.serving import check_secure, start_on
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousError

__all__ = ["Host", "HostMode"]

logger = logging.getLogger("rendezvous_async.server")

HostMode = Literal["auto", "true", "false"]

_PASSING = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


class Host:
    """A process's will to host, and the server once it does.

    Args:
        dialer: Knows the endpoint; gets the port that was chosen if the endpoint's is 0.
        must: This process hosts or fails (``is_host=true``); otherwise it hosts if it can.
        tls: What to serve with.
        linger: Seconds for which ``aclose`` waits for the sessions of others to end.
        secret, data_dir, insecure, disconnect_grace, limits: As for ``serve``.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        must: bool,
        tls: Tls,
        secret: Secret | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        disconnect_grace: float = DISCONNECT_GRACE,
        limits: Limits | None = None,
        linger: float = 30.0,
    ) -> None:
        self.server: TcpServer | None = None
        self.linger = linger
        self._dialer = dialer
        self._must = must
        self._tls = tls
        self._secret = secret
        self._data_dir = data_dir
        self._insecure = insecure
        self._disconnect_grace = disconnect_grace
        self._limits = limits

    def __repr__(self) -> str:
        return f"<Host {self._dialer} {self.server or 'not hosting'}>"

    async def prepare(self, failure: DialError | None) -> None:
        """Start the server, if nobody serves there; called before each round of dialling.

        Args:
            failure: How the last round ended.

        Raises:
            DialError: This process must host and cannot, or nobody else will and it is not allowed to.
        """
        if self.server is not None:
            if self.server.failure is None:
                return
            # It stopped, and keeps the log locked still. Whoever hosts next begins with what the disk holds.
            server, self.server = self.server, None
            with anyio.CancelScope(shield=True):
                await server.aclose()
        elif failure is not None and not failure.refused:
            return
        try:
            reason = await self._try()
        except LogInUseError as error:
            # The host before this one has let go of the addresses, and waits for its last sync.
            reason = str(error)
        except RendezvousError as error:
            self._give_up(f"cannot host: {error}", final=not _may_pass(error))
        if reason is None:
            return
        self._dialer.attempts.add(f"{self._dialer}: not hosting: {reason}")
        if self._must:
            self._give_up(f"this process must host (is_host=true), but {reason}")

    async def aclose(self) -> None:
        """Stop the server, after the sessions of others have ended or ``linger`` seconds; if cancelled, at once."""
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
        """Host, or say why not."""
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
                return None  # somebody serves there, or is about to
            return str(error.strerror)
        try:
            if not self._tls.can_serve:
                raise ValueError("TLS is asked for, but a host needs a certificate: set tls_cert and tls_key")
            check_secure(addresses, self._secret is not None or self._tls.server is not None, self._insecure)
        except ValueError as error:
            # Nobody serves there, and we are the ones who should: to wait would be in vain.
            for sock in sockets:
                sock.close()
            self._give_up(f"this process would host, but {error}")
        self.server = await start_on(
            sockets,
            dialer.host,
            data_dir=self._data_dir,
            secret=self._secret,
            tls=self._tls.server,
            disconnect_grace=self._disconnect_grace,
            limits=self._limits,
        )
        dialer.port = sockets[0].getsockname()[1]
        logger.info("hosting the server at %s", self.server.endpoint)
        misleading = any(address.is_loopback and address.host != dialer.host for address in addresses)
        if misleading and dialer.host != "localhost":
            logger.warning(
                "%s means %s here: nodes on other machines cannot reach it; see /etc/hosts, or give an address",
                dialer.host,
                " and ".join(address.host for address in addresses),
            )
        return None

    def _give_up(self, message: str, *, final: bool = True) -> NoReturn:
        self._dialer.attempts.add(f"{self._dialer}: {message}")
        raise DialError(message, definite=True, final=final, refused=True)


def _may_pass(error: RendezvousError) -> bool:
    """Tell whether what keeps a host from its log may be over by itself, as a disk that is full for a while."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING
