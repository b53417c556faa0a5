"""What an answer of etcd that is not an answer means: the one place where gRPC's errors become ours.

etcd tells its errors apart by gRPC code and by text; the texts are part of its client API and are stable.
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
    "EtcdRefusedError",
    "Fault",
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
"""Who is refused with one of these will be refused again: a wrong password, no permission, no etcd at all."""
_NOT_TRUSTED = (
    "the server refused the client certificate, or wants one: give a valid cert and key of an authority that it trusts"
)
_HOPELESS = {
    "certificate_verify_failed": "the server's certificate is not signed by the given ca",
    "hostname verification check failed": "the server's certificate is for another name",
    "alert_bad_certificate": "the server wants a client certificate that it trusts: give cert and key",
    "alert_certificate_required": "the server wants a client certificate: give cert and key",
    "alert_unknown_ca": _NOT_TRUSTED,
    "alert_certificate_(expired|revoked|unknown)": _NOT_TRUSTED,
    # In TLS 1.3 the client's handshake is over when its certificate is refused, and gRPC does not tell the alert.
    "failed to connect to all addresses.*unwrap failed": _NOT_TRUSTED,
    "http1.x server": "the server speaks HTTP/1 only: this is no etcd, or one of version 2",
}
_HINTS = _HOPELESS | {
    "handshake read failed": "the server broke off the TLS handshake; if it does not speak TLS, use etcd://",
    "failed to connect to all addresses.*socket closed": "the server hung up; if it speaks TLS, use etcds://",
}


class Fault(Enum):
    """What to do about an error."""

    ELSEWHERE = auto()
    """Nobody answered, or not usefully: ask again, another member first; a write may have happened."""
    HOPELESS = auto()
    """This member will not do, now or later; another might."""
    RENEW = auto()
    """The auth token is not valid any more: get a new one, then ask again."""
    LEASE_GONE = auto()
    """A lease named in the request does not exist."""
    LEASE_EXISTS = auto()
    """A lease of that id has been granted before."""
    REVISION = auto()
    """The revision asked for is compacted, or this member has not come so far."""
    TOO_LARGE = auto()
    """The request is over a limit of the server."""
    REFUSED = auto()
    """The server understood and said no; asking again is no use."""


class EtcdRefusedError(RendezvousConnectionError):
    """etcd answered, and the answer is no; ``fault`` says of what kind."""

    def __init__(self, message: str, fault: Fault, *, final: bool = False) -> None:
        self.fault = fault
        super().__init__(message, final=final)


class ConnectionTornError(Exception):
    """A call ended because its channel was closed under it."""


def judge(error: Exception, *, has_user: bool) -> Fault:
    """Tell what to do about an error of a call."""
    if not isinstance(error, rpc.AioRpcError):
        return Fault.ELSEWHERE
    code, text = error.code(), _details(error).lower()
    if code in _ELSEWHERE:
        return Fault.HOPELESS if any(re.search(sign, text) for sign in _HOPELESS) else Fault.ELSEWHERE
    if code is rpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in text:
        return Fault.RENEW if has_user else Fault.REFUSED
    if "user name is empty" in text and has_user:
        return Fault.RENEW
    if "lease not found" in text:
        return Fault.LEASE_GONE
    if "lease already exists" in text:
        return Fault.LEASE_EXISTS
    if code is rpc.StatusCode.OUT_OF_RANGE:
        return Fault.REVISION
    if "request is too large" in text or "too many operations" in text or "larger than max" in text:
        return Fault.TOO_LARGE
    if "too many requests" in text:
        return Fault.ELSEWHERE
    return Fault.REFUSED


def is_final(error: Exception, fault: Fault) -> bool:
    """Tell whether to try again later is no use either."""
    return fault is Fault.REFUSED and isinstance(error, rpc.AioRpcError) and error.code() in _FINAL


def is_silence(error: Exception) -> bool:
    """Tell whether a member took the call and did not answer in time."""
    return isinstance(error, rpc.AioRpcError) and error.code() is rpc.StatusCode.DEADLINE_EXCEEDED


def describe(error: Exception) -> str:
    """Say in one line what an error of a call was."""
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
        return "etcd wants a user and a password (etcdserver: user name is empty)"
    return text or error.code().name.lower().replace("_", " ")


async def answer_of(call: Awaitable[T]) -> T:
    """Await a gRPC call so that cancellation works as everywhere else.

    grpc.aio answers a cancelled scope, and a channel that is closed during the call, with the same bare CancelledError.
    The first must come out as the scope's own, or ``move_on_after`` does not recognise it; the second is no
    cancellation at all, and must not end the task that awaited it.
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
        del call  # An error holds this frame, and a future its error: garbage that only a collection would find.


def _details(error: rpc.AioRpcError) -> str:
    return str(error.details() or "")
