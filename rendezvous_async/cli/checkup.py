"""What ``rdzv doctor`` looks at, in the order in which one thing needs the other; a check that fails ends the rest.

All times are measured by this process's own monotonic clock.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import ssl
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from statistics import median
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from rendezvous_async import clock
from rendezvous_async.addresses import address_toward, is_only_here
from rendezvous_async.backends.base import Backend, Delete, Put
from rendezvous_async.cli.endpoints import endpoint_of, open_run
from rendezvous_async.cli.exits import Failure
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.settings import Endpoint, format_address

__all__ = ["Finding", "examine"]

ROUND_TRIPS = 25
SLOW = 0.05
"""Seconds for a round trip from which on it is worth a warning."""
TTL = 5.0


class Finding(msgspec.Struct, frozen=True):
    """What a check has found.

    Attributes:
        check: What was looked at.
        verdict: Whether that is as it should be.
        found: In words.
        fix: What to do about it.
        unusable: The endpoint cannot be used at all.
    """

    check: str
    verdict: Literal["ok", "warning", "wrong"]
    found: str
    fix: str = ""
    unusable: bool = False


async def examine(options: Namespace) -> AsyncGenerator[Finding, None]:
    """Check an endpoint; yields each finding as soon as it is there."""
    endpoint = endpoint_of(options)
    for host, port in endpoint.hosts:
        async for finding in examine_host(host, port, endpoint, options.timeout):
            yield finding
            if finding.unusable and len(endpoint.hosts) == 1:
                return
    if endpoint.scheme == "file":
        finding = _directory(endpoint.path)
        yield finding
        if finding.unusable:
            return
    yield await _this_host(endpoint, options.timeout)
    run_id = options.run_id or f"rdzv-doctor-{secrets.token_hex(4)}"
    try:
        began = clock.now()
        async with open_run(options, run_id) as backend:
            yield Finding("connection", "ok", f"open after {_ms(clock.now() - began)}")
            if endpoint.scheme == "tcp":
                yield _secrecy(endpoint)
            async for finding in examine_backend(backend, options.timeout):
                yield finding
    except TimeoutError:
        yield Finding("latency", "wrong", "the answers take too long", "is the server, or the network, overloaded?")
    except (RendezvousError, Failure, ImportError) as error:
        yield Finding("connection", "wrong", str(error), _advice(error), unusable=True)


async def examine_host(host: str, port: int, endpoint: Endpoint, timeout: float) -> AsyncIterator[Finding]:
    """Check a name and a port."""
    where = format_address(host, port)
    try:
        with anyio.fail_after(timeout):
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        text = getattr(error, "strerror", None) or "no answer in time"
        fix = "check the spelling, DNS and /etc/hosts on this machine"
        yield Finding("name", "wrong", f"{host} cannot be looked up: {text}", fix, unusable=True)
        return
    addresses = sorted({str(info[4][0]) for info in infos})
    found = f"{host} is {', '.join(addresses)}"
    on_loopback = all(ipaddress.ip_address(address).is_loopback for address in addresses)
    if endpoint.scheme == "tcp" and on_loopback and not is_only_here(endpoint):
        fix = "if nodes run elsewhere, too: a server hosted under this name serves nobody else; see /etc/hosts here"
        yield Finding("name", "warning", f"{found}, on this machine", fix)
    else:
        yield Finding("name", "ok", found)
    failures = []
    for address in addresses:
        began = clock.now()
        try:
            with anyio.fail_after(timeout):
                _, writer = await asyncio.open_connection(address, port)
        except (OSError, TimeoutError) as error:
            text = "no answer in time" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0)
            failures.append(f"{format_address(address, port)}: {text}")
            continue
        yield Finding("port", "ok", f"{format_address(address, port)} accepts after {_ms(clock.now() - began)}")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if failures:
        unusable = len(failures) == len(addresses)
        fix = f"is the server running and listening on {where}, and does the firewall let this machine in?"
        yield Finding("port", "wrong" if unusable else "warning", "; ".join(failures), fix, unusable)
    elif endpoint.scheme in ("etcd", "etcds"):
        yield await _etcd(host, port, endpoint, timeout)


async def examine_backend(backend: Backend, timeout: float) -> AsyncIterator[Finding]:
    """Check what can be done there, and how fast."""
    key = f"doctor-{secrets.token_hex(8)}"
    times = []
    with anyio.fail_after(timeout + ROUND_TRIPS * SLOW * 4):
        for _ in range(ROUND_TRIPS):
            began = clock.now()
            await backend.get(key)
            times.append(clock.now() - began)
    slow = median(times) > SLOW
    yield Finding(
        "latency",
        "warning" if slow else "ok",
        f"{ROUND_TRIPS} round trips: median {_ms(median(times))}, worst {_ms(max(times))}",
        "put the server closer to the nodes, or raise keep_alive_interval" if slow else "",
    )
    try:
        session = await backend.open_session(TTL)
        async with backend.watch(key) as watch:
            await anext(watch)
            began = clock.now()
            await backend.commit(Put(key, b"doctor", session.id))
            committed = clock.now()
            with anyio.fail_after(timeout):
                await anext(watch)
            pushed = clock.now()
            await session.keep_alive()
            await session.aclose()
            with anyio.fail_after(timeout):
                await anext(watch)
        await backend.commit(Delete(key))
    except TimeoutError:
        yield Finding("pushes", "wrong", f"no push within {timeout:g} s", "is a proxy holding back the traffic?")
        return
    except (RendezvousError, ValueError) as error:
        fix = "is this secret, or this user, restricted to other runs? see --run-id"
        yield Finding("permissions", "wrong", f"run {backend.run_id!r} cannot be written: {error}", fix)
        return
    yield Finding("permissions", "ok", f"read, write, session (TTL {session.ttl:g} s), keep-alive and delete work")
    yield Finding(
        "pushes",
        "ok",
        f"a write takes {_ms(committed - began)}; watchers have it {_ms(pushed - began)} after it was sent",
    )


async def _this_host(endpoint: Endpoint, timeout: float) -> Finding:
    """See which address nodes of this machine tell the others, and whether those can use it."""
    name = socket.gethostname()
    with anyio.move_on_after(timeout):
        address = await anyio.to_thread.run_sync(address_toward, endpoint, abandon_on_cancel=True)
        found = f"{name}; rdzv launch tells the other nodes to reach it at {address}"
        if ipaddress.ip_address(address).is_loopback and not is_only_here(endpoint):
            fix = "give nodes on this machine an address that others can reach (address=, rdzv launch --address)"
            return Finding("this host", "warning", f"{found}, which only this machine can", fix)
        return Finding("this host", "ok", found)
    fix = "check DNS and /etc/hosts on this machine"
    return Finding("this host", "warning", f"its own name {name!r} was not looked up within {timeout:g} s", fix)


def _secrecy(endpoint: Endpoint) -> Finding:
    secret, tls = "secret" in endpoint.options, any(name.startswith("tls") for name in endpoint.options)
    if secret or tls:
        used = " and ".join(word for word, used in (("a secret", secret), ("TLS", tls)) if used)
        return Finding("security", "ok", f"the server takes {used}")
    if is_only_here(endpoint):
        return Finding("security", "ok", "neither secret nor TLS, on loopback")
    return Finding(
        "security", "warning", "neither secret nor TLS: whoever reaches the port can do anything", "serve with a secret"
    )


def _directory(path: str) -> Finding:
    if not os.path.isdir(path):
        return Finding("directory", "wrong", f"{path} is no directory", "create it on the shared file system", True)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Finding("directory", "wrong", f"{path} cannot be written by this user", "check its permissions", True)
    return Finding("directory", "ok", f"{path} can be written")


async def _etcd(host: str, port: int, endpoint: Endpoint, timeout: float) -> Finding:
    """Ask an etcd for its version and its health."""
    answers = []
    try:
        with anyio.fail_after(timeout):
            for path in ("/version", "/health"):
                reader, writer = await asyncio.open_connection(host, port, ssl=_etcd_tls(endpoint))
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answers.append((await reader.read(65536)).partition(b"\r\n\r\n")[2])
                writer.close()
        version = msgspec.json.decode(answers[0])["etcdserver"]
        healthy = msgspec.json.decode(answers[1]).get("health") == "true"
    except (OSError, TimeoutError, msgspec.DecodeError, LookupError, AttributeError, TypeError) as error:
        fix = _advice(error) if isinstance(error, ssl.SSLError) else "is it etcd, and does it want TLS (etcds://)?"
        return Finding("etcd", "warning", f"{format_address(host, port)} does not say its version", fix)
    if not healthy:
        fix = "look at its log and at etcdctl endpoint health"
        return Finding("etcd", "wrong", f"etcd {version} says that it is not healthy", fix)
    return Finding("etcd", "ok", f"etcd {version} is healthy")


def _etcd_tls(endpoint: Endpoint) -> ssl.SSLContext | None:
    if endpoint.scheme != "etcds":
        return None
    context = ssl.create_default_context(cafile=endpoint.options.get("ca"))
    if "cert" in endpoint.options:
        context.load_cert_chain(endpoint.options["cert"], endpoint.options.get("key"))
    return context


def _advice(error: Exception) -> str:
    text = str(error).lower()
    if "secret" in text:
        return "give the server's secret with --secret-file, or leave it away if the server has none"
    if "tls" in text or "certificate" in text or isinstance(error.__cause__ or error, ssl.SSLError):
        return "do both sides use TLS, and does --tls-ca name the authority of the server's certificate?"
    if isinstance(error, RendezvousConnectionError):
        return "is it an rdzv server that listens there, of this version, with or without TLS as you asked for?"
    return ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
