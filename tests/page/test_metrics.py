"""The metrics, as Prometheus's own parser reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import Limits, TcpServer, serve, wire
from rendezvous_async.page.metrics import Metrics
from rendezvous_async.page.overview import Overview
from rendezvous_async.telemetry.labels import LONGEST
from tests.backends.tcp.support import RawClient, eventually

Figures = dict[tuple[str, ...], float]


def read(metrics: Metrics) -> Figures:
    """Return every sample by its name and the values of its labels."""
    families = text_string_to_metric_families(metrics.text().decode())
    found = {}
    for family in families:
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            place = (sample.name, *(sample.labels[label] for label in sorted(sample.labels)))
            assert place not in found
            found[place] = sample.value
    return found


def of(server: TcpServer) -> Metrics:
    return Metrics(Overview(server))


async def test_runs_and_what_their_nodes_do() -> None:
    odd = 'quote " backslash \\ newline \n'
    timeouts = rdzv.Timeouts(last_call=0.05)
    async with serve("127.0.0.1", 0) as server:
        metrics = of(server)
        place = rdzv.connect(server.endpoint, run_id=odd, nodes="1:2", timeouts=timeouts, is_host=False)
        async with place as rendezvous:
            await rendezvous.join()
            figures = read(metrics)
            assert figures["rdzv_run_round", odd] == 1
            assert figures["rdzv_run_nodes", "member", odd] == 1
            assert figures["rdzv_run_nodes", "spare", odd] == 0
            assert figures["rdzv_run_closed", odd] == 0
            assert figures["rdzv_run_usable", odd] == 1
            assert figures["rdzv_run_held_back", odd] == figures["rdzv_run_generation", odd] == 0
            assert figures["rdzv_connections",] == figures["rdzv_sessions",] == 1
            assert figures["rdzv_keys",] == len(server.table)
            assert figures["rdzv_revision",] == server.table.revision
            await eventually(lambda: read(metrics)["rdzv_rounds_formed_total",] == 1)
            await rendezvous.scale(target=1)
            assert read(metrics)["rdzv_run_generation", odd] == 1
            await rendezvous.close("enough")
        figures = read(metrics)
        assert figures["rdzv_run_closed", odd] == 1
        assert figures["rdzv_failed",] == 0


async def test_what_has_happened_is_counted() -> None:
    async with serve("127.0.0.1", 0, secret="right") as server:
        metrics = of(server)
        before = read(metrics)
        assert before["rdzv_commits_total",] == 0
        async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False, secret="right") as backend:
            session = await backend.open_session(5.0)
            await session.keep_alive()
            await backend.commit(rdzv.Put("key", b"value"))
            lost = await backend.commit(rdzv.Put("key", b"other"), when=(rdzv.Condition("key", None),))
            assert not lost.won
        with pytest.raises(rdzv.RendezvousConnectionError, match="secret"):
            async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False, secret="wrong"):
                pass
        figures = read(metrics)
        assert figures["rdzv_commits_total",] == figures["rdzv_commits_lost_total",] == 1
        assert figures["rdzv_sessions_opened_total",] == figures["rdzv_keep_alives_total",] == 1
        assert figures["rdzv_connections_accepted_total",] == 2
        assert figures["rdzv_connections_refused_total", "secret"] == 1


async def test_sessions_that_expire_are_counted_apart() -> None:
    async with serve("127.0.0.1", 0) as server:
        metrics = of(server)
        async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False) as backend:
            await (await backend.open_session(5.0)).aclose()
            await backend.open_session(0.1)
            await eventually(lambda: not server.table.sessions)
        figures = read(metrics)
        assert figures["rdzv_sessions_opened_total",] == 2
        assert figures["rdzv_sessions_expired_total",] == 1


async def test_sessions_are_counted_by_what_ended_them() -> None:
    async with serve("127.0.0.1", 0, disconnect_grace=0.05) as server:
        metrics = of(server)
        async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False) as backend:
            await (await backend.open_session(5.0)).aclose()
            await backend.open_session(0.1)
            await eventually(lambda: not server.table.sessions)
            evicted = await backend.open_session(5.0)
            async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False) as other:
                await other.end_session(evicted.id)
        async with RawClient.connect(server.endpoint) as client:
            await client.greet()
            client.send(wire.OpenSession(1, 5.0))
            await client.read()
        await eventually(lambda: not server.table.sessions)
        figures = read(metrics)
        for cause in ("left", "evicted", "silent", "disconnected"):
            assert figures["rdzv_sessions_ended_total", cause] == 1, cause
        assert figures["rdzv_sessions_expired_total",] == 2


async def test_requests_are_timed_by_kind() -> None:
    async with serve("127.0.0.1", 0) as server:
        metrics = of(server)
        async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False) as backend:
            for _ in range(3):
                await backend.get("key")
            await backend.commit(rdzv.Put("key", b"value"))
        figures = read(metrics)
        assert figures["rdzv_request_seconds_count", "get"] == 3
        assert figures["rdzv_request_seconds_count", "transact"] == 1
        assert figures["rdzv_request_seconds_count", "open_session"] == 0
        assert 0 < figures["rdzv_request_seconds_sum", "get"] < 1


async def test_formations_are_timed_and_waiting_runs_are_seen() -> None:
    async with serve("127.0.0.1", 0) as server:
        metrics = of(server)

        def node(name: str) -> rdzv.Rendezvous:
            timeouts = rdzv.Timeouts(last_call=0.2, regroup=0.2)
            options: dict[str, Any] = {"nodes": 2, "timeouts": timeouts, "is_host": False}
            return rdzv.connect(server.endpoint, run_id="job", node=name, **options)

        async with node("a") as a, anyio.create_task_group() as group:
            group.start_soon(a.join)
            await eventually(lambda: read(metrics)["rdzv_runs", "waiting"] == 1)
            await eventually(lambda: read(metrics)["rdzv_run_waiting_seconds", "job"] >= 0.3)
            async with node("b") as b:
                await b.join()
                await eventually(lambda: read(metrics)["rdzv_runs", "formed"] == 1)
                figures = read(metrics)
                assert figures["rdzv_run_waiting_seconds", "job"] == figures["rdzv_runs", "waiting"] == 0
                assert figures["rdzv_round_formation_seconds_count",] == figures["rdzv_rounds_formed_total",] == 1
                assert 0.2 <= figures["rdzv_round_formation_seconds_sum",] < 60
            await eventually(lambda: read(metrics)["rdzv_run_waiting_seconds", "job"] > 0)  # One is lost.
        await eventually(lambda: read(metrics)["rdzv_runs", "idle"] == 1)
        assert read(metrics)["rdzv_run_waiting_seconds", "job"] == 0, "nobody is here, so nobody waits"


async def test_long_ids_of_runs_are_cut_and_stay_different() -> None:
    ids = [f"{'x' * 200}{number}" for number in range(3)]
    async with serve("127.0.0.1", 0) as server:
        metrics = of(server)
        for run_id in ids:
            async with rdzv.connect(server.endpoint, run_id=run_id, nodes=1, is_host=False) as rendezvous:
                await rendezvous.join()
        labels = {place[1] for place in read(metrics) if place[0] == "rdzv_run_round"}
    assert len(labels) == 3
    assert {len(label) for label in labels} == {LONGEST}


async def test_connections_that_find_no_place_are_counted() -> None:
    async with serve("127.0.0.1", 0, limits=Limits(connections=1)) as server:
        metrics = of(server)
        async with RawClient.connect(server.endpoint), RawClient.connect(server.endpoint) as other:
            await other.read()
        assert read(metrics)["rdzv_connections_refused_total", "limit"] == 1


async def test_the_log_tells_how_long_the_disk_takes(tmp_path: Path) -> None:
    async with serve("127.0.0.1", 0, data_dir=tmp_path) as server:
        metrics = of(server)
        async with rdzv.open_backend(server.endpoint, run_id="job", is_host=False) as backend:
            await backend.commit(rdzv.Put("key", b"value"))
            await backend.commit(rdzv.Put("key", b"again"))
        figures = read(metrics)
    buckets = [value for (name, *_), value in figures.items() if name == "rdzv_log_sync_seconds_bucket"]
    assert buckets == sorted(buckets), "each bucket has those of the ones before"
    assert figures["rdzv_log_sync_seconds_bucket", "+Inf"] == figures["rdzv_log_sync_seconds_count",] >= 2
    assert figures["rdzv_log_sync_seconds_sum",] > 0


async def test_a_restart_counts_no_round_of_before(tmp_path: Path) -> None:
    async with (
        serve("127.0.0.1", 0, data_dir=tmp_path) as server,
        rdzv.connect(server.endpoint, run_id="job", nodes=1, is_host=False) as rendezvous,
    ):
        await rendezvous.join()
    async with serve("127.0.0.1", 0, data_dir=tmp_path) as server:
        figures = read(of(server))
    assert figures["rdzv_run_round", "job"] == 1
    assert figures["rdzv_rounds_formed_total",] == 0


async def test_servers_share_nothing() -> None:
    async with serve("127.0.0.1", 0) as one, serve("127.0.0.1", 0) as other:
        metrics = of(one), of(other)
        async with rdzv.open_backend(one.endpoint, run_id="job", is_host=False) as backend:
            await backend.commit(rdzv.Put("key", b"value"))
        assert [read(each)["rdzv_commits_total",] for each in metrics] == [1, 0]
    assert not [family for family in REGISTRY.collect() if family.name.startswith("rdzv")]
