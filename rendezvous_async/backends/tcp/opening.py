"""Opens ``tcp://``: a client, with a host if no server runs there yet."""

from __future__ import annotations

import anyio

from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.tcp.auth import Secret
from rendezvous_async.backends.tcp.client.channel import Channel
from rendezvous_async.backends.tcp.client.dialing import Dialer
from rendezvous_async.backends.tcp.client.driver import TcpDriver
from rendezvous_async.backends.tcp.hosting import Host
from rendezvous_async.backends.tcp.options import TcpOptions
from rendezvous_async.backends.tcp.server.limits import Limits
from rendezvous_async.backends.tcp.tls import Tls
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import Endpoint

__all__ = ["open_tcp"]


async def open_tcp(endpoint: Endpoint, options: TcpOptions, outage: Outage) -> TcpDriver:
    """Open ``tcp://host:port``.

    Raises:
        RendezvousConnectionError: There was no connection within ``connect_timeout``, or the server refused this
            client; the error lists every attempt.
    """
    secret = None if options.secret is None else Secret.parse(options.secret)
    tls = Tls.make(options.tls, ca=options.tls_ca, cert=options.tls_cert, key=options.tls_key)
    (host_name, port), *_ = endpoint.hosts
    dialer = Dialer(host_name, port, tls.client)
    host = None if options.is_host == "false" else Host(dialer, options, tls, secret, outage.fields)
    channel = Channel(
        dialer,
        secret=secret,
        rng=options.rng,
        prepare=None if host is None else host.prepare,
        stall_timeout=options.stall_timeout,
        outage=outage,
    )
    # What a host would refuse, its own process must not send either.
    limits = options.limits or Limits()
    driver = TcpDriver(channel, host=host, max_writes=limits.writes)
    channel.start()
    try:
        with anyio.move_on_after(options.connect_timeout):
            await channel.connected()
            return driver
        raise RendezvousConnectionError(
            f"no connection to the server at tcp://{dialer} within {options.connect_timeout:g} s; "
            "is it running, and is the address right?",
            driver.attempts,
        )
    except BaseException:
        with anyio.CancelScope(shield=True):
            await driver.aclose()
        raise
