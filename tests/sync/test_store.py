"""The blocking store, and ``create_store``: a store for a known number of workers."""

from __future__ import annotations

import gc
import inspect
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest

from rendezvous_async.backends.tcp import TcpServer, start_server
from rendezvous_async.sync import (
    BlockingStore,
    RendezvousError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    create_store,
    creation,
    get_free_port,
    get_socket_with_port,
)
from rendezvous_async.sync.creation import OwnStore
from tests.blocking import PATIENCE, in_thread, wait_until


def test_what_a_store_can_do() -> None:
    with create_store(True, "127.0.0.1") as store:
        store.set("text", "value")
        store.set("bytes", b"\x00\xff")
        assert store.get("text") == b"value"
        assert store.multi_get(["bytes", "text", "bytes"]) == [b"\x00\xff", b"value", b"\x00\xff"]
        assert store.add("count", 2) == 2
        assert store.add("count", -5) == -3
        assert store.get("count") == b"-3"
        store.multi_set(["a", "b"], ["1", b"2"])
        assert store.check(["a", "b"])
        assert not store.check(["a", "c"])
        store.wait(["a", "b"], timedelta(seconds=1))
        assert store.compare_set("new", "", "first") == b"first"
        assert store.compare_set("new", "other", "second") == b"first"
        assert store.compare_set("new", "first", "second") == b"second"
        assert store.compare_set("absent", "expected", "value") == b"expected"
        store.append("log", "one,")
        store.append("log", b"two")
        assert store.get("log") == b"one,two"
        assert store.delete_key("log")
        assert not store.delete_key("log")
        before = store.num_keys()
        store.set("one more", b"")
        assert store.num_keys() == before + 1


def test_waits_end() -> None:
    with create_store(True, "127.0.0.1", timeout=5) as store:
        assert store.timeout == timedelta(seconds=5)
        store.set_timeout(timedelta(seconds=0.05))
        for wait in (lambda: store.get("no"), lambda: store.wait(["no"]), lambda: store.multi_get(["no"])):
            with pytest.raises(RendezvousTimeoutError):
                wait()
        with pytest.raises(ValueError, match="positive"):
            store.set_timeout(timedelta(0))


def test_nobody_has_the_store_before_all_are_there() -> None:
    port = get_free_port()
    first = in_thread(create_store, True, "127.0.0.1", port, 3, PATIENCE)
    second = in_thread(create_store, False, "127.0.0.1", port, 3, PATIENCE)
    with pytest.raises(TimeoutError):
        first.result(0.2)
    assert not second.done()
    stores = [create_store(False, "127.0.0.1", port, 3), first.result(PATIENCE), second.result(PATIENCE)]
    stores[0].set("key", "value")
    assert [store.get("key") for store in stores] == [b"value"] * 3
    infos = [in_thread(RendezvousStoreInfo.build, rank, store, None) for rank, store in enumerate(stores)]
    assert len({str(info.result(PATIENCE)) for info in infos}) == 1
    for store in (stores[0], stores[2], stores[1]):
        store.close()


def test_workers_that_do_not_come() -> None:
    with pytest.raises(TimeoutError, match="all 2 workers"):
        create_store(True, "127.0.0.1", get_free_port(), 2, timeout=0.2)
    with create_store(True, "127.0.0.1", get_free_port(), 2, timeout=0.2, wait_for_workers=False) as store:
        assert isinstance(store, OwnStore)
        assert isinstance(store, BlockingStore)


def test_a_free_port_is_tried_again_if_another_process_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be had for the first times, as if others were faster."""
    tried: list[int] = []

    async def start_late(host: str, port: int, **options: Any) -> TcpServer:
        tried.append(port)
        if len(tried) < 3:
            with get_socket_with_port() as taken:
                return await start_server("localhost", taken.getsockname()[1], **options)
        return await start_server(host, port, **options)

    monkeypatch.setattr(creation, "start_server", start_late)
    with create_store(True, "127.0.0.1", -1, retries=3) as store:
        assert tried == [0, 0, 0]
        assert store.port > 0
        store.set("key", "value")
    for retries, attempts in ((2, 2), (0, 1)):
        tried.clear()
        with pytest.raises(RuntimeError, match="in use"):
            create_store(True, "127.0.0.1", -1, retries=retries)
        assert len(tried) == attempts
    tried.clear()
    with pytest.raises(RuntimeError, match="in use"):
        create_store(True, "127.0.0.1", get_free_port(), retries=3)
    assert len(tried) == 1, "a port that was given is tried once"


def test_what_create_store_has_no_use_for(caplog: pytest.LogCaptureFixture) -> None:
    with create_store(True, "127.0.0.1", use_libuv=False) as store:
        assert store.add("count", 1) == 1
    assert "ignores use_libuv" in caplog.text
    caplog.clear()
    create_store(True, "127.0.0.1").close()
    assert not caplog.records
    parameters = inspect.signature(create_store).parameters
    assert {name: p.default for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD} == {
        "is_server": inspect.Parameter.empty,
        "server_addr": inspect.Parameter.empty,
        "server_port": -1,
        "world_size": 1,
        "timeout": 600.0,
        "wait_for_workers": True,
        "retries": 3,
        "use_libuv": None,
    }


def test_a_store_that_is_dropped_or_closed_ends() -> None:
    before = set(threading.enumerate())
    store = create_store(True, "127.0.0.1")
    port = store.port
    del store
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - before)
    store = create_store(True, "127.0.0.1", port)
    store.close()
    store.close()
    with pytest.raises(RendezvousError, match="shut down"):
        store.get("key")


def test_where_workers_find_their_own_store() -> None:
    with create_store(True, "127.0.0.1") as store:
        info = RendezvousStoreInfo.build(0, store, "10.0.0.1", 1234)
        assert info == RendezvousStoreInfo("10.0.0.1", 1234) == RendezvousStoreInfo.build(1, store, None)
        assert store.get(RendezvousStoreInfo.MASTER_ADDR_KEY) == store.get("MASTER_ADDR") == b"10.0.0.1"
        assert store.get(RendezvousStoreInfo.MASTER_PORT_KEY) == store.get("MASTER_PORT") == b"1234"
        assert RendezvousStoreInfo.build(0, store, None).master_port != 1234


def test_free_ports() -> None:
    with get_socket_with_port() as sock:
        assert sock.getsockname()[1] > 0
        with pytest.raises(OSError):
            socket.create_server(("localhost", sock.getsockname()[1]))
    with socket.create_server(("localhost", get_free_port())):
        pass


def test_no_port_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
    unknown: list[Any] = [(socket.AF_CAN, socket.SOCK_STREAM, 0, "", ("localhost", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: unknown + known)
    with get_socket_with_port() as sock:
        assert sock.getsockname()[1] > 0
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: unknown)
    with pytest.raises(RuntimeError, match="no port of localhost") as caught:
        get_socket_with_port()
    assert isinstance(caught.value.__cause__, OSError)


def test_ports_that_cannot_be_had() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="server_port"):
        create_store(True, "127.0.0.1", world_size=2)
    with get_socket_with_port() as taken, pytest.raises(RuntimeError, match="in use"):
        create_store(True, "localhost", taken.getsockname()[1])
    assert set(threading.enumerate()) <= before  # Threads of an earlier test may end meanwhile.
