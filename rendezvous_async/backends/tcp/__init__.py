"""``tcp://``: a small server, embedded or alone, and its client; pure asyncio, no other service needed.

::

    wire.py        messages and frames (pure)            auth.py        who knows the secret (pure)
    server.py      a table and its connections           link.py        the client's side of one connection
    connection.py  the server's side of one connection   dialing.py     every address in turn, and what became of it
    requests.py    what is asked, what is answered       channel.py     calls that outlive connections
    journal.py     nothing leaves before it is on disk   client.py      TcpBackend: calls, sessions, watches
    limits.py      how much a peer gets                  hosting.py     who hosts when nobody was told to
    serving.py     serve(): check, listen, start         options.py     open_tcp(), and what its endpoint may say
    addresses.py   names, addresses, listening           tls.py         TLS contexts from files
"""

from __future__ import annotations

from rendezvous_async.backends.tcp.auth import restrict
from rendezvous_async.backends.tcp.client import TcpBackend
from rendezvous_async.backends.tcp.limits import Limits
from rendezvous_async.backends.tcp.options import open_tcp
from rendezvous_async.backends.tcp.server import TcpServer
from rendezvous_async.backends.tcp.serving import serve, start_server

__all__ = ["Limits", "TcpBackend", "TcpServer", "open_tcp", "restrict", "serve", "start_server"]
