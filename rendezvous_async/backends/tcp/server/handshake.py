"""The server's side of a handshake: picks a version of the protocol and checks the proof of the secret.

It sends nothing and admits nobody: ``take`` returns what to send, or the client that has proved itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import new_nonce, prove, verify
from rendezvous_async.backends.tcp.versions import no_common_version, pick_version

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.server.server import TcpServer

__all__ = ["Handshake", "Proven"]

MAX_REVISION: Final = 2**63 - 1
"""Upper bound on a Hello's revision. A server without a log believes much lower ones only; see ``server``."""


class Proven(msgspec.Struct, frozen=True):
    """A client that may come in, the version to speak with it, and the server's own proof."""

    hello: wire.Hello
    version: int
    proof: bytes = b""


class Handshake:
    """One handshake, from the Hello to the client's proof."""

    __slots__ = ("_challenge", "_hello", "_server")

    def __init__(self, server: TcpServer) -> None:
        self._server = server
        self._hello: tuple[wire.Hello, bytes, int] | None = None
        self._challenge = b""

    def take(self, body: bytes) -> wire.Challenge | wire.Refused | Proven:
        """Take the client's next message.

        Raises:
            FrameError: The message is invalid or out of turn.
        """
        match wire.decode_greeting(body):
            case wire.Hello() as hello if self._hello is None:
                return self._meet(hello, body)
            case wire.Proof(proof) if self._hello is not None:
                return self._check(*self._hello, proof)
            case _:
                raise wire.FrameError("a greeting out of turn")

    def _meet(self, hello: wire.Hello, body: bytes) -> wire.Challenge | wire.Refused | Proven:
        server = self._server
        version = pick_version(hello.versions)
        if version is None:
            server.refusals.warning(
                f"the server at {server.endpoint} has refused a client of another version: "
                + no_common_version(hello.versions[-1:])  # Few distinct texts; see ``LimitedLog``.
            )
            return wire.Refused(wire.REFUSED_VERSION, no_common_version(hello.versions))
        if not 0 < len(hello.client) <= server.limits.client_id or not 0 <= hello.revision <= MAX_REVISION:
            raise wire.FrameError("a hello with a bad name or revision")
        if server.secret is None:
            return Proven(hello, version)
        self._hello = hello, body, version
        challenge = wire.Challenge(new_nonce(), version)
        self._challenge = wire.frame(challenge)[4:]
        return challenge

    def _check(self, hello: wire.Hello, body: bytes, version: int, proof: bytes) -> wire.Refused | Proven:
        assert self._server.secret is not None
        key = self._server.secret.key_for(hello.scope)
        if key is None or not verify(key, "client", body, self._challenge, proof):
            return wire.Refused(wire.REFUSED_SECRET, "the client does not know the server's secret")
        return Proven(hello, version, prove(key, "server", body, self._challenge))
