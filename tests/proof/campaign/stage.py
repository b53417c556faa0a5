"""The stage of a campaign: one backend that lives through all acts, and the places from which processes use it.

A ``Place`` is where one process stands: its own endpoint, its own way to the servers (a proxy for each) and, where the
machine allows it, its own network namespace. Faults act on places, and on what the backend is made of (``faults``).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import anyio.abc
from anyio import to_thread

from rendezvous_async.backends.base import DEFAULT_NAMESPACE
from rendezvous_async.testing.proxy import Proxy
from tests.proof.campaign.disks import Disk
from tests.proof.campaign.follower import Follower, LogFollower
from tests.proof.campaign.namespaces import Link, Links

__all__ = ["FileStage", "Place", "Stage", "StageFault"]

NOTEBOOKS = 200_000
"""More bytes than a node writes down in an act: a limit below that would harm the campaign, not the backend."""

StageFault: TypeAlias = Callable[[random.Random], Awaitable[None]]
"""Does something to the backend itself, mends it again, and returns then."""


class Place:
    """Where one process stands."""

    def __init__(self, endpoint: str, proxies: list[Proxy], link: Link | None = None) -> None:
        self.endpoint = endpoint
        self.proxies = proxies
        self.link = link

    def __repr__(self) -> str:
        return f"<Place {self.endpoint}>"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before the command of a process, so that it stands here."""
        return () if self.link is None else self.link.prefix


class Stage(ABC):
    """A backend for a campaign.

    Args:
        folder: For its files.
        group: For its tasks.
        places: How many processes will use it.
        pace: How much longer than usual everything may take.
        ttl: Seconds of the nodes' leases.

    Attributes:
        remarks: What cannot be done on this machine, and what was chosen instead.
        places: Where processes stand.
        follower: Reads every commit.
        busy: Whether something happens to the backend itself.
    """

    name: str
    namespace = DEFAULT_NAMESPACE
    networked = True
    syncs_in_nodes = False
    """Whether nodes write to the disk themselves."""
    hosted_port: int | None = None
    """Where nodes and clients host the server themselves; None if they do not."""

    def __init__(
        self, folder: Path, group: anyio.abc.TaskGroup, places: int, pace: float = 1.0, ttl: float = 4.0
    ) -> None:
        self.folder = folder
        self.pace = pace
        self.ttl = ttl
        self.remarks: list[str] = []
        self.places: list[Place] = []
        self.busy = False
        self.follower: Follower
        self.links = Links()
        self._group = group
        self._count = places
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}>"

    async def __aenter__(self) -> Stage:
        try:
            await self._set_up()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    @property
    @abstractmethod
    def faults(self) -> dict[str, StageFault]:
        """What can be done to the backend itself, by kind."""

    @property
    def file_limit(self) -> int:
        """How large a file may become for a process that is to fail to write to the backend; 0 if it never writes."""
        return 0

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """The backend, as one reaches it without any proxy."""

    @abstractmethod
    async def _set_up(self) -> None:
        """Start everything, and put its end on ``_stack``."""

    async def _make_places(self, servers: list[tuple[str, int]], scheme: str, query: str, linked: int) -> None:
        """Make a place for each process, the first ``linked`` of them behind links that can be cut."""
        await to_thread.run_sync(self.links.make, linked)
        self._stack.callback(self.links.remove)
        if self.links.why_not:
            self.remarks.append(self.links.why_not)
        for index in range(self._count):
            link = self.links.links[index] if index < len(self.links.links) else None
            listen = "127.0.0.1" if link is None else link.here
            proxies = [
                await self._stack.enter_async_context(Proxy(host, port, listen=listen)) for host, port in servers
            ]
            hosts = ",".join(f"{listen}:{proxy.port}" for proxy in proxies)
            self.places.append(Place(f"{scheme}://{hosts}{query}", proxies, link))

    async def _make_disk(self) -> Disk:
        disk = Disk(self.folder / "disk")
        await to_thread.run_sync(disk.mount)
        self._stack.callback(disk.unmount)
        if disk.why_not:
            self.remarks.append(disk.why_not)
        return disk


class FileStage(Stage):
    """A shared directory, on a disk of its own if possible; there is no server and no network."""

    name = "file"
    networked = False
    syncs_in_nodes = True

    @property
    def endpoint(self) -> str:
        return f"file://{self._disk.path}/shared"

    @property
    def faults(self) -> dict[str, StageFault]:
        return {} if self._disk.why_not else {"disk full": self._fill_disk}

    @property
    def file_limit(self) -> int:
        size = self._log.stat().st_size if self._log.exists() else 0
        return size if size > NOTEBOOKS else 0

    async def _set_up(self) -> None:
        self._disk = await self._make_disk()
        self._log = self._disk.path / "shared" / "log"
        self.follower = LogFollower(self._log)
        self._stack.callback(self.follower.close)
        self.places = [Place(self.endpoint, []) for _ in range(self._count)]

    async def _fill_disk(self, rng: random.Random) -> None:
        await self._disk.be_full(0.3 + 2 * rng.random())
