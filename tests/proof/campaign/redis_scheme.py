"""The scheme ``redis://host:port`` of a campaign: the ``cas`` driver over the backend of ``examples/redis_backend.py``.

It is found as one of another distribution is, by an entry point; ``install`` writes that down as pip would.
"""

from __future__ import annotations

from pathlib import Path

from examples.redis_backend import RedisBackend
from rendezvous_async.backends.cas import CasDriver, StateValue
from rendezvous_async.backends.driver import Driver
from rendezvous_async.backends.options import BackendOptions
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.schemes import GROUP, Scheme
from rendezvous_async.settings import Endpoint

__all__ = ["KEY", "SCHEME", "TOKEN", "install"]

KEY = "campaign"
TOKEN = 16
"""How many bytes of what the key holds are the token."""


async def open_redis(endpoint: Endpoint, options: BackendOptions, outage: Outage) -> Driver:
    """Open a driver over one key of a Redis."""
    host, _, port = endpoint.path.partition(":")
    return CasDriver(StateValue(RedisBackend(host, int(port), KEY)), outage=outage)


SCHEME = Scheme(BackendOptions, open_redis)


def install(folder: Path) -> None:
    """Put a distribution with the scheme into a folder, which is to be on the path of Python."""
    info = folder / "rdzv_campaign-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv-campaign\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nredis = {__name__}:SCHEME\n")
