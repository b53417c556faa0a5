"""The classic's backend contract over the blocking facade, on every backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous_async.backends.base import Put
from rendezvous_async.sync import RendezvousBackend, RendezvousConnectionError, RendezvousStateError, get_free_port
from rendezvous_async.testing.etcd import EtcdCluster, etcd_program
from tests.blocking import serve_apart

_names = itertools.count()


@pytest.fixture(params=["memory", "tcp", "file", "etcd"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RendezvousBackend]:
    match request.param:
        case "memory":
            with RendezvousBackend(f"memory://state-{next(_names)}", "run") as backend:
                yield backend
        case "tcp":
            with serve_apart() as (endpoint, _), RendezvousBackend(endpoint, "run") as backend:
                yield backend
        case "file":
            with RendezvousBackend(f"file://{tmp_path}/meet", "run") as backend:
                yield backend
        case _:
            if etcd_program() is None:
                pytest.skip("no etcd program")
            with EtcdCluster(1) as etcd, RendezvousBackend(etcd.endpoint, "run") as backend:
                yield backend


def test_there_is_no_state_at_first(backend: RendezvousBackend) -> None:
    assert backend.get_state() is None
    assert backend.set_state(b"x", "invalid") is None
    assert backend.get_state() is None
    assert backend.name in ("memory", "tcp", "file", "etcd")


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
    for wrong in (old, None, "invalid", b"invalid", 7, object()):
        assert backend.set_state(b"three", wrong) == (b"two", token, False)


def test_a_damaged_state_is_an_error(backend: RendezvousBackend) -> None:
    assert backend._backend is not None
    backend._lease.call(backend._backend.commit, Put("classic", b"not what we wrote"))
    with pytest.raises(RendezvousStateError):
        backend.get_state()


def test_a_backend_that_cannot_be_reached() -> None:
    with pytest.raises(RendezvousConnectionError):
        RendezvousBackend(f"tcp://127.0.0.1:{get_free_port()}", "run", is_host=False, connect_timeout=0.2)
