"""Classifies gRPC errors: the one place where they are mapped to this library's errors.

etcd's errors differ by gRPC code and by text; the texts are part of its client API and stable.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from enum import Enum, auto
from typing import TypeVar

from aetcd import rpc
from anyio.lowlevel import checkpoint_if_cancelled
from grpc.aio import UsageError

from rendezvous_async.errors import RendezvousConnectionError

__all__ = [
    "ConnectionTornError",
    "EtcdFault",
    "EtcdRefusedError",
    "answer_of",
    "describe",
    "is_final",
    "is_silence",
    "judge",
]

T = TypeVar("T")

_ELSEWHERE = frozenset(
    {
        rpc.StatusCode.UNAVAILABLE,
        rpc.StatusCode.DEADLINE_EXCEEDED,
        rpc.StatusCode.INTERNAL,
        rpc.StatusCode.UNKNOWN,
        rpc.StatusCode.ABORTED,
        rpc.StatusCode.CANCELLED,
    }
)
_FINAL = frozenset(
    {
        rpc.StatusCode.UNAUTHENTICATED,
        rpc.StatusCode.PERMISSION_DENIED,
        rpc.StatusCode.INVALID_ARGUMENT,
        rpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Retrying is useless after one of these: a wrong password, no permission, not an etcd at all."""
_NOT_TRUSTED = (
    "the server rejected or requires a client certificate: give a valid cert and key from an authority that it trusts"
)
_HOPELESS = {
    "certificate_verify_failed": "the server's certificate is not signed by the given ca",
    "hostname verification check failed": "the server's certificate is for another name",
    "alert_bad_certificate": "the server requires a client certificate that it trusts: give cert and key",
    "alert_certificate_required": "the server requires a client certificate: give cert and key",
    "alert_unknown_ca": _NOT_TRUSTED,
    "alert_certificate_(expired|revoked|unknown)": _NOT_TRUSTED,
    # In TLS 1.3 the certificate is rejected after the client's handshake, and gRPC does not show the alert.
    "failed to connect to all addresses.*unwrap failed": _NOT_TRUSTED,
    "http1.x server": "the server speaks HTTP/1 only: it is not etcd, or it is version 2",
}
_HINTS = _HOPELESS | {
    "handshake read failed": "the server aborted the TLS handshake; if it does not use TLS, use etcd://",
    "failed to connect to all addresses.*socket closed": "the server closed the connection; if it uses TLS, use etcds://",
}


class EtcdFault(Enum):
    """The kinds of errors, by what to do about them."""

    ELSEWHERE = auto()
    """No usable answer: retry, on another member first; a write may have happened."""
    HOPELESS = auto()
    """This member cannot be used; another might."""
    RENEW = auto()
    """The auth token is no longer valid: get a new one and retry."""
    LEASE_GONE = auto()
    """A lease named in the request does not exist."""
    LEASE_EXISTS = auto()
    """A lease with this id already exists."""
    REVISION = auto()
    """The requested revision is compacted, or this member has not reached it."""
    TOO_LARGE = auto()
    """The request exceeds a limit of the server."""
    REFUSED = auto()
    """The server refused the request; retrying is useless."""


class EtcdRefusedError(RendezvousConnectionError):
    """etcd refused a request; ``fault`` says why."""

    def __init__(self, message: str, fault: EtcdFault, *, final: bool = False) -> None:
        self.fault = fault
        super().__init__(message, final=final)


class ConnectionTornError(Exception):
    """A call ended because its channel was closed under it."""


def judge(error: Exception, *, has_user: bool) -> EtcdFault:
    """Classify the error of a call."""
    if not isinstance(error, rpc.AioRpcError):
        return EtcdFault.ELSEWHERE
    code, text = error.code(), _details(error).lower()
    if code in _ELSEWHERE:
        return EtcdFault.HOPELESS if any(re.search(sign, text) for sign in _HOPELESS) else EtcdFault.ELSEWHERE
    if code is rpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in text:
        return EtcdFault.RENEW if has_user else EtcdFault.REFUSED
    if "user name is empty" in text and has_user:
        return EtcdFault.RENEW
    if "lease not found" in text:
        return EtcdFault.LEASE_GONE
    if "lease already exists" in text:
        return EtcdFault.LEASE_EXISTS
    if code is rpc.StatusCode.OUT_OF_RANGE:
        return EtcdFault.REVISION
    if "request is too large" in text or "too many operations" in text or "larger than max" in text:
        return EtcdFault.TOO_LARGE
    if "too many requests" in text:
        return EtcdFault.ELSEWHERE
    return EtcdFault.REFUSED


def is_final(error: Exception, fault: EtcdFault) -> bool:
    """Return whether retrying later is useless too."""
    return fault is EtcdFault.REFUSED and isinstance(error, rpc.AioRpcError) and error.code() in _FINAL


def is_silence(error: Exception) -> bool:
    """Return whether a member took the call and did not answer in time."""
    return isinstance(error, rpc.AioRpcError) and error.code() is rpc.StatusCode.DEADLINE_EXCEEDED


def describe(error: Exception) -> str:
    """Return a one-line description of the error of a call."""
    if not isinstance(error, rpc.AioRpcError):
        return str(error) or type(error).__name__
    text = _details(error)
    lowered = text.lower()
    for sign, meaning in _HINTS.items():
        if re.search(sign, lowered):
            return f"{meaning} ({text})"
    if is_silence(error):
        return "no answer in time"
    if error.code() is rpc.StatusCode.UNIMPLEMENTED:
        return f"the server does not know etcd's v3 API ({text})"
    if "user name is empty" in lowered:
        return "etcd requires a user and a password (etcdserver: user name is empty)"
    return text or error.code().name.lower().replace("_", " ")


async def answer_of(call: Awaitable[T]) -> T:
    """Await a gRPC call, and tell cancellation apart from a closed channel.

    grpc.aio raises the same bare CancelledError for a cancelled scope and for a channel that was closed during the
    call. The first must be raised as the scope's own, or ``move_on_after`` does not recognise it. The second is not a
    cancellation and must not end the awaiting task.
    """
    try:
        return await call
    except asyncio.CancelledError:
        await checkpoint_if_cancelled()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionTornError("the connection was closed during the call") from None
    except (UsageError, asyncio.InvalidStateError):
        raise ConnectionTornError("the connection is closed") from None
    finally:
        del call  # Breaks the cycle of error, frame and future.


def _details(error: rpc.AioRpcError) -> str:
    return str(error.details() or "")
