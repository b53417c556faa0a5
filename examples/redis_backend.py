"""A backend of your own in three methods: this one keeps the whole rendezvous in one key of Redis (or Valkey)."""

import secrets
import socket
import sys
from typing import Any

from rendezvous_async.sync import DynamicRendezvousHandler, RendezvousBackend

SWAP = """local held = redis.call('GET', KEYS[1]) or ''
if held:sub(1, 16) ~= ARGV[1] then return held end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]"""


class RedisBackend(RendezvousBackend):
    name = "redis"

    def __init__(self, host: str, port: int, key: str) -> None:
        self.address, self.key = (host, port), key.encode()

    def get_state(self) -> tuple[bytes, Any] | None:
        held = self.call(b"GET", self.key)
        return (held[16:], held[:16]) if held else None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        new = secrets.token_bytes(16) + state  # a token that never comes again, and the state
        held = self.call(b"EVAL", SWAP.encode(), b"1", self.key, token or b"", new)
        return (held[16:], held[:16], held == new) if held else None

    def call(self, *words: bytes) -> bytes | None:  # with redis-py: redis.Redis(host, port).execute_command
        with socket.create_connection(self.address, timeout=2) as connection, connection.makefile("rwb") as stream:
            stream.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
            stream.flush()
            kind = stream.readline()
            if not kind.startswith(b"$"):
                raise ConnectionError(f"Redis said {kind!r}")
            return None if kind == b"$-1\r\n" else stream.read(int(kind[1:]))


def node(host: str, port: int) -> None:
    backend = RedisBackend(host, port, "rendezvous/job-7")
    handler = DynamicRendezvousHandler.from_backend("job-7", None, backend, min_nodes=2, max_nodes=2)
    info = handler.next_rendezvous()
    info.store.barrier()  # shutdown() closes the run for all: first let all nodes get in
    print(f"rank {info.rank} of {info.world_size}")
    handler.shutdown()


if __name__ == "__main__":
    node(sys.argv[1], int(sys.argv[2]))
