"""The plugin by itself: how torch finds it, which errors it raises, what each round gets."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.blocking import PATIENCE, damage, in_thread, wait_until
from tests.ports import free_port

torch_api: Any = pytest.importorskip("torch.distributed.elastic.rendezvous", reason="no torch")
NAMES = ("async-tcp", "async-etcd", "async-file")
Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes handlers of one run."""
    endpoint = f"127.0.0.1:{free_port()}"

    def create(nodes: tuple[int, int] = (1, 2), **options: object) -> Any:
        given = {"last_call_timeout": "1", "regroup_timeout": "0.1", "timeout": 900} | options
        params = torch_api.RendezvousParameters("async-tcp", endpoint, "run", *nodes, **given)
        return torch_api.rendezvous_handler_registry.create_handler(params)

    return create


def test_torch_finds_all_handlers() -> None:
    found = {entry.name: entry.load()() for entry in entry_points(group="torchrun.handlers")}
    assert set(NAMES) <= found.keys()
    for name, endpoint in zip(NAMES, ("localhost:1", "localhost:1", "/tmp/nowhere"), strict=True):
        params = torch_api.RendezvousParameters(name, endpoint, "run", 1, 2)
        handler = torch_api.rendezvous_handler_registry.create_handler(params)
        assert handler.get_backend() == name
        assert handler.get_run_id() == "run"


@pytest.mark.parametrize("first", ["torch.distributed.elastic.rendezvous", "rendezvous_async.sync.torchrun"])
def test_imports_are_lazy_and_work_in_any_order(first: str) -> None:
    code = f"""
import sys, {first}
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
assert set({NAMES}) <= registry._registry.keys(), registry._registry
assert not [name for name in sys.modules if name.partition(".")[0] in ("aetcd", "grpc")]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=PATIENCE)


def test_each_round_has_a_fresh_store(make: Make) -> None:
    one, other = make(), make()
    before = one.next_rendezvous()
    before.store.set("key", "old")
    late = in_thread(other.next_rendezvous)
    wait_until(lambda: bool(one.num_nodes_waiting() == 1))
    after = one.next_rendezvous()
    joined = late.result(PATIENCE)
    assert (after.rank, after.world_size, joined.rank, joined.world_size) == (0, 2, 1, 2)
    where = [(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in (after, joined)]
    assert where[0] == where[1] == ("127.0.0.1", where[0][1])
    assert where[0][1] != before.bootstrap_store_info.master_port
    joined.store.set("key", "new")
    assert after.store.get("key") == b"new"
    assert not one.is_closed()
    ended = in_thread(one.shutdown)
    wait_until(lambda: bool(other.is_closed()))
    with pytest.raises(torch_api.RendezvousClosedError):
        other.next_rendezvous()
    assert other.shutdown()
    assert ended.result(PATIENCE)


def test_a_handler_that_is_dropped_leaves(make: Make) -> None:
    stays, dropped = make((2, 2)), make((2, 2))
    joins = [in_thread(handler.next_rendezvous) for handler in (stays, dropped)]
    infos = [join.result(PATIENCE) for join in joins]
    assert {info.world_size for info in infos} == {2}
    del dropped, joins
    wait_until(lambda: bool(stays.num_nodes_waiting() > 0))
    assert not stays.is_closed()
    assert stays.shutdown()


def test_the_settings_are_those_that_were_given(make: Make) -> None:
    settings = make((1, 2), join_timeout="9").settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("run", 1, 2)
    assert settings.timeout.join.total_seconds() == 9
    assert settings.timeout.last_call.total_seconds() == 1


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What torch's own tooling sees: the events that come to the handler that is configured for them."""
    from torch.distributed.elastic import events as torch_events
    from torch.distributed.elastic.events import handlers

    seen: list[dict[str, Any]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(json.loads(record.getMessage()))

    monkeypatch.setitem(handlers._log_handlers, "dynamic_rendezvous", Collector())
    monkeypatch.setattr(torch_events, "_events_loggers", {})
    yield seen
    for handler in list(logging.getLogger("torchelastic-events-dynamic_rendezvous").handlers):
        logging.getLogger("torchelastic-events-dynamic_rendezvous").removeHandler(handler)


def told(events: list[dict[str, Any]]) -> list[tuple[str, str, int | None]]:
    return [(event["name"].rpartition(".")[2], event["node_state"], event["rank"]) for event in events]


def test_rendezvous_events_are_recorded(make: Make, events: list[dict[str, Any]]) -> None:
    handler = make((1, 1))
    info = handler.next_rendezvous()
    for _ in range(100):
        assert handler.num_nodes_waiting() == 0
        assert not handler.is_closed()
    assert handler.shutdown()
    assert told(events) == [
        ("next_rendezvous", "RUNNING", None),
        ("next_rendezvous", "INIT", 0),
        ("next_rendezvous", "RUNNING", 0),
        ("shutdown", "SUCCEEDED", None),
    ], "and none for what an agent asks again and again"
    where = info.bootstrap_store_info
    assert events[1]["master_endpoint"] == f"{where.master_addr}:{where.master_port}"
    for event in events:
        assert event["run_id"] == "run"
        assert event["pid"] == os.getpid()
        assert event["hostname"] == socket.gethostname()
        assert handler._handler.node in event["message"]
        assert event["error_trace"] == ""


def test_errors_are_recorded_as_events(make: Make, events: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError):
        make(join_timeout="0")
    waits = make((2, 2), join_timeout="1")
    with pytest.raises(torch_api.RendezvousTimeoutError):
        waits.next_rendezvous()
    damage(waits._handler)
    for call in (waits.is_closed, waits.num_nodes_waiting):
        with pytest.raises(torch_api.RendezvousStateError):
            call()
    waits.set_closed()
    with pytest.raises(torch_api.RendezvousClosedError):
        waits.next_rendezvous()
    assert waits.shutdown()
    assert told(events) == [
        ("init", "FAILED", None),
        ("next_rendezvous", "RUNNING", None),
        ("next_rendezvous", "FAILED", None),
        ("is_closed", "FAILED", None),
        ("num_nodes_waiting", "FAILED", None),
        ("set_closed", "SUCCEEDED", None),
        ("next_rendezvous", "RUNNING", None),
        ("next_rendezvous", "FAILED", None),
        ("shutdown", "SUCCEEDED", None),
    ]
    assert "RendezvousTimeoutError: run 'run'" in events[2]["message"]
    assert "RendezvousTimeoutError" in events[2]["error_trace"]


def test_a_shutdown_that_fails_is_recorded(make: Make, events: list[dict[str, Any]]) -> None:
    absent = make(is_host="false", read_timeout="1")
    assert not absent.shutdown()
    assert told(events) == [("shutdown", "FAILED", None)]


def test_events_can_be_switched_off(make: Make, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENDEZVOUS_ASYNC_EVENTS", "0")
    handler = make((1, 1))
    handler.next_rendezvous()
    assert handler.shutdown()
    assert events == []


def test_workers_can_have_stores_of_their_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = make((1, 1))
    assert handler.use_agent_store
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert not handler.use_agent_store
    info = handler.next_rendezvous()
    assert info.bootstrap_store_info.master_port != info.store.underlying_store.port
    assert handler.shutdown()


def test_errors_are_torchs(make: Make) -> None:
    waits = make((2, 2), join_timeout="1")
    with pytest.raises(torch_api.RendezvousTimeoutError, match="no round"):
        waits.next_rendezvous()
    waits.set_closed()
    with pytest.raises(torch_api.RendezvousClosedError):
        waits.next_rendezvous()
    assert waits.shutdown()
    del waits  # It remembers that the run is closed.
    gc.collect()
    absent = make(is_host="false", read_timeout="1")
    with pytest.raises(torch_api.RendezvousConnectionError, match="within 1 s"):
        absent.next_rendezvous()
    assert not absent.shutdown()
    for wrong in ({"join_timeout": "0"}, {"read_timeout": "-1"}, {"is_host": "maybe"}):
        with pytest.raises(ValueError):
            make(**wrong)


def test_a_damaged_state_is_an_error_of_torch_too(make: Make) -> None:
    handler = make((1, 1))
    handler.next_rendezvous()
    damage(handler._handler)
    wait_until(lambda: bool(handler.num_nodes_waiting() > 0))
    with pytest.raises(torch_api.RendezvousStateError, match="not a Head record"):
        handler.next_rendezvous()
    assert handler.shutdown()


def test_other_settings_are_an_error_of_torch_too(make: Make) -> None:
    one = make((1, 1))
    one.next_rendezvous()
    other = make((1, 3))
    with pytest.raises(torch_api.RendezvousError, match=r"but node .* has '1:3 sticky"):
        other.next_rendezvous()
    ended = in_thread(one.shutdown)
    assert other.shutdown()
    assert ended.result(PATIENCE)


def test_a_spare_whose_run_is_over_exits_well(make: Make) -> None:
    member, spare = make((1, 1)), make((1, 1))
    member.next_rendezvous()
    waits = in_thread(spare.next_rendezvous)
    wait_until(lambda: "spare" in str(member._handler._lease.call(member._handler._place._rendezvous.status)))
    ended = in_thread(member.shutdown)
    with pytest.raises(SystemExit) as caught:
        waits.result(PATIENCE)
    assert caught.value.code == 0
    assert spare.shutdown()
    assert ended.result(PATIENCE)
