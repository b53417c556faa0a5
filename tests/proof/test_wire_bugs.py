"""Bugs planted in client, server, hosting and log, which only a simulation of bytes and disks can catch.

Each row says what is broken, which simulation is to find it, and what it finds. The unbroken library passes the same
simulations with the same seeds; ``test_the_unbroken_library_passes`` plays some of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Callable, Iterator
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from pytest import MonkeyPatch

from rendezvous_async import RendezvousError, Timeouts
from rendezvous_async.aio.deadline import answer_within
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Backend, Put
from rendezvous_async.backends.table import frames
from rendezvous_async.backends.table import log as log_module
from rendezvous_async.backends.table.answers import Answers
from rendezvous_async.backends.table.head import head_of_log
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import Snapshot, Table
from rendezvous_async.backends.tcp import Limits, TcpServer, serve, wire
from rendezvous_async.backends.tcp.client.calls import CommitNumbers
from rendezvous_async.backends.tcp.client.channel import Channel
from rendezvous_async.backends.tcp.client.following import TcpSubscription
from rendezvous_async.backends.tcp.hosting import Host
from rendezvous_async.backends.tcp.server import serving
from rendezvous_async.backends.tcp.server.connection import Connection
from rendezvous_async.backends.tcp.server.journal import Journal
from rendezvous_async.testing import Cluster, Faults, Scenario, check, run, scenario_of, simulate
from rendezvous_async.testing.disk import DiskFiles
from rendezvous_async.testing.service import ServerKind
from rendezvous_async.testing.wire import Wire
from tests.proof.power import lose_power

Play = Callable[[int], None]
Plant = Callable[[MonkeyPatch], None]
SEEDS = 60
HEAD = "tcp://head:29400?is_host=false"


# The simulations


def power(seed: int) -> None:
    """Losses of power under load."""
    lose_power(seed)


def with_log(seed: int) -> None:
    """A random scenario whose server has a log."""
    simulate(_scenario(seed, "log"))


def in_memory(seed: int) -> None:
    """A random scenario whose server has no log."""
    simulate(_scenario(seed, "memory"))


def hosted(seed: int) -> None:
    """A random scenario whose nodes host the server."""
    simulate(_scenario(seed, "hosted"))


def _scenario(number: int, server: ServerKind) -> Scenario:
    """Return one of the random scenarios with this kind of server."""
    wanted = (scenario for scenario in map(scenario_of, count()) if scenario.server == server)
    return next(islice(wanted, number, None))


def short_cuts(seed: int) -> None:
    """Connections are reset, and nobody leaves the round for it."""

    async def play() -> None:
        rng = random.Random(seed)
        faults = Faults(delay=0.05)
        async with Cluster(nodes=4, min_nodes=4, seed=seed, faults=faults, keep_alive_interval=4) as cluster:
            await cluster.join_all()
            for _ in range(10):
                cluster.wire.reset(f"node-{rng.randrange(4)}")
                await anyio.sleep(rng.uniform(0, 6))
            await cluster.settle()
            head = cluster.head()
            assert head is not None
            assert head.round == 1, "a round ended because a connection was cut"
            check(cluster.history)

    run(play, seed=seed)


def a_crash_is_noticed(seed: int) -> None:
    """A node is killed, and the others go on long before its TTL is over."""

    async def play() -> None:
        async with Cluster(nodes=3, min_nodes=2, seed=seed, keep_alive_interval=10) as cluster:
            await cluster.join_all()
            cluster.crash(1)
            await cluster.settle(within=8)

    run(play, seed=seed)


def a_burst(seed: int) -> None:
    """More requests at once than a server takes, by a client that is frozen now and then: all are answered."""

    async def serve_it() -> None:
        async with serve("head", 29400, data_dir="/data", secret="s", limits=Limits(in_flight=8, unsent=20_000)):
            await anyio.sleep_forever()

    async def send() -> None:
        async with open_backend(HEAD, run_id="burst", secret="s", stall_timeout=60.0) as backend:

            async def one(number: int) -> None:
                with answer_within(60, f"request {number}"):
                    await backend.commit(Put(f"key-{number % 20}", bytes(2000)))
                    await backend.list("")

            for _ in range(2):
                async with anyio.create_task_group() as group:
                    for number in range(60):
                        group.start_soon(one, number)

    async def play() -> None:
        network = Wire(random.Random(seed), Faults(delay=0.01, bandwidth=1_000_000))
        network.machine("head").start("server", serve_it)
        task = network.machine("near").start("client", send)
        for _ in range(5):
            await anyio.sleep(0.1)
            network.loop.freeze("client")
            await anyio.sleep(0.3)
            network.loop.thaw("client")
        await task

    run(play, seed=seed)


def a_watch_is_cut(seed: int) -> None:
    """The connections of a client that also writes are cut between answers and news: its watch misses nothing."""
    found: set[str] = set()

    async def serve_it() -> None:
        async with serve("head", 29400, secret="s"):
            await anyio.sleep_forever()

    async def watch() -> None:
        async with open_backend(HEAD, run_id="cut", secret="s") as backend, anyio.create_task_group() as group:
            group.start_soon(write, backend, "own")
            async with backend.watch("seen/") as news:
                async for listing in news:
                    found.update(entry.key for entry in listing.entries)

    async def write(backend: Backend, name: str) -> None:
        for number in range(100):
            await backend.commit(Put(f"{name}/{number}", b""))
            await anyio.sleep(0.02)

    async def write_elsewhere() -> None:
        async with open_backend(HEAD, run_id="cut", secret="s") as backend:
            await write(backend, "seen")

    async def play() -> None:
        rng = random.Random(seed)
        network = Wire(rng, Faults(delay=0.01, drop_reply=0.1))
        network.machine("head").start("server", serve_it)
        network.machine("near").start("watcher", watch)
        task = network.machine("far").start("writer", write_elsewhere)
        while not task.done():
            network.loop.freeze("server")  # so that it answers several requests in one turn
            await anyio.sleep(0.1)
            network.loop.thaw("server")
            await anyio.sleep(rng.uniform(0, 0.1))
        await task
        network.faults = Faults()
        await anyio.sleep(5)
        assert len(found) == 100, f"the watch told of {len(found)} keys of 100"

    run(play, seed=seed)


def takeover(seed: int) -> None:
    """Processes want one log on a slow disk: each finds what another one acknowledged, and disturbs nobody."""

    async def play() -> None:
        rng = random.Random(seed)
        network = Wire(rng, Faults(delay=0.01))
        head = network.machine("head")
        head.disk.latency = 1.0

        async def host(port: int) -> None:
            while True:
                try:
                    async with serve("head", port, data_dir="/data", secret="s") as server:
                        with anyio.move_on_after(rng.uniform(1, 6)):
                            await server.failed.wait()
                except RendezvousError:
                    pass  # the other one serves, or has not let go of the log
                await anyio.sleep(rng.uniform(0, 0.5))

        async def write() -> None:
            async with open_backend(HEAD, run_id="takeover", secret="s", connect_timeout=100.0) as backend:
                for number in range(1, 15):
                    with answer_within(60, "write"):
                        await backend.commit(Put(f"key-{number}", b""))
                    with answer_within(60, "read"):
                        found = await backend.list("")
                    assert len(found.entries) == number, f"of {number} commits the log has {len(found.entries)}"

        hosts = []
        for number in range(3):
            hosts.append(head.start(f"host-{number}", host, 29400 + number // 2))
        task = network.machine("near").start("client", write)
        await task
        for each in hosts:
            if each.done():
                each.result()

    run(play, seed=seed)


def the_host_closes(seed: int) -> None:
    """The run is closed, and the host leaves: a node that has to connect again finds it, and hears of the end."""

    async def play() -> None:
        timeouts = Timeouts(join=30, last_call=0.5, close=5)
        async with Cluster(nodes=5, min_nodes=5, seed=seed, server="hosted", timeouts=timeouts) as cluster:
            await cluster.join_all()
            cluster.pause(3)
            cluster.wire.reset("node-3")
            await cluster.close(0, "done")
            await anyio.sleep(0.5)
            cluster.resume(3)
            await anyio.sleep(20)
            assert not any(node.live for node in cluster.nodes), "a node never heard that the run is closed"

    run(play, seed=seed)


def short_outages(seed: int) -> None:
    """The server is started again, or its machine loses its power: nobody leaves the round for it."""

    async def play() -> None:
        rng = random.Random(seed)
        faults = Faults(delay=0.05)
        async with Cluster(4, 4, seed=seed, faults=faults, keep_alive_interval=4, server="log") as cluster:
            await cluster.join_all()
            for _ in range(4):
                await anyio.sleep(rng.uniform(0, 30))
                rng.choice((cluster.restart_server, cluster.lose_power))()
            await anyio.sleep(30)
            head = cluster.head()
            assert head is not None
            assert (head.round, head.lost) == (1, 0), "a round ended because the server was away"
            check(cluster.history)

    run(play, seed=seed)


PLAYS: tuple[Play, ...] = (
    power, with_log, in_memory, hosted, short_cuts, short_outages, a_watch_is_cut, a_crash_is_noticed, a_burst,
    takeover, the_host_closes,
)  # fmt: skip
CHEAP = (with_log, in_memory, hosted)
BUGS: dict[str, tuple[Plant, Play]] = {}


def bug(found_by: Play) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, found_by)
        return plant

    return add


# The client


@bug(power)
def a_commit_is_sent_again_under_a_new_number(patch: MonkeyPatch) -> None:
    resume = Channel._resume

    def broken(self: Channel, link: Any, epoch: str) -> None:
        for call in self._calls.values():
            if isinstance(call.request, wire.Transact):
                number, settled = self.commits.begin()
                call.request = msgspec.structs.replace(call.request, number=number, settled=settled)
        resume(self, link, epoch)

    patch.setattr(Channel, "_resume", broken)


@bug(power)
def a_commit_counts_as_settled_before_it_is_answered(patch: MonkeyPatch) -> None:
    begin = CommitNumbers.begin

    def broken(self: CommitNumbers) -> tuple[int, int]:
        number, _ = begin(self)
        return number, number

    patch.setattr(CommitNumbers, "begin", broken)


@bug(short_cuts)
def sessions_are_not_resumed(patch: MonkeyPatch) -> None:
    resume = Channel._resume

    def broken(self: Channel, link: Any, epoch: str) -> None:
        sessions, self._sessions = self._sessions, {}
        resume(self, link, epoch)
        self._sessions = sessions

    patch.setattr(Channel, "_resume", broken)


@bug(in_memory)
def watches_do_not_continue_on_a_new_connection(patch: MonkeyPatch) -> None:
    resume = Channel._resume

    def broken(self: Channel, link: Any, epoch: str) -> None:
        start, self._start_following = self._start_following, lambda follower: None  # type: ignore[method-assign]
        resume(self, link, epoch)
        self._start_following = start  # type: ignore[method-assign]

    patch.setattr(Channel, "_resume", broken)


@bug(a_watch_is_cut)
def a_watch_continues_from_what_others_have_seen(patch: MonkeyPatch) -> None:
    request = TcpSubscription.request

    def broken(self: TcpSubscription, id: int) -> wire.Follow:
        follow, seen = request(self, id), self._channel._revision
        if follow.after is None or follow.after.revision >= seen:
            return follow
        return msgspec.structs.replace(follow, after=msgspec.structs.replace(follow.after, revision=seen))

    patch.setattr(TcpSubscription, "request", broken)


@bug(takeover)
def calls_are_not_sent_again(patch: MonkeyPatch) -> None:
    resume = Channel._resume

    def broken(self: Channel, link: Any, epoch: str) -> None:
        calls, self._calls = self._calls, {}
        resume(self, link, epoch)
        self._calls = calls

    patch.setattr(Channel, "_resume", broken)


@bug(in_memory)
def a_frame_in_two_pieces_is_dropped(patch: MonkeyPatch) -> None:
    feed = wire.FrameDecoder.feed

    def broken(self: wire.FrameDecoder, data: bytes) -> None:
        self._at = len(self._data)
        self._parts.clear()
        feed(self, data)

    patch.setattr(wire.FrameDecoder, "feed", broken)


@bug(in_memory)
def ids_of_requests_are_given_again_on_a_new_connection(patch: MonkeyPatch) -> None:
    resume = Channel._resume

    def broken(self: Channel, link: Any, epoch: str) -> None:
        self.next_id = count(1).__next__
        resume(self, link, epoch)

    patch.setattr(Channel, "_resume", broken)


@bug(short_cuts)
def sessions_are_resumed_long_after_everything_else(patch: MonkeyPatch) -> None:
    resume = Channel._resume

    def broken(self: Channel, link: Any, epoch: str) -> None:
        sessions, self._sessions = self._sessions, {}
        resume(self, link, epoch)
        self._sessions = sessions

        def late() -> None:
            if self.link is link:
                for session in sessions.values():
                    self._errand(wire.Resume(self.next_id(), session.id), lambda _: None)

        self._loop.call_later(1.0, late)

    patch.setattr(Channel, "_resume", broken)


# The server


@bug(in_memory)
def a_session_that_has_ended_is_renewed(patch: MonkeyPatch) -> None:
    keep_alive, resume = TcpServer.keep_alive, TcpServer.resume
    patch.setattr(TcpServer, "keep_alive", lambda *args: keep_alive(*args) or True)
    patch.setattr(TcpServer, "resume", lambda *args: resume(*args) or True)


@bug(short_cuts)
def a_lost_connection_ends_its_sessions_at_once(patch: MonkeyPatch) -> None:
    disown = TcpServer._disown

    def broken(self: TcpServer, connection: Connection, expires_at: float, session: str) -> None:
        disown(self, connection, expires_at - self.disconnect_grace, session)

    patch.setattr(TcpServer, "_disown", broken)


@bug(a_crash_is_noticed)
def a_lost_connection_does_not_end_its_sessions(patch: MonkeyPatch) -> None:
    patch.setattr(TcpServer, "_disown", lambda *_: None)


@bug(short_cuts)
def a_resumed_session_stays_with_its_old_connection(patch: MonkeyPatch) -> None:
    patch.setattr(TcpServer, "resume", lambda self, _, session: self.table.has_session(session))


@bug(power)
def the_server_forgets_what_it_answered(patch: MonkeyPatch) -> None:
    patch.setattr(Answers, "find", lambda *_: None)


@bug(a_burst)
def credit_is_never_given_back(patch: MonkeyPatch) -> None:
    release, work = Connection.release, Connection._work

    def broken_release(self: Connection, data: bytearray) -> None:
        self._lent = 0
        release(self, data)

    def broken_work(self: Connection, end: float | None = None) -> None:
        credit = self._credit
        self._held, held = self._held or 1, self._held
        with contextlib.suppress(AttributeError):
            work(self, end)
        self._held = held
        self._credit = min(credit, self._credit)

    patch.setattr(Connection, "release", broken_release)
    patch.setattr(Connection, "_work", broken_work)


@bug(a_burst)
def a_slow_reader_is_never_written_to_again(patch: MonkeyPatch) -> None:
    patch.setattr(Connection, "resume_writing", lambda self: None)


@bug(in_memory)
def two_servers_have_one_epoch(patch: MonkeyPatch) -> None:
    init = Table.__init__
    patch.setattr(Table, "__init__", lambda self, epoch, revision=0: init(self, "one", revision))


# Hosting


@bug(hosted)
def nobody_hosts_once_the_host_is_gone(patch: MonkeyPatch) -> None:
    prepare = Host.prepare

    tried: dict[Host, None] = {}

    async def broken(self: Host, failure: Any) -> None:
        if self not in tried:
            tried[self] = None
            await prepare(self, failure)

    patch.setattr(Host, "prepare", broken)


@bug(the_host_closes)
def a_host_does_not_linger(patch: MonkeyPatch) -> None:
    async def broken(self: TcpServer) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(TcpServer, "without_sessions", broken)


@bug(takeover)
def a_server_takes_over_before_the_last_sync_of_another(patch: MonkeyPatch) -> None:
    """To take the lock away is not enough: a server also finds that its log was replaced."""
    patch.setattr(DiskFiles, "try_lock", lambda *_: True)
    patch.setattr(Log, "_check_current", lambda *_: None)


# The log


@bug(power)
def answers_leave_before_the_sync(patch: MonkeyPatch) -> None:
    patch.setattr(Journal, "idle", property(lambda self: True))


@bug(power)
def nothing_is_synced(patch: MonkeyPatch) -> None:
    patch.setattr(DiskFiles, "fdatasync", lambda self, fd: None)


@bug(power)
def a_failed_sync_is_tried_again(patch: MonkeyPatch) -> None:
    def broken(files: DiskFiles, fd: int) -> None:
        with contextlib.suppress(OSError):
            return sync(files, fd)
        return sync(files, fd)

    sync = DiskFiles.fdatasync
    patch.setattr(DiskFiles, "fdatasync", broken)


@bug(power)
def a_failed_sync_is_taken_for_a_good_one(patch: MonkeyPatch) -> None:
    def broken(self: Journal, future: Any) -> None:
        if future.exception() is not None:
            future = SimpleNamespace(exception=lambda: None, result=lambda: False)
        written(self, future)

    written = Journal._written
    patch.setattr(Journal, "_written", broken)


@bug(power)
def the_name_of_a_snapshot_is_not_synced(patch: MonkeyPatch) -> None:
    def broken(files: DiskFiles, fd: int) -> None:
        if not files.fstat(fd).st_mode & 0o040000:
            sync(files, fd)

    sync = DiskFiles.fsync
    patch.setattr(DiskFiles, "fsync", broken)


@bug(power)
def a_snapshot_is_not_synced(patch: MonkeyPatch) -> None:
    def broken(files: DiskFiles, fd: int) -> None:
        if files.fstat(fd).st_mode & 0o040000:
            sync(files, fd)

    sync = DiskFiles.fsync
    patch.setattr(DiskFiles, "fsync", broken)


@bug(power)
def a_snapshot_is_cut_short(patch: MonkeyPatch) -> None:
    def broken(generation: int, snapshot: Snapshot) -> Iterator[bytes]:
        return head_of_log(generation, msgspec.structs.replace(snapshot, entries=snapshot.entries[:-1]))

    patch.setattr(log_module, "head_of_log", broken)


@bug(power)
def a_snapshot_has_no_answers(patch: MonkeyPatch) -> None:
    patch.setattr(Answers, "as_value", lambda self: {})


@bug(power)
def a_start_does_not_write_the_log_anew(patch: MonkeyPatch) -> None:
    open_log = serving._open_log

    def broken(*args: Any) -> Log:
        with patch.context() as inside:
            inside.setattr(Log, "compact", lambda self, snapshot: None if self._generation else compact(self, snapshot))
            return open_log(*args)

    compact = Log.compact
    patch.setattr(serving, "_open_log", broken)


@bug(power)
def a_torn_frame_is_not_cut(patch: MonkeyPatch) -> None:
    patch.setattr(log_module, "is_torn", lambda *_: False)


@bug(with_log)
def the_end_of_a_session_is_not_logged(patch: MonkeyPatch) -> None:
    end = TcpServer.end_session

    def broken(self: TcpServer, session: str) -> None:
        journal, self.journal = self.journal, None
        end(self, session)
        self.journal = journal

    patch.setattr(TcpServer, "end_session", broken)


@bug(power)
def what_a_frame_holds_is_not_checked(patch: MonkeyPatch) -> None:
    def broken(data: memoryview, start: int = 0, limit: int = frames.MAX_FRAME) -> tuple[memoryview, int] | None:
        length = frames._length(data, start)
        if length is None or length > limit or len(data) <= (end := start + frames._HEAD_SIZE + length):
            return None
        return data[start + frames._HEAD_SIZE : end], end + 1

    patch.setattr(frames, "unframe", broken)
    patch.setattr(log_module, "unframe", broken)


@bug(short_outages)
def sessions_have_no_time_after_a_start(patch: MonkeyPatch) -> None:
    restore = Table.restore

    def broken(snapshot: Snapshot, now: float) -> Table:
        sessions = tuple((session, 0.01) for session, _ in snapshot.sessions)
        return restore(msgspec.structs.replace(snapshot, sessions=sessions), now)

    patch.setattr(Table, "restore", broken)


@bug(with_log)
def a_start_gives_ids_of_sessions_again(patch: MonkeyPatch) -> None:
    restore = Table.restore
    patch.setattr(Table, "restore", lambda snapshot, now: restore(msgspec.structs.replace(snapshot, opened=0), now))


@bug(with_log)
def a_start_begins_a_new_history(patch: MonkeyPatch) -> None:
    restore = Table.restore
    names = count()

    def broken(snapshot: Snapshot, now: float) -> Table:
        return restore(msgspec.structs.replace(snapshot, epoch=f"history-{next(names)}"), now)

    patch.setattr(Table, "restore", broken)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes and servers complain of every fault."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_caught(name: str, monkeypatch: MonkeyPatch) -> None:
    plant, play = BUGS[name]
    plant(monkeypatch)
    found = None
    for seed in range(4 * SEEDS if play in CHEAP else SEEDS):
        try:
            play(seed)
        except Exception as error:
            found = error
            break
    assert found is not None, f"{name}: {play.__name__} found nothing in {seed + 1} seeds"
    assert "there is no log" not in str(found), "the play is wrong, and not the library"
    if os.environ.get("RENDEZVOUS_SHOW"):
        print(f"{name}: seed {seed}: {type(found).__name__}: {str(found)[:200]}")


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_the_unbroken_library_passes(play: Play) -> None:
    for seed in range(SEEDS if play in CHEAP else 12):
        play(seed)


def test_there_are_enough_planted_bugs() -> None:
    assert len(BUGS) >= 20
