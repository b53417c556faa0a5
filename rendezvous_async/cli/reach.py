"""Check whether a host can be reached: its name, its port, and the health of an etcd there."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection

import anyio
import anyio.to_thread
import msgspec

from rendezvous_async.aio import clock
from rendezvous_async.cli.findings import Finding, advice, ms
from rendezvous_async.node.addresses import is_only_here
from rendezvous_async.settings import Endpoint, format_address

__all__ = ["examine_host"]


async def examine_host(host: str, port: int, endpoint: Endpoint, timeout: float) -> AsyncIterator[Finding]:
    """Check that a name resolves and its port accepts connections."""
    where = format_address(host, port)
    try:
        with anyio.fail_after(timeout):
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        text = getattr(error, "strerror", None) or "no answer in time"
        fix = "check the spelling, DNS and /etc/hosts on this machine"
        yield Finding("name", "wrong", f"{host} cannot be resolved: {text}", fix, unusable=True)
        return
    addresses = sorted({str(info[4][0]) for info in infos})
    found = f"{host} is {', '.join(addresses)}"
    on_loopback = all(ipaddress.ip_address(address).is_loopback for address in addresses)
    if endpoint.scheme == "tcp" and on_loopback and not is_only_here(endpoint):
        fix = "a server hosted under this name serves only this machine; if nodes run elsewhere, fix /etc/hosts here"
        yield Finding("name", "warning", f"{found}, which is loopback", fix)
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
        yield Finding(
            "port", "ok", f"{format_address(address, port)} accepts connections after {ms(clock.now() - began)}"
        )
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if failures:
        unusable = len(failures) == len(addresses)
        fix = f"is the server running and listening on {where}, and does the firewall let this machine in?"
        yield Finding("port", "wrong" if unusable else "warning", "; ".join(failures), fix, unusable)
    elif endpoint.scheme in ("etcd", "etcds"):
        yield await _etcd(host, port, endpoint, timeout)


async def _etcd(host: str, port: int, endpoint: Endpoint, timeout: float) -> Finding:
    """Ask etcd for its version and health."""

    def ask(path: str) -> dict[str, object]:
        connection = (
            HTTPSConnection(host, port, timeout=timeout, context=_tls(endpoint))
            if endpoint.scheme == "etcds"
            else HTTPConnection(host, port, timeout=timeout)
        )
        with closing(connection):
            connection.request("GET", path)
            return msgspec.json.decode(connection.getresponse().read(65536), type=dict[str, object])

    try:
        with anyio.fail_after(timeout):
            version, health = [
                await anyio.to_thread.run_sync(ask, path, abandon_on_cancel=True) for path in ("/version", "/health")
            ]
        shown = f"etcd {version['etcdserver']}"
    except (OSError, HTTPException, msgspec.DecodeError, LookupError) as error:
        fix = advice(error) if isinstance(error, ssl.SSLError) else "is it etcd, and does it require TLS (etcds://)?"
        return Finding("etcd", "warning", f"{format_address(host, port)} does not report an etcd version", fix)
    if health.get("health") != "true":
        fix = "check its log and etcdctl endpoint health"
        return Finding("etcd", "wrong", f"{shown} reports that it is unhealthy", fix)
    return Finding("etcd", "ok", f"{shown} is healthy")


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=endpoint.options.get("ca"))
    if "cert" in endpoint.options:
        context.load_cert_chain(endpoint.options["cert"], endpoint.options.get("key"))
    return context
