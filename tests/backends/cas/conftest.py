"""What the tests of the driver over one value share: one Redis for a whole session."""

from __future__ import annotations

from tests.backends.cas.redis import redis_server

__all__ = ["redis_server"]
