"""The checks of ``rdzv doctor``, in order of dependency; a failed check skips those that depend on it.

All times are measured on this process's monotonic clock.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator
from statistics import median

import anyio
import anyio.to_thread

from rendezvous_async.admin import read_status
from rendezvous_async.aio import clock
from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.backends.base import Backend, Delete, Put
from rendezvous_async.cli.endpoints import endpoint_of, open_run
from rendezvous_async.cli.exits import Failure
from rendezvous_async.cli.findings import Finding, advice, ms
from rendezvous_async.cli.reach import examine_host
from rendezvous_async.errors import RendezvousError, RendezvousStateError, RendezvousVersionError
from rendezvous_async.node.addresses import address_toward, is_only_here
from rendezvous_async.settings import Endpoint
from rendezvous_async.texts import counted, printable

__all__ = ["examine"]

ROUND_TRIPS = 25
SLOW = 0.05
"""Seconds from which a round trip is worth a warning."""
TTL = 5.0


async def examine(options: Namespace) -> AsyncGenerator[Finding, None]:
    """Check an endpoint; yields findings as they are made."""
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
            yield Finding("connection", "ok", f"opened in {ms(clock.now() - began)}")
            if endpoint.scheme == "tcp":
                yield _secrecy(endpoint)
            async for finding in examine_backend(backend, options.timeout):
                yield finding
            if options.run_id is not None:
                yield await _run(backend, options.timeout)
    except TimeoutError:
        yield Finding("latency", "wrong", "the server answers too slowly", "is the server or the network overloaded?")
    except (RendezvousError, Failure, ImportError) as error:
        yield Finding("connection", "wrong", str(error), advice(error), unusable=True)


async def examine_backend(backend: Backend, timeout: float) -> AsyncIterator[Finding]:
    """Check latency, permissions and pushes."""
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
        f"{ROUND_TRIPS} round trips: median {ms(median(times))}, worst {ms(max(times))}",
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
        yield Finding("pushes", "wrong", f"no push within {timeout:g} s", "is a proxy buffering the traffic?")
        return
    except (RendezvousError, ValueError) as error:
        fix = "is this secret or user restricted to other runs? see --run-id"
        yield Finding("permissions", "wrong", f"run {backend.run_id!r} cannot be written: {error}", fix)
        return
    yield Finding("permissions", "ok", f"read, write, session (TTL {session.ttl:g} s), keep-alive and delete work")
    yield Finding(
        "pushes",
        "ok",
        f"a write takes {ms(committed - began)}; a watcher receives it {ms(pushed - began)} after it was sent",
    )


async def _run(backend: Backend, timeout: float) -> Finding:
    """Check which of a run's nodes its worlds can use."""
    try:
        with answer_within(timeout, f"read the status of run {backend.run_id!r}"):
            status = await read_status(backend)
    except RendezvousStateError as error:
        fix = "" if isinstance(error, RendezvousVersionError) else "rdzv close --purge removes the run"
        return Finding("run", "wrong", str(error), fix)
    if status.spec is None or status.fit is None or status.closed is not None:
        return Finding("run", "ok", status.why()[0])
    scaled = f" (scaled {counted(status.spec.generation, 'time')})" if status.spec.generation else ""
    found = f"sizes {status.spec}{scaled}; {status.fit}"
    if status.unlabelled:
        return Finding("run", "warning", found, f"start every node with the label {printable(status.fit.shape.domain)}")
    return Finding("run", "ok" if status.fit.usable else "warning", found)


async def _this_host(endpoint: Endpoint, timeout: float) -> Finding:
    """Check whether other nodes can use the address that nodes on this machine advertise."""
    name = socket.gethostname()
    with anyio.move_on_after(timeout):
        address = await anyio.to_thread.run_sync(address_toward, endpoint, abandon_on_cancel=True)
        found = f"{name}; rdzv launch advertises it to the other nodes as {address}"
        if ipaddress.ip_address(address).is_loopback and not is_only_here(endpoint):
            fix = "give nodes on this machine an address that others can reach (address=, rdzv launch --address)"
            return Finding("this host", "warning", f"{found}, which only this machine can reach", fix)
        return Finding("this host", "ok", found)
    fix = "check DNS and /etc/hosts on this machine"
    return Finding("this host", "warning", f"the lookup of its own name {name!r} took over {timeout:g} s", fix)


def _secrecy(endpoint: Endpoint) -> Finding:
    secret, tls = "secret" in endpoint.options, any(name.startswith("tls") for name in endpoint.options)
    if secret or tls:
        used = " and ".join(word for word, used in (("a secret", secret), ("TLS", tls)) if used)
        return Finding("security", "ok", f"the server accepts {used}")
    if is_only_here(endpoint):
        return Finding("security", "ok", "neither secret nor TLS, on loopback")
    return Finding(
        "security",
        "warning",
        "neither secret nor TLS: any host that reaches the port has full access",
        "serve with a secret (rdzv serve --secret-file)",
    )


def _directory(path: str) -> Finding:
    if not os.path.isdir(path):
        return Finding("directory", "wrong", f"{path} is not a directory", "create it on the shared file system", True)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Finding("directory", "wrong", f"{path} is not writable by this user", "check its permissions", True)
    return Finding("directory", "ok", f"{path} is writable")
