"""Who knows the secret: a challenge and two proofs. Pure: no sockets, no clock.

The secret never crosses the wire. The client says hello with a nonce, the server challenges it with another, the
client proves that it knows the secret, and then the server proves it too. A proof is an HMAC-SHA256 over the role of
who proves and over the very bytes of the hello and of the challenge. So it is good for this one handshake only: a
replay meets another nonce, a reflected proof has the wrong role, and whoever changes the version or anything else that
was said in the greeting changes what is proved.

A secret can be **restricted** to runs whose id starts with some text: ``restrict("master", "team-a-")`` gives another
secret, which a server that knows the master also accepts, for those runs alone. It is derived, not stored: the server
needs no list of them.

What this does not do: it does not encrypt. Who can read or change the traffic needs TLS to be kept out. Take a long
random secret (``secrets.token_urlsafe(32)``): one that can be guessed can be guessed from a recorded handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from rendezvous_async.backends.base import DEFAULT_NAMESPACE

__all__ = ["Secret", "new_nonce", "prove", "restrict", "verify"]

Role = Literal["client", "server"]
NONCE_BYTES = 32
_CONTEXT = b"rendezvous_async tcp "
_RESTRICTED = "rdzv-run:"


class Secret(msgspec.Struct, frozen=True):
    """A secret, taken apart.

    Attributes:
        key: What the proofs are made with.
        scope: The start of every key that its holder may touch; empty if it is not restricted.
    """

    key: bytes
    scope: str = ""

    def __repr__(self) -> str:
        return f"<Secret{f' for {self.scope}*' if self.scope else ''}>"

    @classmethod
    def parse(cls, secret: str | bytes | Secret) -> Secret:
        """Return the secret that a user gave, which may be the result of ``restrict``."""
        if isinstance(secret, Secret):
            return secret
        text = secret.decode("utf-8", "surrogateescape") if isinstance(secret, bytes) else secret
        if not text:
            raise ValueError("a secret must not be empty")
        if text.startswith(_RESTRICTED):
            scope, colon, key = text.removeprefix(_RESTRICTED).partition(":")
            try:
                if not (scope and colon):
                    raise ValueError
                return cls(bytes.fromhex(key), unquote(scope))
            except ValueError:
                raise ValueError("this secret starts as restrict() makes them, but is damaged") from None
        return cls(_digest(b"", b"secret", text.encode("utf-8", "surrogateescape")))

    def key_for(self, scope: str) -> bytes | None:
        """Return the key that a client with this scope has, or None if this secret does not tell."""
        if scope == self.scope:
            return self.key
        return None if self.scope else _digest(self.key, b"scope", scope.encode())


def restrict(secret: str | bytes, run_prefix: str, *, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Return a secret that opens only runs whose id starts with ``run_prefix``, to a server that knows ``secret``."""
    master = Secret.parse(secret)
    if master.scope:
        raise ValueError("this secret is restricted already")
    if not run_prefix:
        raise ValueError("run_prefix must not be empty")
    scope = f"{namespace.strip('/')}/{quote(run_prefix, safe='')}"
    key = master.key_for(scope)
    assert key is not None
    return f"{_RESTRICTED}{quote(scope, safe='')}:{key.hex()}"


def new_nonce() -> bytes:
    """Return bytes that nobody has seen before."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(key: bytes, role: Role, hello: bytes, challenge: bytes) -> bytes:
    """Return the proof that ``role`` knows ``key``, good for the handshake with these two bodies of frames only."""
    return _digest(key, role.encode(), hello, challenge)


def verify(key: bytes, role: Role, hello: bytes, challenge: bytes, proof: bytes) -> bool:
    """Tell whether ``proof`` is what ``prove`` returns, in a time that does not tell how much of it is right."""
    return hmac.compare_digest(prove(key, role, hello, challenge), proof)


def _digest(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """HMAC over a purpose and parts; each with its length, so that nothing can be moved from one into another."""
    message = _CONTEXT + b"".join(
        len(part).to_bytes(8, "big") + hashlib.sha256(part).digest() for part in (purpose, *parts)
    )
    return hmac.digest(key, message, "sha256")
