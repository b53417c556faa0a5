"""The arguments with which a command finds its run: endpoint, run id, secret, TLS; and the backend that they open."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

import msgspec

from rendezvous_async.backends.access import SECRETS, TLS_FILES, access_options
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, seconds
from rendezvous_async.settings import Endpoint, check_id, parse_endpoint

if TYPE_CHECKING:
    from rendezvous_async.backends.base import Backend
    from rendezvous_async.core.diagnosis import Status

__all__ = [
    "add_connection",
    "add_run",
    "backend_of",
    "endpoint_of",
    "known_run",
    "open_run",
    "read_secret",
    "shown",
    "without_secrets",
]

SECRET_FILE = "RDZV_SECRET_FILE"
GRPC_VERBOSITY = "GRPC_VERBOSITY"
_HAS_CONNECTIONS = ("tcp", "etcd", "etcds")


def add_connection(parser: Parser) -> None:
    """Add the endpoint and how to be let in there."""
    parser.add_argument("endpoint", metavar="ENDPOINT", help="for example tcp://head:29400")
    add_keys(parser)


def add_keys(parser: Parser) -> None:
    """Add the files that a connection can be secured with."""
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help=f"holds the shared secret, for etcd user:password (default: ${SECRET_FILE})",
    )
    parser.add_argument("--tls-ca", metavar="FILE", help="certificate authorities to believe")
    parser.add_argument("--tls-cert", metavar="FILE", help="this side's certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, if that is in another file")


def add_run(parser: Parser) -> None:
    """Add all that a look at a run needs."""
    add_connection(parser)
    parser.add_argument("--run-id", metavar="ID", required=True, help="which run")
    add_timeout(parser)


def add_timeout(parser: Parser, default: float = 5.0) -> None:
    """Add how long to try."""
    parser.add_argument(
        "--timeout", type=seconds, default=default, metavar="S", help=f"seconds to wait for a connection ({default:g})"
    )


def read_secret(options: Namespace) -> str | None:
    """Return the secret from the file that was named, if one was."""
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
    """Return the TLS files that were named."""
    return {name: getattr(options, name) for name in TLS_FILES if getattr(options, name) is not None}


def endpoint_of(options: Namespace) -> Endpoint:
    """Return the endpoint, with what the options add to its query: the secret and the TLS files."""
    endpoint = parse_endpoint(options.endpoint)
    if endpoint.scheme == "memory":
        raise Failure(Exit.USAGE, "memory:// lives inside one process; no other one can meet or look there")
    # A secret for other endpoints that happens to be in the environment is no reason not to use this one.
    wanted = options.secret_file is not None or endpoint.scheme in _HAS_CONNECTIONS
    secret = read_secret(options) if wanted else None
    return with_options(endpoint, **access_options(endpoint.scheme, secret=secret, **tls_files(options)))


def shown(options: Namespace) -> str:
    """Return the endpoint without its query, which may hold a secret."""
    return str(parse_endpoint(options.endpoint))


def without_secrets(endpoint: str) -> str:
    """Return an endpoint as it was given, for others to use: without the secrets in its query."""
    place, _, query = endpoint.partition("?")
    kept = [pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]) not in SECRETS]
    return "?".join([place, *filter(None, ["&".join(kept)])])


def with_options(endpoint: Endpoint, **options: Any) -> Endpoint:
    """Return an endpoint with some options set, whatever its query says of them."""
    return msgspec.structs.replace(endpoint, options={**endpoint.options, **options})


async def backend_of(options: Namespace, run_id: str, connect_timeout: float, *, looks: bool = False) -> Backend:
    """Open the backend of a run; the caller closes it.

    Args:
        options: Of the command.
        run_id: Which run.
        connect_timeout: Seconds, unless the endpoint's query says otherwise.
        looks: The command only looks, so it never hosts a server.
    """
    from rendezvous_async.backends import start_backend
    from rendezvous_async.backends.outage import Outage

    endpoint = endpoint_of(options)
    if endpoint.scheme in _HAS_CONNECTIONS:
        endpoint = with_options(endpoint, **{"connect_timeout": str(connect_timeout), **endpoint.options})
    if endpoint.scheme == "tcp" and looks:
        endpoint = with_options(endpoint, is_host="false")
    with _quiet_grpc():
        # What only looks gives up soon, and then says why. The others may wait for long, and say so meanwhile.
        outage = Outage(f"run {run_id!r}", endpoint, logging.DEBUG) if looks else None
        return await start_backend(endpoint, run_id, outage=outage)


@contextmanager
def _quiet_grpc() -> Iterator[None]:
    """Let gRPC, which reads this once, write no lines of its own between ours; workers do not inherit it."""
    if GRPC_VERBOSITY in os.environ:
        yield
        return
    os.environ[GRPC_VERBOSITY] = "NONE"
    try:
        yield
    finally:
        os.environ.pop(GRPC_VERBOSITY, None)


@asynccontextmanager
async def open_run(options: Namespace, run_id: str | None = None, *, existing: bool = False) -> AsyncIterator[Backend]:
    """Open the backend of a run that a command looks at: it never hosts a server, and does not wait for long.

    Args:
        options: Of the command.
        run_id: Which run, if not the one in the options.
        existing: The run must be there already: a directory that has never been used stays as it is.
    """
    import anyio

    run_id = check_id("--run-id", options.run_id if run_id is None else run_id)
    endpoint = endpoint_of(options)
    if endpoint.scheme == "file" and not await anyio.Path(endpoint.path).is_dir():
        raise Failure(Exit.UNREACHABLE, f"there is no directory {endpoint.path}")  # The backend would make one.
    if existing and endpoint.scheme == "file" and not await anyio.Path(endpoint.path, "log").exists():
        raise _unknown_run(run_id, options)
    # The backend keeps to the time itself, and then says what it tried; importing it may take a while, too.
    with anyio.move_on_after(options.timeout + 5) as scope:
        backend = await backend_of(options, run_id, options.timeout, looks=True)
    if scope.cancelled_caught:
        raise Failure(Exit.UNREACHABLE, f"no answer from {shown(options)} within {options.timeout:g} s")
    try:
        yield backend
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()


def known_run(status: Status, options: Namespace) -> Status:
    """Return the status of a run that somebody has joined.

    Raises:
        Failure: Nobody has.
    """
    if status.settings is None and not status.here:
        raise _unknown_run(status.run_id, options)
    return status


def _unknown_run(run_id: str, options: Namespace) -> Failure:
    return Failure(Exit.NOT_FOUND, f"nobody has joined a run {run_id!r} at {shown(options)}")
