"""``tcp://``: a small server, embedded or alone, and its client; pure asyncio, no other service needed.

::

    wire.py        messages and frames (pure)            auth.py        who knows the secret (pure)
    server.py      a table and its connections           link.py        the client's side of one connection
    connection.py  the server's side of one connection   dialing.py     every address in turn, with what became of it
    journal.py     nothing leaves before it is on disk   channel.py     calls that outlive connections
    limits.py      how much a peer gets                  client.py      TcpBackend: calls, sessions, watches
    serving.py     serve(): check, listen, start         hosting.py     who hosts when nobody was told to
    addresses.py   names, addresses, listening           tls.py         TLS contexts from files
    options.py     what may stand in an endpoint's query
"""

from __future__ import annotations

from rendezvous_async.backends.tcp.auth import restrict
from rendezvous_async.backends.tcp.client import TcpBackend
from rendezvous_async.backends.tcp.limits import Limits
from rendezvous_async.backends.tcp.options import open_tcp
from rendezvous_async.backends.tcp.server import TcpServer
from rendezvous_async.backends.tcp.serving import serve, start_server

__all__ = ["Limits", "TcpBackend", "TcpServer", "open_tcp", "restrict", "serve", "start_server"]
