"""Serve tcp:// for any number of runs, until SIGTERM or SIGINT.

Once the server is ready, it prints one line on stdout that scripts can wait for: "ready tcp://host:port", followed by
the URL of the status page if there is one.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from contextlib import AsyncExitStack

from rendezvous_async.cli.endpoints import add_keys, read_secret, tls_files
from rendezvous_async.cli.exits import Exit, Failure
from rendezvous_async.cli.parsing import Parser, port
from rendezvous_async.cli.terminal import Terminal
from rendezvous_async.settings import DEFAULT_PORTS, parse_endpoint

HOST, PORT = "127.0.0.1", DEFAULT_PORTS["tcp"]
EXAMPLE = """  rdzv serve
  rdzv serve 0.0.0.0:29400 --secret-file secret.txt --data-dir /var/lib/rdzv --http 8080"""


def configure(parser: Parser) -> None:
    parser.add_argument("address", nargs="?", type=address, metavar="HOST[:PORT]", help="short for --host and --port")
    parser.add_argument("--host", help=f"address or name to listen on ({HOST})")
    parser.add_argument("--port", type=port, help=f"port to listen on; 0 picks a free one ({PORT})")
    parser.add_argument("--data-dir", metavar="DIR", help="keep all state here, so that it survives a restart")
    add_keys(parser)
    parser.add_argument("--insecure", action="store_true", help="serve other machines without secret or TLS")
    parser.add_argument(
        "--http", type=port, metavar="PORT", help="serve the status page, /api/status, /metrics and /health here"
    )
    parser.add_argument("--http-host", default="127.0.0.1", metavar="HOST", help="where --http listens (127.0.0.1)")


def address(text: str) -> tuple[str, int]:
    """Parse HOST[:PORT], with or without ``tcp://``."""
    try:
        (place,) = parse_endpoint(f"tcp://{text.removeprefix('tcp://')}").hosts
    except ValueError:
        place = ("", 0)
    if not place[0].strip("0123456789"):
        raise ArgumentTypeError(f"{text!r} is not HOST[:PORT], for example 0.0.0.0:{PORT}")
    return place


def run(options: Namespace) -> int:
    import logging

    import anyio

    from rendezvous_async.backends.table.log import LogInUseError
    from rendezvous_async.backends.tcp.server import server

    def is_news(record: logging.LogRecord) -> bool:
        """Drop errors from the log: the command reports them itself when it ends."""
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
    from rendezvous_async.backends.tcp.server.process import dedicate_process

    if options.address is not None and (options.host is not None or options.port is not None):
        raise Failure(Exit.USAGE, "give either HOST:PORT or --host and --port, not both; see rdzv serve --help")
    host, number = options.address or (options.host or HOST, PORT if options.port is None else options.port)
    secret, files = read_secret(options), tls_files(options)
    dedicate_process()
    terminal = Terminal(quiet=options.quiet)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            serve(host, number, data_dir=options.data_dir, secret=secret, insecure=options.insecure, **files) as server,
            AsyncExitStack() as stack,
            anyio.create_task_group() as group,
        ):
            ready = ["ready", server.endpoint]
            if options.http is not None:
                from rendezvous_async.page.pages import serve_pages

                pages = serve_pages(
                    server, options.http_host, options.http, secret=secret, insecure=options.insecure, **files
                )
                ready.append(await stack.enter_async_context(pages))

            async def watch_disk() -> None:
                await server.failed.wait()
                raise Failure(Exit.FAILED, f"the server at {server.endpoint} stops: {server.failure}")

            group.start_soon(watch_disk)
            terminal.print(" ".join(ready))
            async for received in signals:
                terminal.say(f"stopping on {received.name}")
                break
            group.cancel_scope.cancel()
    return Exit.OK
