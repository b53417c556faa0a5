"""An authority of its own and a certificate for loopback, as files."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

__all__ = ["mutual_context", "write_certificates"]


def write_certificates(folder: Path) -> tuple[str, str, str]:
    """Write the authority, a certificate and its key, and return the three paths."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    issued.private_key_pem.write_to_path(key)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    return ca, cert, key


def mutual_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return the context of a client that shows a certificate."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(cert, key)
    return context
