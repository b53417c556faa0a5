"""Prove it: virtual time, and the conformance kit for backends."""

from __future__ import annotations

from rendezvous_async.testing.clock import (
    GROUP,
    DeadlockError,
    LivelockError,
    VirtualLoop,
    VirtualTimeError,
    run,
    virtual_loop,
)
from rendezvous_async.testing.conformance import BACKEND_CHECKS, check_backend

__all__ = [
    "BACKEND_CHECKS",
    "GROUP",
    "DeadlockError",
    "LivelockError",
    "VirtualLoop",
    "VirtualTimeError",
    "check_backend",
    "run",
    "virtual_loop",
]
