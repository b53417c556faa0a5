"""What a server keeps is bounded, whatever it is made of; nobody gets all of it, and a run can always form a round."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends.base import Delete, Put
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import CommitId, Table
from rendezvous_async.backends.tcp import Limits, TcpServer, restrict, serve, wire
from rendezvous_async.backends.tcp.server.quota import Quota
from rendezvous_async.backends.tcp.server.requests import MAX_NAME
from rendezvous_async.errors import RendezvousError
from tests.backends.tcp.support import RawClient, connected

WIDE = "\N{MATHEMATICAL BOLD FRAKTUR CAPITAL A}"  # four bytes
SECRET = "a secret for the tests of quotas"


def disk_size(table: Table) -> int:
    return len(msgspec.msgpack.encode(table.snapshot()))


async def fill(peer: RawClient, put: Callable[[int], Put], most: int = 20_000) -> int:
    """Commit until the server refuses; return how many were accepted. No answer is ever settled."""
    for number in range(1, most):
        peer.send(wire.Transact(number, number, 0, (put(number),), ()))
        answer = await peer.read()
        if isinstance(answer, wire.Failed):
            assert answer.code == wire.FAILED_LIMIT
            return number - 1
    raise AssertionError("the server has no bound")


SHAPES: dict[str, Callable[[int], Put]] = {
    "wide": lambda number: Put(f"run/{number}/{WIDE * 1000}", b""),
    "short": lambda number: Put(f"{number}", b""),
    "deep": lambda number: Put(f"{number}" + "/a" * 32, b""),
    "runs": lambda number: Put(f"run/{number}/x", b""),
    "values": lambda number: Put(f"run/{number}", b"x" * 5000),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_a_server_took_is_within_its_limit_and_there_after_a_restart(shape: str, tmp_path: Path) -> None:
    """Keys were counted in characters, and answers, sessions and the table's own needs not at all."""
    limits = Limits(bytes=2**20, run_share=1)
    async with serve(port=0, data_dir=tmp_path, limits=limits) as server:
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet()
            assert await fill(peer, SHAPES[shape]) >= 2
        kept = server.table.snapshot()
        assert disk_size(server.table) <= limits.bytes
        assert server.table.size <= limits.bytes
    async with serve(port=0, data_dir=tmp_path, limits=limits) as server:
        assert server.table.snapshot() == kept


@pytest.mark.parametrize("seed", range(5))
async def test_random_changes_stay_within_the_limit_and_are_there_after_a_restart(seed: int, tmp_path: Path) -> None:
    """Keys, values, sessions, scopes, clients and answers of every length, within the quota: the log holds them all."""
    rng = random.Random(seed)
    limits = Limits(bytes=rng.choice((50_000, 2**20)), keys=rng.choice((50, 10**6)), run_share=rng.choice((0.3, 1.0)))
    table = Table("0123456789abcdef")
    quota = Quota(table, limits)
    scopes = ["", "ns/team-", f"ns/{WIDE * 200}"]
    sessions: list[str] = []
    refused = deletions = 0
    for number in range(1, 1500):
        scope = rng.choice(scopes)
        client = f"{scope}|{'c' * rng.randrange(1, 128)}"
        letters = rng.choice(("a", WIDE, "/a"))
        name = f"{scope or 'ns/x'}{letters * rng.choice((1, 30, 900))}{number % 200}"[:MAX_NAME]
        session = rng.choice([*sessions[-3:], None, None])
        name += rng.choice(("", "/nodes/n", "/rounds/1/kv/k"))
        put = Put(name, rng.randbytes(rng.choice((0, 9, 2000))), session)
        match rng.randrange(8):
            case 0:
                if quota.refuse_session(scope, []) is None:
                    sessions.append(table.open_session(5.0, 0.0, scope))
            case 1 if sessions:
                table.end_session(sessions.pop(rng.randrange(len(sessions))))
            case 2:
                deletions += 1
                table.commit([Delete(put.key)], (), CommitId(client, number))
            case 3:
                table.forget(client)
            case _ if quota.refuse_commit(scope, client, [put]) is None:
                table.commit([put], (), CommitId(client, number, rng.choice((0, number // 2))))
            case _:
                refused += 1
        # A deletion is never refused, though its answer is remembered.
        assert table.size <= limits.bytes + deletions * 2048
        graves = sum(len(key.encode()) + 16 for key, _ in table.snapshot().graves)
        assert disk_size(table) <= table.size + graves + 100
    assert refused
    log = Log.open(str(tmp_path / "log"), sync=False)
    log.compact(table.snapshot())
    log.close()
    log = Log.open(str(tmp_path / "log"))
    log.close()
    assert log.table.snapshot() == table.snapshot()
    assert log.table.size == table.size
    assert log.table.usage.largest()[1].bytes == table.usage.largest()[1].bytes
    for session in sessions:
        table.end_session(session)
    for entry in table.snapshot().entries:
        table.commit([Delete(entry.key)])
    for client in table.snapshot().answers:
        table.forget(client)
    assert table.size == 0, "what is gone still counts"


async def test_commits_that_change_nothing_leave_nothing_behind() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        for number in range(1, 1000):
            writes = () if number % 2 else (Delete("run/nothing"),)
            peer.send(wire.Transact(number, number, 0, writes, ()))
            assert isinstance(await peer.read(), wire.Transacted)
        assert server.table.snapshot().answers == {}
        assert server.table.size == 0


async def test_remembered_answers_count() -> None:
    """A client may leave its answers unsettled; they were kept outside of all limits."""
    limits = Limits(bytes=100_000, run_share=1)
    async with serve(port=0, limits=limits) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        assert await fill(peer, lambda _: Put("run/key", b"")) < 1000
        assert server.table.size <= limits.bytes
        peer.send(wire.Transact(5000, 5000, 4999, (Put("run/key", b""),), ()))
        assert isinstance(await peer.read(), wire.Transacted)


async def test_a_commit_that_was_done_is_answered_so_when_the_server_has_become_full() -> None:
    async with serve(port=0, limits=Limits(keys=1, run_share=1)) as server:
        for connection in range(2):
            async with RawClient.connect(server.endpoint) as peer:
                await peer.greet("client", connection)
                peer.send(wire.Transact(1, 1, 0, (Put("run/key", b""), Delete("run/none")), ()))
                committed = await peer.read()
                assert isinstance(committed, wire.Transacted)
                assert committed.commit.won


def test_the_queue_of_expiries_does_not_keep_sessions_that_have_ended() -> None:
    table = Table("epoch")
    kept = [table.open_session(5.0, 0.0) for _ in range(3)]
    for number in range(2000):
        session = table.open_session(86_400.0, float(number))
        table.hasten(session, number + 10_000.0)
        table.end_session(session)
    assert len(table._expiries) < 100
    assert sorted(table.due(5.0)) == sorted(kept)


def data(number: int, run: str = "ns/job") -> Put:
    return Put(f"{run}/rounds/1/kv/{number}", b"x" * 500)


def record(number: int, run: str = "ns/job") -> Put:
    return Put(f"{run}/nodes/{number}", b"x" * 500)


@pytest.mark.parametrize("limits", [Limits(bytes=400_000), Limits(keys=400)], ids=["bytes", "keys"])
async def test_a_run_has_its_share_and_its_records_a_reserve(limits: Limits) -> None:
    async with serve(port=0, limits=limits) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        number = 0

        async def commit(put: Put) -> str | None:
            nonlocal number
            number += 1
            peer.send(wire.Transact(number, number, number - 1, (put,), ()))
            answer = await peer.read()
            return answer.message if isinstance(answer, wire.Failed) else None

        async def fill_up(make: Callable[[int, str], Put], run: str) -> str:
            for each in range(10_000):
                if why := await commit(make(each, run)):
                    return why
            raise AssertionError("no bound")

        def part(run: str) -> float:
            has = server.table.usage.of(run)
            return max(has.keys / limits.keys, has.bytes / limits.bytes)

        assert "run ns/a" in await fill_up(data, "ns/a")
        assert 0.4 < part("ns/a") <= 0.5 * (1 - limits.reserve)
        assert "run_share=0.5" in await fill_up(record, "ns/a"), "its own records have room behind its data"
        assert 0.45 < part("ns/a") <= 0.5
        assert await commit(data(0, "ns/a")) is None, "what does not grow is not refused"

        # A second run gets as much, and nobody's data gets the rest.
        why = await fill_up(data, "ns/b")
        assert "the server is full" in why
        assert "Most of it is run ns/a" in why
        assert "the server is full" in await fill_up(data, "ns/c")
        # Records do, and those of one run not all of it: this is the room in which nodes join.
        assert "the server is full" in await fill_up(record, "ns/c")
        assert await commit(record(0, "ns/d")) is None
        assert 0.03 < part("ns/c") <= 0.5 * limits.reserve
        used = server.table.usage.all
        assert used.keys <= limits.keys
        assert used.bytes <= limits.bytes


@pytest.mark.parametrize("scoped", [True, False], ids=["restricted", "whole"])
async def test_whoever_fills_the_server_with_its_runs_leaves_room_for_others_to_join(
    scoped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A hostile tenant takes one run after the other; the other team still forms its round."""
    limits = Limits(bytes=400_000)
    async with serve(port=0, secret=SECRET, limits=limits) as server:
        secret = restrict(SECRET, "bad-") if scoped else SECRET
        refused = set[str]()
        for run in range(40):
            async with connected(server.endpoint, f"bad-{run}", secret=secret) as backend:
                for number in range(1000):
                    try:
                        await backend.commit(Put(f"rounds/1/kv/{number}", b"x" * 2000))
                    except RendezvousError as error:
                        refused.add(str(error))
                        break
                else:
                    raise AssertionError("no bound")
        used = server.table.usage.all.bytes
        assert used <= limits.bytes * (0.5 if scoped else 1)
        if scoped:
            assert any("rendezvous_async/bad-*" in text for text in refused)
        else:
            assert any("the server is full" in text and "run rendezvous_async/bad-" in text for text in refused)
        warnings = [each for each in caplog.records if "refuses a write" in each.getMessage()]
        assert len(warnings) == 1, "one line a minute"
        assert warnings[0].levelno == logging.WARNING
        assert "rendezvous_async/bad-" in warnings[0].getMessage()

        await form_a_round(server, secret=restrict(SECRET, "good-") if scoped else SECRET)


async def form_a_round(server: TcpServer, secret: str | None) -> None:
    """Two nodes join, one leaves and comes back: the next round forms, too."""
    async with (
        rdzv.connect(f"{server.endpoint}?is_host=false", run_id="good-1", nodes=2, secret=secret) as first,
        rdzv.connect(f"{server.endpoint}?is_host=false", run_id="good-1", nodes=2, secret=secret) as second,
    ):
        for _ in range(2):
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    group.start_soon(first.join)
                    group.start_soon(second.join)
                await second.leave()


async def test_a_restricted_client_is_not_told_the_names_of_others() -> None:
    async with serve(port=0, secret=SECRET, limits=Limits(bytes=100_000, run_share=1)) as server:
        async with connected(server.endpoint, "their-run", secret=SECRET) as theirs:
            with pytest.raises(RendezvousError, match="Most of it is run rendezvous_async/their-run"):
                for number in range(1000):
                    await theirs.commit(Put(f"rounds/1/kv/{number}", b"x" * 1000))
        async with connected(server.endpoint, "our-run", secret=restrict(SECRET, "our-")) as ours:
            with pytest.raises(RendezvousError, match="the server is full") as caught:
                await ours.commit(Put("rounds/1/kv/x", b"x" * 20_000))
            assert "their-run" not in str(caught.value)
            await ours.commit(Put("state", b"small"))


async def test_a_restricted_secret_has_a_share_of_the_sessions() -> None:
    async with (
        serve(port=0, secret=SECRET, limits=Limits(sessions=10)) as server,
        connected(server.endpoint, "bad-1", secret=restrict(SECRET, "bad-")) as bad,
        connected(server.endpoint, "good", secret=SECRET) as good,
    ):
        for _ in range(5):
            await bad.open_session(60)
        with pytest.raises(RendezvousError, match="share of the server's 10 sessions"):
            await bad.open_session(60)
        for _ in range(5):
            await good.open_session(60)
        with pytest.raises(RendezvousError, match="its 10 sessions"):
            await good.open_session(60)


def test_parts_of_a_whole_and_frames_that_the_log_can_hold() -> None:
    for wrong in ({"run_share": 1.5}, {"reserve": 1.0}, {"run_share": 0}, {"frame": 32 * 1024 * 1024}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)


def test_what_is_remembered_of_deletions_is_bounded_in_bytes_too() -> None:
    """They do not count, since a deletion must make room; a few thousand long keys in many subtrees were gigabytes."""
    table = Table("epoch")
    table.commit([Put("last", b"")])
    for number in range(1000):
        table.commit([Put(f"{number}{WIDE * 1000}" + "/a" * 32, b"")])
        before = table.token
        table.commit([Delete(f"{number}{WIDE * 1000}/")])
    graves = table.snapshot().graves
    assert 10 < len(graves) < 200
    listing = table.changes(["999" + WIDE * 1000 + "/"], before)
    assert listing is not None
    assert not listing.complete
    assert [entry.value for entry in listing.entries] == [None]
    assert Table.restore(table.snapshot(), 0.0).snapshot() == table.snapshot()
