"""The address by which others reach this machine, free ports, and endpoints in the classic's form.

Most of it blocks, for as long as a name server takes: on a loop, call it in a worker thread.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import closing, suppress

from rendezvous_async.settings import Endpoint
from rendezvous_async.texts import quoted

__all__ = [
    "address_toward",
    "find_local_address",
    "get_free_port",
    "get_socket_with_port",
    "is_elsewhere",
    "is_loopback",
    "is_only_here",
    "known_address",
    "parse_rendezvous_endpoint",
]

_NOWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Addresses that are kept for documentation: nothing is sent, they only ask for the way out of this machine."""


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Return host and port of ``host[:port]``; ``localhost`` and the default port where they are not given."""
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    if text.startswith("[") and text.endswith("]"):
        host, colon, port = text, "", ""
    else:
        host, colon, port = text.rpartition(":") if ":" in text else (text, "", "")
    if len(host) > 1 and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if colon and (not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535):
        raise ValueError(f"the port of the rendezvous endpoint {quoted(endpoint)} must be a number from 0 to 65535")
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ValueError(f"the host of the rendezvous endpoint {quoted(endpoint)} must be a name or an IP address")
    return host, int(port) if colon else default_port


def get_socket_with_port() -> socket.socket:
    """Return a socket that listens on a free port of localhost; close it before another process uses the port."""
    problem: OSError | None = None
    for family, kind, protocol, _, _ in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # The system has no IPv6, and localhost does.
            problem = error
            continue
        try:
            sock.bind(("localhost", 0))
            sock.listen(0)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise RuntimeError("no port of localhost can be had") from problem


def get_free_port() -> int:
    """Return a port of localhost that was free a moment ago; another process may take it before you do."""
    with closing(get_socket_with_port()) as sock:
        return int(sock.getsockname()[1])


def find_local_address(host: str | None = None, port: int = 9) -> str:
    """Return an address of this machine by which others reach it, in numbers, so that no lookup is needed.

    Args:
        host: A host that all nodes talk to; the result is the address from which this machine talks to it. Without it,
            or if it is this machine itself, the address of the machine's name, or of its default route.
        port: A port of that host; nothing is sent there.
    """
    if host is not None:
        found = _source_toward(host, port)
        if found is not None:
            return found
    own = _resolve(socket.gethostname())
    for address in own:
        if not is_loopback(address):
            return address
    for place, any_port in _NOWHERE:
        found = _source_toward(place, any_port)
        if found is not None:
            return found
    return own[0] if own else "127.0.0.1"


def address_toward(endpoint: Endpoint, source: str = "") -> str:
    """Return the address of this machine that the other nodes can reach, as far as the endpoint tells.

    Call it once the endpoint was reached: before that, its name may not resolve, and the result would be a guess.

    Args:
        endpoint: Where the run's state lives.
        source: The local address of the connection to it, if known.
    """
    known = known_address(endpoint, source)
    if known:
        return known
    if is_only_here(endpoint):
        return find_local_address(*endpoint.hosts[0])
    for host, port in endpoint.hosts:
        found = known_address(endpoint, _source_toward(host, port) or "")
        if found:
            return found
    return find_local_address()


def known_address(endpoint: Endpoint, source: str) -> str:
    """Return what ``address_toward`` would if that takes no lookup; empty otherwise."""
    if endpoint.scheme == "memory":
        return "127.0.0.1"
    if is_only_here(endpoint):
        host = endpoint.hosts[0][0]
        return "" if host == "localhost" else host
    # A loopback address: the endpoint is on this machine, but the others may be elsewhere. A local etcd may be one of a
    # cluster, and many systems have their own name stand for a loopback address. A link-local address needs its zone,
    # which means nothing to others.
    return "" if not source or "%" in source or is_loopback(source) else source


def is_loopback(address: str) -> bool:
    """Tell whether only its own machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def is_elsewhere(address: str) -> bool:
    """Tell whether an address, or a name, is certainly not one of this machine."""
    found = _resolve(address)
    return bool(found) and not any(is_loopback(each) or _is_local(each) for each in found)


def is_only_here(endpoint: Endpoint) -> bool:
    """Tell whether all nodes of an endpoint must be on this machine: it is one that others cannot mean."""
    if endpoint.scheme != "tcp":
        return endpoint.scheme == "memory"
    return is_loopback(endpoint.hosts[0][0])


def _source_toward(host: str, port: int) -> str | None:
    """Return the address that a datagram to ``host`` would come from; None if there is no way."""
    for address in _resolve(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, port or 9))
            return str(sock.getsockname()[0])
    return None


def _is_local(address: str) -> bool:
    """Tell whether this machine has an address, by asking the kernel."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 0))
        return True
    return False


def _resolve(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    # A link-local address needs its zone, which means nothing to others. Of the others, IPv4 first: MASTER_ADDR ends up
    # in URLs that people put together without brackets.
    addresses = [str(where[0]) for *_, where in found if "%" not in str(where[0])]
    return sorted(addresses, key=lambda address: ":" in address)
