"""The options of ``etcd://`` and ``etcds://``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rendezvous_async.backends.options import BackendOptions, FilePath, Seconds, SecretText, Text, encoded_secret
from rendezvous_async.settings import Endpoint

__all__ = ["EtcdOptions"]


class EtcdOptions(BackendOptions, frozen=True, kw_only=True):
    """The options of ``etcd://`` and ``etcds://``.

    Attributes:
        user: The user to log in as, with ``password``; the auth token is renewed automatically.
        call_timeout: Seconds for one attempt at a call; after 0.15 of it the next member is also asked.
        connect_timeout: Seconds for all attempts at a call, and for opening the backend.
        ca: For ``etcds://``: a file with the trusted authorities.
        cert: For ``etcds://``: a file with the client certificate.
        key: A file with its key.
    """

    instead: ClassVar[Mapping[str, str]] = {"secret": "user= and password="}

    user: Text | None = None
    password: SecretText | None = None
    call_timeout: Seconds = 2.0
    connect_timeout: Seconds = 10.0
    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None

    def validate(self, endpoint: Endpoint) -> None:
        where = f"{endpoint.scheme}://"
        if (self.user is None) != (self.password is None):
            raise ValueError(f"{where} needs both user and password, or neither")
        try:
            encoded_secret(self.password or "").decode()
        except UnicodeDecodeError:
            raise ValueError("password must be a string that UTF-8 can encode, or bytes in UTF-8") from None
        files = [name for name in ("ca", "cert", "key") if getattr(self, name) is not None]
        if files and endpoint.scheme != "etcds":
            raise ValueError(f"{', '.join(files)}: certificates are for etcds://, not for {where}")
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs both cert and key")
