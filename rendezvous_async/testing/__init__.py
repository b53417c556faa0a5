"""Prove it: the conformance kit for backends."""

from __future__ import annotations

from rendezvous_async.testing.conformance import BACKEND_CHECKS, check_backend

__all__ = ["BACKEND_CHECKS", "check_backend"]
