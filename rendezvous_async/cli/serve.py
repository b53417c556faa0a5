"""Serve tcp:// for any number of runs, until SIGTERM or SIGINT.

When it serves, it prints one line on stdout that scripts can wait for: "ready tcp://host:port", followed by the address
of the status page if there is one.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from rendezvous_async.cli.endpoints import add_keys, read_secret, tls_files
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, port
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.settings import DEFAULT_PORTS, format_address

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp import TcpServer

EXAMPLE = """  rdzv serve
  rdzv serve --host 0.0.0.0 --secret-file secret.txt --data-dir /var/lib/rdzv --http 8080"""


def configure(parser: Parser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address or name to serve on (127.0.0.1)")
    parser.add_argument(
        "--port", type=port, default=DEFAULT_PORTS["tcp"], help=f"0 is any free one ({DEFAULT_PORTS['tcp']})"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="keep everything here, so that a restart goes on")
    add_keys(parser)
    parser.add_argument("--insecure", action="store_true", help="serve other machines with neither secret nor TLS")
    parser.add_argument("--http", type=port, metavar="PORT", help="status page, /api/status, /metrics and /health")
    parser.add_argument("--http-host", default="127.0.0.1", metavar="HOST", help="where that listens (127.0.0.1)")


def run(options: Namespace) -> int:
    import logging

    import anyio

    from rendezvous_async.backends.log import LogInUseError
    from rendezvous_async.backends.tcp import server

    def is_news(record: logging.LogRecord) -> bool:
        """Whether a log line says more than the command itself says when it ends."""
        return record.levelno < logging.ERROR

    server.logger.addFilter(is_news)
    try:
        return anyio.run(_serve, options)
    except LogInUseError as error:
        raise Failure(Exit.UNREACHABLE, str(error)) from None
    finally:
        server.logger.removeFilter(is_news)


async def _serve(options: Namespace) -> int:
    import signal

    import anyio

    from rendezvous_async.backends.tcp import serve
    from rendezvous_async.backends.tcp.process import dedicate_process

    dedicate_process()
    terminal = Terminal(quiet=options.quiet)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            serve(
                options.host,
                options.port,
                data_dir=options.data_dir,
                secret=read_secret(options),
                insecure=options.insecure,
                **tls_files(options),
            ) as server,
            pages_of(server, options) as address,
            anyio.create_task_group() as group,
        ):

            async def watch_disk() -> None:
                await server.failed.wait()
                raise Failure(Exit.FAILED, f"the server at {server.endpoint} stops: {server.failure}")

            group.start_soon(watch_disk)
            terminal.print(" ".join(["ready", server.endpoint, *address]))
            async for number in signals:
                terminal.say(f"stopping on {number.name}")
                break
            group.cancel_scope.cancel()
    return Exit.OK


@asynccontextmanager
async def pages_of(server: TcpServer, options: Namespace) -> AsyncIterator[list[str]]:
    """Serve the status page for as long as the block runs, if it is asked for; gives its address."""
    if options.http is None:
        yield []
        return
    import anyio

    from rendezvous_async.backends.tcp.addresses import listen_on, resolve
    from rendezvous_async.backends.tcp.tls import Tls
    from rendezvous_async.cli.http import Site
    from rendezvous_async.cli.overview import Overview
    from rendezvous_async.cli.status_pages import status_pages

    where = format_address(options.http_host, options.http)
    files = tls_files(options)
    tls = Tls.make(**{name.removeprefix("tls_"): file for name, file in files.items()}).server
    try:
        addresses = await resolve(options.http_host, options.http)
        if tls is None and not options.insecure and not all(address.is_loopback for address in addresses):
            raise Failure(
                Exit.USAGE,
                f"the status page at {where} could be reached by other machines, and without TLS its secret could be "
                "read on the way: set --tls-cert and --tls-key, or say --insecure if the network is trusted",
            )
        sockets = listen_on(addresses)
    except OSError as error:
        why = str(error.strerror).removeprefix(f"{where}: ")
        raise Failure(Exit.UNREACHABLE, f"cannot serve the status page on {where}: {why}") from None
    overview = Overview(server)
    site = Site(status_pages(overview), read_secret(options), [options.http_host])
    try:
        site.start(sockets, tls)
        shown = format_address(options.http_host, sockets[0].getsockname()[1])
        yield [f"{'http' if tls is None else 'https'}://{shown}/"]
    finally:
        with anyio.CancelScope(shield=True):
            await site.aclose()
        overview.close()
