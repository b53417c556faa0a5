"""Dials a server: tries each address of its name in turn and records how each attempt ended."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import ssl
from collections import OrderedDict
from collections.abc import Callable, Sequence

from rendezvous_async.backends.tcp.addresses import Address, resolve
from rendezvous_async.backends.tcp.client.link import HttpAnswersError, Link, RefusedError, describe
from rendezvous_async.settings import format_address

__all__ = ["Attempts", "Backoff", "DialError", "Dialer"]

ATTEMPT_SECONDS = 3.0
PROVOKED_SECONDS = 0.5
"""Time for a server that is not an rdzv server to give itself away."""
LONGEST_ATTEMPT = 30.0
"""Thousands of handshakes at once take a server some time."""
_KEPT = 16


class Attempts:
    """The outcomes of the latest attempts to connect; equal ones are counted."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def add(self, text: str) -> None:
        """Record the outcome of an attempt."""
        self._counts[text] = self._counts.get(text, 0) + 1
        self._counts.move_to_end(text)
        while len(self._counts) > _KEPT:
            self._counts.popitem(last=False)

    def lines(self) -> tuple[str, ...]:
        """Return one line per outcome, latest last."""
        return tuple(text if count == 1 else f"{text} ({count} times)" for text, count in self._counts.items())

    def clear(self) -> None:
        """Start over, after a success."""
        self._counts.clear()


class DialError(Exception):
    """No address gave a connection.

    Attributes:
        definite: Whether callers must see the error, though a retry may succeed.
        final: Whether trying again is pointless.
        refused: Whether every address refused the connection, so that no server runs there.
        causes: The outcome for each address.
    """

    def __init__(
        self,
        message: str,
        *,
        definite: bool = False,
        final: bool = False,
        refused: bool = False,
        causes: Sequence[str] = (),
    ) -> None:
        self.causes = tuple(causes)
        self.definite = definite or final
        self.final = final
        self.refused = refused
        super().__init__(message)


class Backoff:
    """Exponential backoff with jitter, so that clients do not all reconnect at once."""

    def __init__(self, rng: random.Random, first: float = 0.02, longest: float = 1.0) -> None:
        self._rng = rng
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        """Return the next pause in seconds."""
        pause = self._next * (0.5 + 0.5 * self._rng.random())
        self._next = min(self._longest, self._next * 2)
        return pause

    def reset(self) -> None:
        """Return to the shortest pause."""
        self._next = self._first


class Dialer:
    """Connects to one server at any of its addresses.

    Args:
        host: The endpoint's host.
        port: The endpoint's port.
        tls: The TLS context, if any; the server's certificate must be for ``host``.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = port
        self.attempts = Attempts()
        self._tls = tls
        self._last_good: Address | None = None
        self._patience = ATTEMPT_SECONDS

    def __str__(self) -> str:
        return format_address(self.host, self.port)

    async def dial(self, make_link: Callable[[], Link]) -> Link:
        """Return a link whose handshake is over.

        Raises:
            DialError: Every address failed; ``attempts`` has the details.
        """
        try:
            addresses = await resolve(self.host, self.port)
        except OSError as error:
            cause = f"cannot look up {self.host}: {describe(error)}"
            self.attempts.add(f"{self}: {cause}")
            raise DialError(f"{self}: {cause}", causes=[cause]) from None
        addresses.sort(key=lambda address: address != self._last_good)
        definite = final = False
        refused = bool(addresses)
        causes: list[str] = []
        for address in addresses:
            try:
                link = await self._try(address, make_link)
            except (OSError, TimeoutError) as error:
                causes.append(f"{address}: {describe(error)}")
                self.attempts.add(causes[-1])
                definite = definite or isinstance(error, RefusedError)
                final = final or isinstance(error, ssl.SSLError) or (isinstance(error, RefusedError) and error.final)
                refused = refused and isinstance(error, ConnectionRefusedError)
            else:
                self._last_good = address
                self._patience = ATTEMPT_SECONDS
                return link
        problem = "does not let this client in" if definite or final else "cannot be reached"
        raise DialError(f"{self} {problem}", definite=definite, final=final, refused=refused, causes=causes)

    async def _try(self, address: Address, make_link: Callable[[], Link]) -> Link:
        link = make_link()
        greeter = link if self._tls is None else asyncio.Protocol()
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                # By address and not with an own socket: if the peer resets that one at once, uvloop closes its
                # descriptor twice, the second time under another file.
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: greeter, address.numeric_host, address.port, family=address.family
                )
            await self._shake_hands(transport, link)
        except BaseException:
            link.abort()
            raise
        return link

    async def _shake_hands(self, transport: asyncio.Transport, link: Link) -> None:
        """Wait for the server's welcome; after a timeout, the next attempt waits longer."""
        try:
            async with asyncio.timeout(self._patience):
                if self._tls is not None:
                    link.connection_made(await self._encrypt(transport, link, self._tls))
                await link.welcomed
        except TimeoutError:
            self._patience = min(2 * self._patience, LONGEST_ATTEMPT)
            link.provoke()
            await asyncio.wait((link.lost,), timeout=PROVOKED_SECONDS)
            # Other errors may be a slow rdzv server's reaction to the provocation, not to the Hello.
            if isinstance(link.why, HttpAnswersError):
                raise link.why from None
            raise

    async def _encrypt(self, transport: asyncio.Transport, link: Link, tls: ssl.SSLContext) -> asyncio.Transport:
        if transport.is_closing():  # the TLS handshake would wait for it until the timeout
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        try:
            encrypted = await asyncio.get_running_loop().start_tls(transport, link, tls, server_hostname=self.host)
        except BaseException:
            transport.abort()
            raise
        assert encrypted is not None
        return encrypted
