"""The gRPC channel to one member of a cluster: its options, and TLS."""

from __future__ import annotations

from typing import Any

import grpc
from aetcd import rpc

from rendezvous_async.backends.etcd.bridge import TlsFiles
from rendezvous_async.backends.etcd.exits import note_channel

__all__ = ["open_channel"]

CHANNEL_OPTIONS = (
    # Pings detect a dead connection under a stream; etcd disconnects clients that ping more often or without a stream.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Ignore the http_proxy of the environment.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Drivers do not share connections: breaking one must not affect another.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(target: str, tls: TlsFiles | None) -> Any:
    """Return a channel to a gRPC target."""
    if tls is None:
        channel = rpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.cert
        )
        channel = rpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)
    note_channel(channel)
    return channel
