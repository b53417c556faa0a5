"""A cluster whose members are frozen, killed and started again, under load: nothing that was acknowledged is lost."""

from __future__ import annotations

from random import Random

import anyio
import pytest
from anyio import to_thread

import rendezvous_async as rdzv
from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Condition, Delete, Put, Token, Watch
from rendezvous_async.backends.etcd.driver import EtcdDriver
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster, EtcdMember, start_etcd
from tests.backends.etcd.sound import sound_cluster


def in_use(backend: Backend, cluster: EtcdCluster) -> EtcdMember:
    """Return the member that a backend talks to."""
    assert isinstance(backend.driver, EtcdDriver)
    address = backend.driver._cluster.member.address
    return next(member for member in cluster.members if member.address == address)


@pytest.mark.parametrize("what", ["freeze", pytest.param("kill", marks=pytest.mark.slow)])
async def test_a_member_that_goes_is_left_in_time_for_a_session_of_5_seconds(what: str) -> None:
    """A node holds its world all the while, and its client goes on."""
    async with (
        start_etcd(3) as cluster,
        rdzv.connect(cluster.endpoint, run_id="left", nodes=1) as rendezvous,
        open_backend(cluster.endpoint, run_id="left") as other,
    ):
        world = await rendezvous.join()
        assert rendezvous._supervisor is not None
        backend = rendezvous._supervisor.backend
        assert backend is not None
        async with backend.watch("a", "b") as watch:
            reader = WatchReader(watch, "a", "b")
            await reader.read()
            for number, member in enumerate((in_use(backend, cluster), cluster.leader())):
                getattr(member, what)()
                with anyio.fail_after(8):
                    await backend.commit(Put("a", b"%d" % number))
                    await other.commit(Put("b", b"%d" % number))
                    await reader.until_value("a", b"%d" % number)
                    await reader.until_value("b", b"%d" % number)
                if what == "freeze":
                    member.thaw()
                else:
                    member.start()
                await to_thread.run_sync(cluster.wait_ready)
        assert world.change is None


class Load:
    """Tasks that count, and watches that look on; ``run()`` tells whether everything adds up."""

    def __init__(self, backends: list[Backend]) -> None:
        self.backends = backends
        self.acknowledged = 0
        self.mine: dict[str, tuple[int, Token]] = {}
        self.revisions: set[tuple[str, int]] = set()
        self.readers: list[WatchReader] = []
        self.stopped = False
        self.wanted = self.beats = 0
        self.enough, self.looked = anyio.Event(), anyio.Event()

    async def count_together(self, backend: Backend) -> None:
        """Increment one counter that everybody increments."""
        while not self.stopped:
            entry = await backend.get("shared")
            token = None if entry is None else entry.token
            value = b"%d" % (1 + int(entry.value or b"0") if entry else 1)
            commit = await backend.commit(Put("shared", value), when=[Condition("shared", token)])
            if commit.won:
                self.acknowledged += 1
                self.note("shared", commit.revision)

    async def count_alone(self, backend: Backend, name: str) -> None:
        """Put one number after the other, of which nobody else writes any, then delete, then again."""
        number = 0
        while not self.stopped:
            number += 1
            commit = await backend.commit(Put(f"alone/{name}", b"%d" % number), Put(f"twin/{name}", b"%d" % number))
            self.note(name, commit.revision)
            self.mine[name] = (number, commit.token)
            if number % 10 == 0:
                again = await backend.commit(Delete(f"alone/{name}"), when=[Condition(f"alone/{name}", commit.token)])
                assert again.won, "a deletion of what only this task writes has lost"
                self.note(name, again.revision)

    def note(self, what: str, revision: int) -> None:
        assert (what, revision) not in self.revisions, f"two commits of {what} were acknowledged at {revision}"
        self.revisions.add((what, revision))
        if len(self.revisions) >= self.wanted:
            self.enough.set()

    async def more(self, count: int) -> None:
        """Wait until so many more commits have been acknowledged."""
        self.wanted = len(self.revisions) + count
        self.enough = anyio.Event()
        await self.enough.wait()

    async def look_on(self, watch: Watch, *names: str) -> None:
        reader = WatchReader(watch, *names)
        self.readers.append(reader)
        while "end" not in reader.view:
            await reader.read("the end")
            self.looked.set()

    async def catch_up(self) -> None:
        """Wait until every watch has seen what is committed now."""
        self.beats += 1
        value = b"%d" % self.beats
        await self.backends[0].commit(Put("beat", value))
        while any(reader.view.get("beat") != value for reader in self.readers):
            self.looked = anyio.Event()
            await self.looked.wait()

    async def run(self, disturb: anyio.abc.ObjectReceiveStream[None]) -> None:
        """Run until told to stop, then check."""
        names = ("shared", "alone/", "twin/", "beat", "end")
        async with anyio.create_task_group() as lookers:
            for backend in self.backends:
                for watched in (names, ("",)):
                    lookers.start_soon(self.look_on, backend.watch(*watched), *watched)
            async with anyio.create_task_group() as workers:
                for index, backend in enumerate(self.backends):
                    workers.start_soon(self.count_together, backend)
                    workers.start_soon(self.count_alone, backend, f"{index}a")
                    workers.start_soon(self.count_alone, backend, f"{index}b")
                await disturb.receive()
                self.stopped = True
            await self.backends[0].commit(Put("end", b""))
        listing = await self.backends[-1].list("")
        found = {entry.key: entry for entry in listing.entries}
        assert int(found["shared"].value or b"") == self.acknowledged, "increments were lost or done twice"
        for name, (number, token) in self.mine.items():
            assert found[f"twin/{name}"].value == b"%d" % number
            assert found[f"twin/{name}"].token == token
            assert (f"alone/{name}" in found) == (number % 10 != 0)
        for reader in self.readers:
            assert reader.view == {key: entry.value for key, entry in found.items()}


async def disturb_under_load(cluster: EtcdCluster, seed: int, times: int) -> Load:
    random = Random(seed)
    send, receive = anyio.create_memory_object_stream[None](1)
    options = {"call_timeout": 1, "connect_timeout": 30}
    async with (
        send,
        receive,
        open_backend(cluster.endpoint, run_id=f"load {seed}", **options) as first,
        open_backend(cluster.endpoint, run_id=f"load {seed}", **options) as second,
        open_backend(cluster.endpoint, run_id=f"load {seed}", **options) as third,
    ):
        load = Load([first, second, third])
        async with anyio.create_task_group() as group:
            group.start_soon(load.run, receive)
            for _ in range(times):
                await load.more(50)
                leader = await to_thread.run_sync(cluster.leader)
                member = random.choice((leader, *cluster.members))
                if random.random() < 0.5:
                    member.kill()
                    await anyio.sleep(random.uniform(0, 1.5))
                    member.start()
                else:
                    member.freeze()
                    await anyio.sleep(random.uniform(0.5, 3))
                    member.thaw()
                await to_thread.run_sync(cluster.wait_ready)
                await load.catch_up()
            await send.send(None)
    return load


async def test_nothing_acknowledged_is_lost_while_members_come_and_go() -> None:
    async with sound_cluster() as cluster:
        with anyio.fail_after(60):
            load = await disturb_under_load(cluster, seed=1, times=2)
        assert load.acknowledged > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
async def test_nothing_acknowledged_is_lost_for_long(seed: int) -> None:
    async with sound_cluster() as cluster:
        with anyio.fail_after(250):
            await disturb_under_load(cluster, seed, times=12)
