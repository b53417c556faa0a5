"""torch's own stores where ours would do: under a handler's prefix, as a backend, and in the collectives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rendezvous_async.sync import (
    C10dRendezvousBackend,
    DynamicRendezvousHandler,
    EndpointRendezvousBackend,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeout,
    barrier,
    store_timeout,
    synchronize,
)
from tests.blocking import PATIENCE, in_thread, join_all
from tests.ports import free_port

dist: Any = pytest.importorskip("torch.distributed", reason="no torch")
SOON = RendezvousTimeout(timedelta(seconds=PATIENCE), timedelta(seconds=1), timedelta(seconds=10))


@pytest.fixture(params=["tcp", "file", "hash"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Return what connects to one store of torch's, once for each member."""
    match request.param:
        case "tcp":
            port = free_port()
            host = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
            return lambda: host and dist.TCPStore("127.0.0.1", port, None, False)
        case "file":
            return lambda: dist.FileStore(str(tmp_path / "store"), -1)
        case _:
            store = dist.HashStore()
            return lambda: store


def test_the_backend_contract_in_a_store_of_torchs(connect: Callable[[], Any]) -> None:
    one, other = (C10dRendezvousBackend(connect(), "run") for _ in range(2))
    assert one.get_state() is None
    assert one.set_state(b"x", b"invalid") is None
    created = one.set_state(b"")
    assert created is not None
    assert created[2]
    assert other.set_state(b"two") == (b"", created[1], False)
    replaced = other.set_state(b"\x00\xff" * 1000, created[1])
    assert replaced is not None
    assert replaced[2]
    assert one.get_state() == (b"\x00\xff" * 1000, replaced[1])
    assert one.set_state(b"three", created[1]) == (*replaced[:2], False)
    connect().set("torch.rendezvous.run", "not_ours")
    with pytest.raises(RendezvousStateError):
        one.get_state()


def test_a_store_whose_server_is_gone() -> None:
    host = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=1), wait_for_workers=False)
    backend = C10dRendezvousBackend(dist.TCPStore("127.0.0.1", host.port, None, False, timedelta(seconds=1)), "run")
    assert backend.get_state() is None
    del host
    with pytest.raises(RendezvousConnectionError):
        backend.get_state()


def test_members_meet_in_a_store_of_torchs(connect: Callable[[], Any]) -> None:
    members = [in_thread(synchronize, connect(), b"data %d" % rank, rank, 3, "told/") for rank in range(3)]
    assert [member.result(PATIENCE) for member in members] == [[b"data 0", b"data 1", b"data 2"]] * 3
    # A FileStore looks once a second, and raises a bare RuntimeError, for which torch's own function names no rank.
    ends = [in_thread(barrier, connect(), 3, "few", 1, rank, "host-{}".format, 1) for rank in (0, 2)]
    errors = [end.exception(PATIENCE) for end in ends]
    kind = RuntimeError if isinstance(connect(), dist.FileStore) else dist.DistStoreError
    assert [type(error) for error in errors] == [kind, kind]
    assert "missing_ranks=[host-1]" in str(errors[0])
    assert "check rank 0 (host-0)" in str(errors[1])


def test_members_with_torchs_functions_and_members_with_ours_meet(connect: Callable[[], Any]) -> None:
    from torch.distributed.elastic.utils import store as torchs

    members = [
        in_thread(synchronize, connect(), b"ours", 0, 2, "mixed/"),
        in_thread(torchs.synchronize, connect(), b"torch's", 1, 2, "mixed/"),
    ]
    assert [member.result(PATIENCE) for member in members] == [[b"ours", b"torch's"]] * 2
    members = [in_thread(function, connect(), 2, "barrier", 30) for function in (barrier, torchs.barrier)]
    for member in members:
        member.result(PATIENCE)


def test_the_timeout_of_a_store_of_torchs(connect: Callable[[], Any]) -> None:
    store = connect()
    before = store.timeout
    with store_timeout(store, 3):
        assert store.timeout == timedelta(seconds=3)
    assert store.timeout == before


def test_a_handler_returns_torchs_own_prefix_store(connect: Callable[[], Any]) -> None:
    """Since torch takes nothing else for its process groups."""
    with EndpointRendezvousBackend(f"memory://torch-{id(connect)}", "run") as backend:
        handlers = [
            DynamicRendezvousHandler.from_backend("run", connect(), backend, 2, 2, "127.0.0.1", SOON) for _ in range(2)
        ]
        infos = join_all(*handlers)
        for info in infos:
            assert isinstance(info.store, dist.PrefixStore)
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == connect().get("torch.rendezvous.run.1/key") == b"value"
        group = [
            in_thread(dist.ProcessGroupGloo, info.store, info.rank, info.world_size, timedelta(seconds=PATIENCE))
            for info in infos
        ]
        assert sorted(each.result(PATIENCE).rank() for each in group) == [0, 1]
        ends = [in_thread(handler.shutdown) for handler in handlers]
        assert all(end.result(PATIENCE) for end in ends)


def test_store_info_in_a_store_of_torchs(connect: Callable[[], Any]) -> None:
    other = in_thread(RendezvousStoreInfo.build, 1, connect(), None)
    info = RendezvousStoreInfo.build(0, connect(), "10.0.0.1", 1234)
    assert info == other.result(PATIENCE) == RendezvousStoreInfo("10.0.0.1", 1234)
