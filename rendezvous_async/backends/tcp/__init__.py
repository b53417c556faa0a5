"""``tcp://``: a small server, embedded or standalone, and its client; pure asyncio, no other service needed.

``wire``, ``auth`` and ``versions`` are the protocol, without I/O. ``server/`` holds the table and its connections,
``client/`` the driver and its one connection, ``hosting`` starts a server in a client's process.
"""

from __future__ import annotations

from rendezvous_async.backends.schemes import Scheme
from rendezvous_async.backends.tcp.auth import restrict
from rendezvous_async.backends.tcp.client.driver import TcpDriver
from rendezvous_async.backends.tcp.opening import open_tcp
from rendezvous_async.backends.tcp.options import TcpOptions
from rendezvous_async.backends.tcp.server.limits import Limits
from rendezvous_async.backends.tcp.server.server import TcpServer
from rendezvous_async.backends.tcp.server.serving import serve, start_server

__all__ = ["SCHEME", "Limits", "TcpDriver", "TcpOptions", "TcpServer", "restrict", "serve", "start_server"]

SCHEME = Scheme(TcpOptions, open_tcp)
