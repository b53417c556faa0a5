"""The findings of ``rdzv doctor``, with advice on errors."""

from __future__ import annotations

import ssl
from typing import Literal

import msgspec

from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Finding", "advice", "ms"]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    Attributes:
        check: What was checked.
        verdict: The result.
        found: The result in words.
        fix: What to do about it.
        unusable: Whether the endpoint cannot be used at all.
    """

    check: str
    verdict: Literal["ok", "warning", "wrong"]
    found: str
    fix: str = ""
    unusable: bool = False

    def __str__(self) -> str:
        found = self.found.replace("\n", "\n" + " " * 22)
        return f"{found}\n{'':21} -> {self.fix}" if self.fix else found


def advice(error: Exception) -> str:
    """Return what to do about a connection error."""
    text = str(error).lower()
    if "secret" in text:
        return "pass the server's secret with --secret-file; pass none if the server has none"
    if "tls" in text or "certificate" in text or isinstance(error.__cause__ or error, ssl.SSLError):
        return "do both sides use TLS, and does --tls-ca name the authority of the server's certificate?"
    if isinstance(error, RendezvousConnectionError):
        return "is an rdzv server of this version listening there, and do both sides agree on TLS?"
    return ""


def ms(seconds: float) -> str:
    """Format seconds as milliseconds."""
    return f"{seconds * 1000:.1f} ms"
