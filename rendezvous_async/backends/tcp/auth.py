"""Mutual authentication with a shared secret: a challenge and two proofs. Pure: no sockets, no clock.

The secret never crosses the wire. The client sends a Hello with a nonce, the server answers with a challenge that has
another, the client proves that it knows the secret, and then the server does. A proof is an HMAC-SHA256 over the role
of the prover and the exact bytes of the Hello and the challenge. So it is valid for one handshake only: a replay meets
a different nonce, and a reflected proof has the wrong role. The Hello lists the protocol versions that the client
offers, and the challenge names the one that the server picks, so a downgrade by an attacker in the middle is detected.
Without a secret nothing is authenticated, including the version: use TLS.

A secret can be **restricted** to runs whose id starts with a prefix: ``restrict("master", "team-a-")`` returns another
secret, which a server that knows the master accepts for those runs only. It is derived, so the server needs no list.

Traffic is not encrypted: use TLS against attackers who can read or change it. Use a long random secret
(``secrets.token_urlsafe(32)``): a weak one can be guessed offline from a recorded handshake.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from rendezvous_async.backends.names import DEFAULT_NAMESPACE
from rendezvous_async.backends.options import encoded_secret
from rendezvous_async.backends.system import system
from rendezvous_async.settings import check_id

__all__ = ["Secret", "new_nonce", "prove", "restrict", "verify"]

Role = Literal["client", "server"]
NONCE_BYTES = 32
_CONTEXT = b"rendezvous_async tcp "
_RESTRICTED = "rdzv-run:"


class Secret(msgspec.Struct, frozen=True):
    """A parsed secret.

    Attributes:
        key: The HMAC key of the proofs.
        scope: The prefix of every key that its holder may access; empty if the secret is not restricted.
    """

    key: bytes
    scope: str = ""

    def __repr__(self) -> str:
        return f"<Secret{f' for {self.scope}*' if self.scope else ''}>"

    @classmethod
    def parse(cls, secret: str | bytes | Secret) -> Secret:
        """Parse a user's secret, which may be the result of ``restrict``."""
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
        try:
            return cls(_digest(b"", b"secret", encoded_secret(text)))
        except UnicodeEncodeError:
            raise ValueError("a secret must be a string that UTF-8 can encode") from None

    def key_for(self, scope: str) -> bytes | None:
        """Return the key of a client with this scope; None if it cannot be derived from this secret."""
        if scope == self.scope:
            return self.key
        return None if self.scope else _digest(self.key, b"scope", scope.encode())


def restrict(secret: str | bytes, run_prefix: str, *, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Return a secret that a server with ``secret`` accepts only for runs whose id starts with ``run_prefix``."""
    master = Secret.parse(secret)
    if master.scope:
        raise ValueError("this secret is restricted already")
    check_id("run_prefix", run_prefix)
    scope = f"{namespace.strip('/')}/{quote(run_prefix, safe='')}"
    key = master.key_for(scope)
    assert key is not None
    return f"{_RESTRICTED}{quote(scope, safe='')}:{key.hex()}"


def new_nonce() -> bytes:
    """Return fresh random bytes."""
    return system().random_bytes(NONCE_BYTES)


def prove(key: bytes, role: Role, hello: bytes, challenge: bytes) -> bytes:
    """Return the proof that ``role`` knows ``key``, valid only for the handshake with these two frame bodies."""
    return _digest(key, role.encode(), hello, challenge)


def verify(key: bytes, role: Role, hello: bytes, challenge: bytes, proof: bytes) -> bool:
    """Tell in constant time whether ``proof`` is valid."""
    return hmac.compare_digest(prove(key, role, hello, challenge), proof)


def _digest(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """Return an HMAC over a purpose and parts, each with its length, so that no bytes can shift between them."""
    message = _CONTEXT + b"".join(
        len(part).to_bytes(8, "big") + hashlib.sha256(part).digest() for part in (purpose, *parts)
    )
    return hmac.digest(key, message, "sha256")
