"""The arguments that name a run (endpoint, run id, secret, TLS files), and opening its backend from them."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rendezvous_async.backends.access import TLS_FILES, access_options
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, name, seconds
from rendezvous_async.settings import Endpoint, parse_endpoint

if TYPE_CHECKING:
    from rendezvous_async.backends.base import Backend
    from rendezvous_async.backends.outage import Outage
    from rendezvous_async.core.diagnosis import Status

__all__ = [
    "add_connection",
    "add_run",
    "endpoint_of",
    "known_run",
    "open_run",
    "open_to_join",
    "read_secret",
    "shown",
]

SECRET_FILE = "RDZV_SECRET_FILE"
GRPC_VERBOSITY = "GRPC_VERBOSITY"
_SILENT = "NONE"
_HAS_CONNECTIONS = ("tcp", "etcd", "etcds")


def add_connection(parser: Parser) -> None:
    """Add the endpoint and its credentials."""
    parser.add_argument("endpoint", metavar="ENDPOINT", help="for example tcp://head:29400")
    add_keys(parser)


def add_keys(parser: Parser) -> None:
    """Add the files with the secret and the TLS keys."""
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help=f"file with the shared secret; for etcd, user:password (default: ${SECRET_FILE})",
    )
    parser.add_argument("--tls-ca", metavar="FILE", help="trusted certificate authorities")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this side")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, if in a separate file")


def add_run(parser: Parser) -> None:
    """Add the arguments of a command that inspects or changes a run."""
    add_connection(parser)
    parser.add_argument("--run-id", type=name, metavar="ID", required=True, help="id of the run")
    add_timeout(parser)


def add_timeout(parser: Parser, default: float = 5.0) -> None:
    """Add how long to wait for a connection."""
    parser.add_argument(
        "--timeout", type=seconds, default=default, metavar="S", help=f"seconds to wait for a connection ({default:g})"
    )


def read_secret(options: Namespace) -> str | None:
    """Read the secret file, if one is given."""
    path = options.secret_file or os.environ.get(SECRET_FILE)
    if not path:
        return None
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            secret = file.read().strip()
    except OSError as error:
        raise Failure(Exit.USAGE, f"cannot read the secret file {path!r}: {error.strerror}") from None
    if not secret:
        raise Failure(Exit.USAGE, f"the secret file {path!r} is empty")
    return secret


def tls_files(options: Namespace) -> dict[str, Any]:
    """Return the TLS files that are given."""
    return {file: path for file in TLS_FILES if (path := getattr(options, file)) is not None}


def endpoint_of(options: Namespace) -> Endpoint:
    """Return the endpoint, with the secret and the TLS files from the options."""
    endpoint = parse_endpoint(options.endpoint)
    if endpoint.scheme == "memory":
        raise Failure(Exit.USAGE, "memory:// exists only within one process; use tcp://, etcd:// or file://")
    # A secret file named in the environment may be meant for another endpoint, so this one ignores it.
    wanted = options.secret_file is not None or endpoint.scheme in _HAS_CONNECTIONS
    secret = read_secret(options) if wanted else None
    return _with_options(endpoint, **access_options(endpoint.scheme, secret=secret, **tls_files(options)))


def shown(options: Namespace) -> str:
    """Return the endpoint without its query, which may hold a secret."""
    return str(parse_endpoint(options.endpoint))


def known_run(status: Status, options: Namespace) -> Status:
    """Return the status of a run that at least one node has joined.

    Raises:
        Failure: No node has joined it.
    """
    if status.settings is None and not status.here:
        raise _unknown_run(status.run_id, options)
    return status


def _unknown_run(run_id: str, options: Namespace) -> Failure:
    return Failure(Exit.NOT_FOUND, f"no node has joined a run {run_id!r} at {shown(options)}; check --run-id")


@asynccontextmanager
async def open_run(options: Namespace, run_id: str | None = None, *, existing: bool = False) -> AsyncIterator[Backend]:
    """Open a run's backend to inspect or change the run; never host a server, and wait only ``--timeout``.

    Args:
        options: The command's options.
        run_id: The run, if not the one in the options.
        existing: Require that the run exists, and leave an unused directory untouched.
    """
    import anyio

    from rendezvous_async.backends.outage import Outage

    run_id = options.run_id if run_id is None else run_id
    endpoint = endpoint_of(options)
    if endpoint.scheme == "file":
        if not await anyio.Path(endpoint.path).is_dir():
            raise Failure(Exit.UNREACHABLE, f"no such directory: {endpoint.path}")  # The backend would create it.
        if existing and not await anyio.Path(endpoint.path, "log").exists():
            raise _unknown_run(run_id, options)
    if endpoint.scheme == "tcp":
        endpoint = _with_options(endpoint, is_host="false")
    outage = Outage(f"run {run_id!r}", endpoint, logging.DEBUG)  # The command reports it when it gives up.
    # The backend applies the timeout itself and says what it tried. The margin is for imports.
    with anyio.move_on_after(options.timeout + 5) as scope:
        backend = await _start(endpoint, run_id, options.timeout, outage)
    if scope.cancelled_caught:
        raise Failure(Exit.UNREACHABLE, f"no answer from {shown(options)} within {options.timeout:g} s")
    async with _closing(backend):
        yield backend


@asynccontextmanager
async def open_to_join(options: Namespace, connect_timeout: float) -> AsyncIterator[Backend]:
    """Open a run's backend to join the run; this process may host the server, and logs why it waits."""
    async with _closing(await _start(endpoint_of(options), options.run_id, connect_timeout)) as backend:
        yield backend


async def _start(endpoint: Endpoint, run_id: str, connect_timeout: float, outage: Outage | None = None) -> Backend:
    """Open a backend. gRPC reads its verbosity now and stays silent; workers do not inherit that setting."""
    from rendezvous_async.backends import start_backend

    if endpoint.scheme in _HAS_CONNECTIONS:
        endpoint = _with_options(endpoint, **{"connect_timeout": str(connect_timeout), **endpoint.options})
    chosen = os.environ.setdefault(GRPC_VERBOSITY, _SILENT)
    try:
        return await start_backend(endpoint, run_id, outage=outage)
    finally:
        if chosen is _SILENT:
            os.environ.pop(GRPC_VERBOSITY, None)


@asynccontextmanager
async def _closing(backend: Backend) -> AsyncIterator[Backend]:
    import anyio

    try:
        yield backend
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()


def _with_options(endpoint: Endpoint, **options: Any) -> Endpoint:
    """Return the endpoint with these options, which override its query."""
    return msgspec.structs.replace(endpoint, options={**endpoint.options, **options})
