"""Names and addresses, listening on all addresses of a name or on none, and what the kernel knows of a peer."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from rendezvous_async.backends.system import system
from rendezvous_async.settings import format_address

__all__ = ["Address", "host_of", "listen_on", "resolve", "silence_of", "watch_for_dead_peer"]

BACKLOG = 4096
_PORT_TRIES = 20
_LAST_DATA_RECEIVED = 52
"""The offset of ``tcpi_last_data_recv`` in Linux's ``struct tcp_info``: milliseconds, in 32 bits."""


class Address(msgspec.Struct, frozen=True, order=True):
    """One address of a name; addresses sort in the order in which hosts bind them."""

    host: str
    port: int
    flow: int = 0
    zone: int = 0

    def __str__(self) -> str:
        return format_address(self.host, self.port)

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def is_wildcard(self) -> bool:
        return ipaddress.ip_address(self.host.partition("%")[0]).is_unspecified

    def at(self, port: int) -> Address:
        """Return the same address with another port."""
        return Address(self.host, port, self.flow, self.zone)

    @property
    def socket_address(self) -> tuple[Any, ...]:
        """The address in the form of the socket module."""
        if self.family == socket.AF_INET6:
            return (self.host, self.port, self.flow, self.zone)
        return (self.host, self.port)

    @property
    def numeric_host(self) -> str:
        """The host as one text, with the zone of a link-local address."""
        return f"{self.host}%{self.zone}" if self.zone and "%" not in self.host else self.host

    def is_local(self) -> bool:
        """Tell whether this machine has the address, by trying to bind it."""
        try:
            with system().socket(self.family, socket.SOCK_DGRAM) as sock:
                sock.bind(self.at(0).socket_address)
        except OSError:
            return False
        return True


def host_of(socket_address: object) -> str:
    """Return the host of a socket address, with a mapped IPv4 address as plain IPv4; empty if there is none."""
    return str(socket_address[0]).removeprefix("::ffff:") if isinstance(socket_address, tuple) else ""


async def resolve(host: str, port: int) -> list[Address]:
    """Return all addresses of ``host``, each once, in the system's order of preference.

    Raises:
        OSError: The name is unknown, or the lookup failed.
    """
    if _is_literal(host):
        return [Address(host, port)]  # without the resolver's thread
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = [Address(str(where[0]), int(where[1]), *(int(part) for part in where[2:4])) for *_, where in found]
    return list(dict.fromkeys(addresses))


def listen_on(addresses: Sequence[Address]) -> list[socket.socket]:
    """Listen on all addresses, in sorted order, or on none.

    With port 0, all get the same free port. A loopback address that this machine lacks (IPv6 disabled) is skipped as
    long as another one remains: no process could serve it.

    Raises:
        OSError: An address is in use or not available; then none is bound.
    """
    wanted = sorted(addresses)
    for attempt in range(_PORT_TRIES):
        try:
            return _listen_once(wanted)
        except OSError as error:
            any_port = all(address.port == 0 for address in wanted)
            if error.errno != errno.EADDRINUSE or not any_port or attempt == _PORT_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _listen_once(addresses: Sequence[Address]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    port = 0
    try:
        for address in addresses:
            try:
                sock = _listen(address.at(address.port or port))
            except OSError as error:
                if address.is_loopback and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    missing = error
                    continue
                raise OSError(error.errno, f"{address}: {error.strerror}") from error
            sockets.append(sock)
            port = sock.getsockname()[1]
        if missing is not None and not sockets:
            raise missing
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _listen(address: Address) -> socket.socket:
    # With the protocol given, or asyncio would not disable Nagle's algorithm, and answers could wait 40 ms.
    sock = system().socket(address.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Otherwise a restarted server would have to wait for old connections in TIME_WAIT. Two servers still cannot
        # listen at once, but two may *bind* at once, so listen() decides between racing hosts.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address.is_wildcard else 1)
        sock.setblocking(False)
        sock.bind(address.socket_address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def watch_for_dead_peer(sock: socket.socket) -> None:
    """Enable TCP keepalive, so that the kernel closes connections to machines that are gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def silence_of(sock: socket.socket) -> float:
    """Return the seconds since the kernel last received data from the peer; 0.0 where the kernel does not tell."""
    if sys.platform != "linux":
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED + 4)
    except OSError:  # not a TCP socket
        return 0.0
    return float(struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)[0]) / 1000
