"""TLS contexts from files, or as the user made them.

``tls_cert`` and ``tls_key`` are what this side shows, ``tls_ca`` is whom it believes. A server with ``tls_ca`` demands
a certificate of every client (mutual TLS). A host is both: it serves with its certificate and calls itself as a client.
"""

from __future__ import annotations

import os
import ssl

import msgspec

__all__ = ["Tls"]


class Tls(msgspec.Struct, frozen=True):
    """How to encrypt.

    Attributes:
        client: What connections out use; None means no TLS.
        server: What is served with; None means no TLS.
        can_serve: Whether a host of this endpoint can be what its clients expect.
    """

    client: ssl.SSLContext | None = None
    server: ssl.SSLContext | None = None

    @property
    def can_serve(self) -> bool:
        return (self.client is None) == (self.server is None)

    def __repr__(self) -> str:
        return f"<Tls client={self.client is not None} server={self.server is not None}>"

    @classmethod
    def make(
        cls,
        tls: ssl.SSLContext | bool | None = None,
        *,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> Tls:
        """Return what the options ask for.

        Args:
            tls: A context; True for TLS with the system's certificate authorities; None or False for none, unless
                one of the files is given.
            ca: Of the authorities that the other side's certificate must come from.
            cert: This side's certificate chain.
            key: Its private key, if that is not in the same file.
        """
        given = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
        files = [name for name, value in given.items() if value is not None]
        if isinstance(tls, ssl.SSLContext):
            if files:
                raise ValueError(f"give tls as a context or by files, not both: {', '.join(files)}")
            serves = tls.protocol == ssl.PROTOCOL_TLS_SERVER
            return cls(None, tls) if serves else cls(tls, None)
        if tls is False and files:
            raise ValueError(f"tls=false, but {', '.join(files)} is given")
        if not tls and not files:
            return cls()
        if key is not None and cert is None:
            raise ValueError("tls_key needs tls_cert")
        try:
            client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
            server = None
            if cert is not None:
                client.load_cert_chain(cert, key)
                server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
                server.load_cert_chain(cert, key)
                if ca is not None:
                    server.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(f"{name}={given[name]}" for name in files)
            raise ValueError(f"cannot use the TLS files ({named}): {error}") from error
        return cls(client, server)
