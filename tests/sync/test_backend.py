"""The classic's backend contract, on every ``RendezvousBackend`` that there is."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rendezvous_async.backends.base import Put, Token
from rendezvous_async.sync import (
    C10dRendezvousBackend,
    EndpointRendezvousBackend,
    EtcdRendezvousBackend,
    RendezvousBackend,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    create_store,
)
from tests.blocking import PATIENCE, in_thread, serve_apart, wait_until
from tests.ports import free_port

_names = itertools.count()
KINDS = ["memory", "tcp", "file", "etcd", "c10d"]
Damage = Callable[[bytes], None]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backends(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], RendezvousBackend]]:
    """Return what opens backends in one place, by their run."""
    opened: list[Any] = []

    def keep(thing: Any) -> Any:
        opened.append(thing)
        return thing

    match kind:
        case "memory":
            endpoint = f"memory://state-{next(_names)}"
            yield lambda run_id: keep(EndpointRendezvousBackend(endpoint, run_id))
        case "tcp":
            with serve_apart() as (endpoint, _):
                yield lambda run_id: keep(EndpointRendezvousBackend(endpoint, run_id))
                while opened:
                    opened.pop().close()
        case "file":
            yield lambda run_id: keep(EndpointRendezvousBackend(f"file://{tmp_path}/meet", run_id))
        case "etcd":
            where, prefix = request.getfixturevalue("etcd_endpoint"), f"prefix/{next(_names)}"
            yield lambda run_id: keep(EtcdRendezvousBackend(where, run_id, prefix))
        case _:
            store = keep(create_store(True, "127.0.0.1"))
            yield lambda run_id: C10dRendezvousBackend(store, run_id)
    for thing in opened:
        thing.close()


@pytest.fixture
def backend(backends: Callable[[str], RendezvousBackend]) -> RendezvousBackend:
    return backends("run")


def test_there_is_no_state_at_first(backend: RendezvousBackend, kind: str) -> None:
    assert backend.get_state() is None
    assert backend.set_state(b"x", "invalid") is None
    assert backend.set_state(b"x", b"invalid") is None
    assert backend.get_state() is None
    assert backend.name == kind


def test_set_state_creates_if_absent(backend: RendezvousBackend) -> None:
    created = backend.set_state(b"one")
    assert created is not None
    state, token, written = created
    assert (state, written) == (b"one", True)
    assert backend.get_state() == (b"one", token)
    assert backend.set_state(b"two") == (b"one", token, False)


def test_set_state_replaces_with_the_current_token_only(backend: RendezvousBackend) -> None:
    created = backend.set_state(b"one")
    assert created is not None
    old = created[1]
    replaced = backend.set_state(b"two", old)
    assert replaced is not None
    state, token, written = replaced
    assert (state, written) == (b"two", True)
    assert token != old
    for wrong in (old, None, "invalid", b"invalid", b"\xff", b"", 7, object()):
        assert backend.set_state(b"three", wrong) == (b"two", token, False)


def test_what_was_written_before_has_another_token(backend: RendezvousBackend) -> None:
    """A token never becomes valid again, and two writers of the same bytes never both win."""
    first = backend.set_state(b"same")
    assert first is not None
    second = backend.set_state(b"same", first[1])
    assert second is not None
    assert second[1] != first[1]
    assert backend.set_state(b"same", first[1]) == (b"same", second[1], False)
    assert backend.set_state(b"same") == (b"same", second[1], False)


@pytest.mark.parametrize("state", [b"", b"\x00\xff:", b"x" * 100_000])
def test_a_state_is_any_bytes(backend: RendezvousBackend, state: bytes) -> None:
    created = backend.set_state(state)
    assert created is not None
    assert backend.get_state() == (state, created[1])


def test_others_see_the_state_of_their_run(backends: Callable[[str], RendezvousBackend]) -> None:
    one, other, another_run = backends("run"), backends("run"), backends("another")
    created = one.set_state(b"one")
    assert created is not None
    assert other.get_state() == (b"one", created[1])
    assert another_run.get_state() is None
    replaced = other.set_state(b"two", created[1])
    assert replaced is not None
    assert one.get_state() == (b"two", replaced[1])


def test_one_of_many_writers_wins(backends: Callable[[str], RendezvousBackend]) -> None:
    opened = [backends("run") for _ in range(4)]
    created = opened[0].set_state(b"")
    assert created is not None
    writes = [in_thread(each.set_state, b"%d" % number, created[1]) for number, each in enumerate(opened)]
    ends = [write.result(PATIENCE) for write in writes]
    assert [end[2] for end in ends if end is not None].count(True) == 1
    assert len({end[:2] for end in ends if end is not None}) == 1, "all are told who has won"


def test_a_damaged_state_is_an_error(backends: Callable[[str], RendezvousBackend], backend: RendezvousBackend) -> None:
    if isinstance(backend, C10dRendezvousBackend):
        backend._store.set("torch.rendezvous.run", "non_base64")
    else:
        assert isinstance(backend, EndpointRendezvousBackend)
        assert backend._held.backend is not None
        backend._lease.call(backend._held.backend.commit, Put("classic", b"not what we wrote"))
    with pytest.raises(RendezvousStateError):
        backend.get_state()
    with pytest.raises(RendezvousStateError):
        backend.set_state(b"x", Token("epoch", 1))


def test_a_run_has_a_name(backends: Callable[[str], RendezvousBackend]) -> None:
    with pytest.raises(ValueError, match="run_id"):
        backends("")


def test_a_backend_that_cannot_be_reached() -> None:
    with pytest.raises(RendezvousConnectionError):
        EndpointRendezvousBackend(f"tcp://127.0.0.1:{free_port()}", "run", is_host=False, connect_timeout=0.2)


def test_a_backend_whose_server_is_gone() -> None:
    with serve_apart() as (endpoint, server):
        backend = EndpointRendezvousBackend(f"{endpoint}?is_host=false", "run", read_timeout=0.3)
        in_store = C10dRendezvousBackend(backend.make_store(), "run")
        in_store._store.set_timeout(in_store._store.timeout / 1000)
        server.kill()
        server.wait()
        for gone in (backend, in_store):
            with pytest.raises(RendezvousConnectionError):
                gone.get_state()
            with pytest.raises(RendezvousConnectionError):
                gone.set_state(b"x")
        backend.close()


def test_a_store_that_fails_is_a_backend_that_cannot_be_reached() -> None:
    class Broken:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def __getattr__(self, _: str) -> Any:
            raise self.error

    for error in (RuntimeError("gone"), TimeoutError("late"), ValueError("what")):
        backend = C10dRendezvousBackend(Broken(error), "run")
        for call in (backend.get_state, lambda backend=backend: backend.set_state(b"x")):
            with pytest.raises(RendezvousConnectionError, match=str(error)) as caught:
                call()
            assert caught.value.__cause__ is error


def test_a_backend_that_is_closed_says_so() -> None:
    backend = EndpointRendezvousBackend("memory://closed", "run")
    backend.close()
    backend.close()
    with pytest.raises(RendezvousError, match="shut down"):
        backend.get_state()


def test_a_backend_that_is_dropped_is_closed() -> None:
    """Its server too, unless a store of it is still there."""
    before = set(threading.enumerate())
    port = free_port()
    host = EndpointRendezvousBackend(f"tcp://127.0.0.1:{port}", "run", is_host=True)
    store = host.make_store()
    store.set("key", "value")
    del host
    gc.collect()
    with EndpointRendezvousBackend(f"tcp://127.0.0.1:{port}", "run", is_host=False) as other:
        assert other.make_store().get("key") == b"value"
    del other
    del store
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_the_state_on_etcd_ends_some_time_after_its_last_write(etcd_endpoint: str) -> None:
    """By etcd's own clock, and not with the process that wrote it."""
    prefix = f"ttl/{next(_names)}"
    with EtcdRendezvousBackend(etcd_endpoint, "run", prefix, 1) as writer:
        created = writer.set_state(b"one")
        assert created is not None
        replaced = writer.set_state(b"two", created[1])
        assert replaced is not None
    with EtcdRendezvousBackend(etcd_endpoint, "run", prefix) as reader:
        assert reader.get_state() == (b"two", replaced[1])
        wait_until(lambda: reader.get_state() is None)
        assert reader.set_state(b"three", replaced[1]) is None
        assert reader.set_state(b"three") is not None


def test_the_next_write_keeps_the_state_on_etcd(etcd_endpoint: str) -> None:
    """Also one that comes when the state has already gone."""
    with EtcdRendezvousBackend(etcd_endpoint, "run", f"ttl/{next(_names)}", 1) as backend:
        assert backend.set_state(b"one") is not None
        first = backend._session
        assert first is not None
        found = backend.get_state()
        assert found is not None
        assert backend.set_state(b"two", found[1]) is not None
        assert backend._session is first
        wait_until(lambda: backend.get_state() is None)
        again = backend.set_state(b"three")
        assert again is not None
        assert again[2]
        assert backend._session is not first


@pytest.mark.parametrize(("asked", "kept"), [(None, 7200), (0, 7200), (-5, 7200), (600, 600)])
def test_how_long_a_state_on_etcd_is_kept(etcd_endpoint: str, asked: int | None, kept: int) -> None:
    with EtcdRendezvousBackend(etcd_endpoint, "run", f"ttl/{next(_names)}", asked) as backend:
        assert backend.set_state(b"x") is not None
        assert backend._session is not None
        assert kept <= 0.8 * backend._session.ttl <= 1.1 * kept, "etcd's lease is 0.8 of a session"


def test_key_prefixes_keep_runs_on_etcd_apart(etcd_endpoint: str) -> None:
    one, other = (EtcdRendezvousBackend(etcd_endpoint, "run", prefix) for prefix in ("/torch/one", "/torch/other"))
    with one, other:
        assert one.set_state(b"one") is not None
        assert other.get_state() is None
        assert one._held.backend is not None
        assert one._held.backend.prefix == "/torch/one/run/"
