"""TLS contexts from files or from the user.

``tls_cert`` and ``tls_key`` identify this side; ``tls_ca`` has the authorities it trusts. A server with ``tls_ca``
demands a certificate from every client (mutual TLS). A host is both server and client: it connects to itself.
"""

from __future__ import annotations

import os
import ssl

import msgspec

__all__ = ["Tls"]


class Tls(msgspec.Struct, frozen=True):
    """The TLS contexts of a process.

    Attributes:
        client: The context for outgoing connections; None means no TLS.
        server: The context for serving; None means no TLS.
        can_serve: Whether a server of this process could accept its own client.
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
        """Return the contexts for a user's options.

        Args:
            tls: A context; True for TLS with the system's certificate authorities; None or False for no TLS, unless
                a file is given.
            ca: The file of trusted authorities.
            cert: The file of this side's certificate chain.
            key: The file of its private key, if that is a separate one.
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
