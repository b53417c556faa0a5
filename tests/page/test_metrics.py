"""The metrics, as Prometheus's own parser reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import Limits, TcpServer, serve
from rendezvous_async.page.metrics import Metrics
from rendezvous_async.page.overview import Overview
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
