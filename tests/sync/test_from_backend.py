"""Handlers of a backend that is there already: ``from_backend``, ``create_handler(store, backend, params)``, stores."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rendezvous_async.backends import Backend, start_backend
from rendezvous_async.node.addresses import find_local_address
from rendezvous_async.sync import (
    C10dRendezvousBackend,
    DynamicRendezvousHandler,
    EndpointRendezvousBackend,
    RendezvousBackend,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousSettings,
    RendezvousTimeout,
    c10d,
    create_backend,
    create_handler,
    create_store,
    etcd,
)
from rendezvous_async.sync.carrier import Carrier
from rendezvous_async.sync.portal import LoopLease
from rendezvous_async.testing.etcd import EtcdCluster, etcd_program
from tests.blocking import PATIENCE, in_thread, join_all, wait_until
from tests.certificates import mutual_context, write_certificates
from tests.ports import free_port

_names = itertools.count()
SOON = RendezvousTimeout(timedelta(seconds=PATIENCE), timedelta(seconds=1), timedelta(seconds=10))
Open = Callable[[], tuple[EndpointRendezvousBackend, Any]]


def params(backend: str, endpoint: str, nodes: tuple[int, int] = (2, 2), **options: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "run", *nodes, "127.0.0.1", **options)


@pytest.fixture(params=["memory", "tcp", "file", "etcd"])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return what opens a backend and its store in one place, once for each node."""
    opened: list[EndpointRendezvousBackend] = []
    place = f"127.0.0.1:{free_port()}"

    def open_one() -> tuple[EndpointRendezvousBackend, Any]:
        match request.param:
            case "memory":
                backend = EndpointRendezvousBackend(f"memory://{place}", "run")
                store: Any = backend.make_store()
            case "tcp":
                backend, store = create_backend(params("c10d", place))
            case "file":
                backend, store = create_backend(params("c10d", str(tmp_path / "meet"), store_type="file"))
            case _:
                endpoint = request.getfixturevalue("etcd_endpoint")
                backend, store = create_backend(params("etcd-v2", endpoint, namespace=f"from/{place}"))
        opened.append(backend)
        return backend, store

    yield open_one
    for backend in reversed(opened):  # The first may host the server of all.
        backend.close()


def test_nodes_meet_on_the_backends_that_they_were_given(open_backend: Open) -> None:
    handlers = []
    for _ in range(2):
        backend, store = open_backend()
        handlers.append(DynamicRendezvousHandler.from_backend("run", store, backend, 2, 3, "127.0.0.1", SOON))
        assert handlers[-1].get_backend() == backend.name
        assert handlers[-1].get_run_id() == "run"
    before = join_all(*handlers)
    assert sorted(info.rank for info in before) == [0, 1]
    before[0].store.set("key", "value")
    assert before[1].store.get("key") == b"value"
    assert before[0].store.underlying_store.get("torch.rendezvous.run.1/key") == b"value"
    backend, store = open_backend()
    third = create_handler(store, backend, params("any", "", (2, 3), last_call_timeout="1"))
    late = in_thread(third.next_rendezvous)
    wait_until(lambda: all(handler.num_nodes_waiting() == 1 for handler in handlers))
    after = [*join_all(*handlers), late.result(PATIENCE)]
    assert [info.world_size for info in after] == [3, 3, 3]
    assert not after[0].store.check(["key"]), "no round sees the keys of the last one"
    assert store.check(["torch.rendezvous.run.1/key"]), "though the store that was given keeps them"
    ends = [in_thread(handlers[0].shutdown)]
    wait_until(third.is_closed)
    ends += [in_thread(handler.shutdown) for handler in (handlers[1], third)]
    assert all(end.result(PATIENCE) for end in ends)
    with pytest.raises(RendezvousClosedError):
        third.next_rendezvous()


def test_the_state_of_the_backend_and_the_run_do_not_meet(open_backend: Open) -> None:
    backend, _ = open_backend()
    handler = DynamicRendezvousHandler.from_backend("run", None, backend, 1, 1, "127.0.0.1", SOON)
    created = backend.set_state(b"mine")
    assert created is not None
    info = handler.next_rendezvous()
    info.store.set("key", "in the round's own store")
    assert backend.get_state() == (b"mine", created[1])
    assert handler.shutdown()
    assert backend.get_state() == (b"mine", created[1])


def test_all_have_one_store_beside_the_backend(open_backend: Open) -> None:
    """It is the same for all, whoever opens it first, and no round clears it."""
    (one, first), (_, second) = open_backend(), open_backend()
    waits = in_thread(second.get, "key")
    first.set("key", "value")
    assert waits.result(PATIENCE) == b"value"
    for _ in range(2):
        handler = DynamicRendezvousHandler.from_backend("run", first, one, 1, 1, "127.0.0.1", SOON)
        for _ in range(2):
            handler.next_rendezvous()
        try:
            raise RuntimeError("leave, and do not close")
        except RuntimeError:
            assert handler.shutdown()
    assert open_backend()[1].get("key") == b"value"
    assert first.timeout == timedelta(seconds=60)


def test_the_settings_are_the_classics() -> None:
    with EndpointRendezvousBackend(f"memory://settings-{next(_names)}", "run") as backend:
        handler = DynamicRendezvousHandler.from_backend("run", None, backend, 2, 4)
        settings = handler.settings
        assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("run", 2, 4)
        assert vars(settings.timeout) == vars(RendezvousTimeout())
        assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=1), 5)
        told = DynamicRendezvousHandler.from_backend("run", None, backend, 1, 1, "here", SOON, 7, 3).settings
        assert (told.timeout, told.keep_alive_interval, told.keep_alive_max_attempt) == (SOON, timedelta(seconds=7), 3)
        made = create_handler(None, backend, params("any", "", join_timeout="9", keep_alive_interval="4"))
        assert made.settings.timeout.join == timedelta(seconds=9)
        assert made.settings.keep_alive_interval == timedelta(seconds=4)
        assert not handler.use_agent_store
        assert isinstance(handler, RendezvousHandler)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"run_id": ""}, ValueError, "run_id"),
        ({"min_nodes": 0}, ValueError, "nodes"),
        ({"min_nodes": -1}, ValueError, "nodes"),
        ({"min_nodes": 3}, ValueError, "nodes"),
        ({"keep_alive_interval": None}, TypeError, "keep_alive_interval"),
        ({"keep_alive_interval": "5"}, TypeError, "keep_alive_interval"),
        ({"keep_alive_interval": 0}, ValueError, "keep_alive_interval"),
        ({"keep_alive_max_attempt": None}, TypeError, "keep_alive_max_attempt"),
        ({"keep_alive_max_attempt": 1}, ValueError, "keep_alive_max_attempt"),
    ],
)
def test_a_wrong_setting_is_an_error_at_once(wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    with EndpointRendezvousBackend(f"memory://wrong-{next(_names)}", "run") as backend:
        given: dict[str, Any] = {"run_id": "run", "store": None, "backend": backend, "min_nodes": 1, "max_nodes": 2}
        with pytest.raises(error, match=text):
            DynamicRendezvousHandler.from_backend(**given | wrong)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"join_timeout": "0"}, ValueError),
        ({"last_call_timeout": "0.5"}, ValueError),
        ({"close_timeout": "x"}, ValueError),
        ({"heartbeat_timeout": -1}, ValueError),
        ({"keep_alive_interval": None}, TypeError),
        ({"keep_alive_max_attempt": None}, TypeError),
    ],
)
def test_a_wrong_option_is_an_error_at_once(option: dict[str, Any], error: type[Exception]) -> None:
    with (
        EndpointRendezvousBackend(f"memory://wrong-{next(_names)}", "run") as backend,
        pytest.raises(error, match=next(iter(option))),
    ):
        create_handler(None, backend, params("any", "", **option))


def test_what_create_handler_takes() -> None:
    with pytest.raises(TypeError, match="RendezvousParameters"):
        create_handler()  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="RendezvousParameters"):
        create_handler("tcp://head:29400")  # type: ignore[call-overload]
    wrong: list[Any] = ["tcp://head:29400", object(), ListBackend, type("NoBackend", (), {"name": "no"})()]
    for backend in wrong:
        with pytest.raises(TypeError, match=r"name, get_state\(\) and set_state\(\)"):
            create_handler(None, backend, params("any", ""))
        with pytest.raises(TypeError, match=r"name, get_state\(\) and set_state\(\)"):
            DynamicRendezvousHandler.from_backend("run", None, backend, 1, 2)
    for store in (5, params("any", "")):
        with pytest.raises(TypeError, match=r"a store has get\(\) and set\(\)"):
            create_handler(store, ListBackend([]), params("any", ""))
    with pytest.raises(TypeError, match="create_backend takes RendezvousParameters"):
        create_backend("tcp://head:29400")  # type: ignore[arg-type]


def test_a_handler_holds_the_backend_whose_server_it_needs() -> None:
    port = free_port()

    def make(is_host: str) -> DynamicRendezvousHandler:
        backend, store = create_backend(params("c10d", f"127.0.0.1:{port}", is_host=is_host))
        return create_handler(store, backend, params("any", "", last_call_timeout="1"))

    handlers = [make("true"), make("false")]
    gc.collect()
    infos = join_all(*handlers)
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    ended = in_thread(handlers[0].shutdown)
    wait_until(handlers[1].is_closed)
    assert handlers[1].shutdown()
    assert ended.result(PATIENCE)


def test_a_handler_takes_any_carrier() -> None:
    """Also one without an endpoint: then the node's address is that of its machine."""
    endpoint = f"memory://carrier-{next(_names)}"

    async def open_one(run_id: str) -> Backend:
        return await start_backend(endpoint, run_id)

    settings = RendezvousSettings("run", 2, 2, SOON)
    handlers = [DynamicRendezvousHandler("own", Carrier("a place", open_one), settings) for _ in range(2)]
    infos = join_all(*handlers)
    assert sorted(info.rank for info in infos) == [0, 1]
    assert infos[0].bootstrap_store_info.master_addr == find_local_address()
    ends = [in_thread(handler.shutdown) for handler in handlers]
    assert all(end.result(PATIENCE) for end in ends)
    later = DynamicRendezvousHandler("own", Carrier("a place", open_one), settings)
    assert later.is_closed(), "it is the same place"


class ListBackend(RendezvousBackend):
    """What a user would write: all states ever, the last one counts."""

    def __init__(self, states: list[bytes]) -> None:
        self._states = states

    @property
    def name(self) -> str:
        return "list"

    def get_state(self) -> tuple[bytes, Any] | None:
        return (self._states[-1], len(self._states)) if self._states else None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        won = len(self._states) == (token or 0)
        if won:
            self._states.append(state)
        found = self.get_state()
        return None if found is None else (*found, won)


@pytest.mark.parametrize("kind", ["list", "c10d"])
def test_a_backend_that_a_user_wrote_carries_a_rendezvous(kind: str) -> None:
    states: list[bytes] = []
    with create_store(True, "127.0.0.1") as store:
        own: list[RendezvousBackend] = [ListBackend(states), ListBackend(states)]
        given = own if kind == "list" else [C10dRendezvousBackend(store, "run") for _ in range(2)]
        handlers = [
            DynamicRendezvousHandler.from_backend("run", store, backend, 2, 2, "127.0.0.1", SOON) for backend in given
        ]
        infos = join_all(*handlers)
        assert sorted(info.rank for info in infos) == [0, 1]
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == b"value"
        ended = in_thread(handlers[0].shutdown)
        wait_until(handlers[1].is_closed)
        assert handlers[1].shutdown()
        assert ended.result(PATIENCE)


class ExitingBackend(ListBackend):
    """One that ends its process, or tries to, wherever it is told to."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__([])
        self._where = where
        self._error = error

    def __getattribute__(self, name: str) -> Any:
        if name == "_error" or object.__getattribute__(self, "_where") != name:
            return object.__getattribute__(self, name)
        if name == "name":
            raise self._error

        def end(*_: object) -> None:
            raise self._error

        return end


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["get_state", "set_state"])
def test_a_backend_that_exits_does_not_end_the_loop_of_all(where: str, error: BaseException) -> None:
    with EndpointRendezvousBackend("memory://others", "run") as other, create_store(True, "127.0.0.1") as store:
        backend = ExitingBackend(where, error)
        handler = DynamicRendezvousHandler.from_backend("run", store, backend, 1, 1, "127.0.0.1", SOON)
        with pytest.raises(RendezvousConnectionError, match=rf"of the list backend raised {type(error).__name__}"):
            handler.next_rendezvous()
        assert handler.shutdown() is False
        assert other.get_state() is None, "the loop is there"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_exit_on_the_loop_is_one_of_the_caller(error: BaseException) -> None:
    async def end() -> None:
        raise error

    async def done() -> str:
        return "done"

    lease, other = LoopLease("one", done), LoopLease("another", done)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        lease.call(end)
    assert other.call(done) == "done"
    lease.release()
    other.close()


_SQLITE_NODE = """
import sqlite3, sys
from rendezvous_async.sync import DynamicRendezvousHandler, RendezvousBackend

class RowBackend(RendezvousBackend):
    name = "sqlite"

    def __init__(self, path):
        self.path = path
        with self.open() as db:
            db.execute("CREATE TABLE IF NOT EXISTS row (id INTEGER PRIMARY KEY, state BLOB, token INTEGER)")

    def open(self):
        return sqlite3.connect(self.path, timeout=2)

    def get_state(self):
        with self.open() as db:
            return db.execute("SELECT state, token FROM row").fetchone()

    def set_state(self, state, token=None):
        with self.open() as db:
            if token is None:
                done = db.execute("INSERT OR IGNORE INTO row VALUES (1, ?, 1)", (state,))
            else:
                done = db.execute("UPDATE row SET state = ?, token = token + 1 WHERE token = ?", (state, token))
            found = db.execute("SELECT state, token FROM row").fetchone()
            return found and (*found, done.rowcount == 1)

handler = DynamicRendezvousHandler.from_backend("run", None, RowBackend(sys.argv[1]), 2, 2, "127.0.0.1")
info = handler.next_rendezvous()
info.store.barrier()
print(info.rank, info.world_size, flush=True)
sys.exit(not handler.shutdown())
"""


def test_two_processes_meet_in_a_row_of_sqlite(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SQLITE_NODE, str(tmp_path / "rows.db")]
    nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(node.communicate(timeout=PATIENCE)[0] for node in nodes) == ["0 2\n", "1 2\n"]
    assert [node.returncode for node in nodes] == [0, 0]


# create_backend


def test_the_endpoints_of_c10d(tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    for type_of_store, endpoint, kind in (
        ("tcp", place, "tcp"),
        (" TCP ", place, "tcp"),
        (None, place, "tcp"),
        ("File", str(tmp_path / "meet"), "file"),
    ):
        options: dict[str, Any] = {} if type_of_store is None else {"store_type": type_of_store}
        backend, store = c10d.create_backend(params("a name of the user's", endpoint, **options))
        with backend:
            assert backend.name == kind
            assert backend.endpoint.scheme == kind
            store.set("key", "value")
            assert store.get("key") == b"value"
    backend, _ = create_backend(params("file", str(tmp_path / "meet")))
    backend.close()
    assert backend.name == "file"


def test_a_file_without_an_endpoint_is_a_directory_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    places = []
    for _ in range(2):
        with c10d.create_backend(params("c10d", "", store_type="file"))[0] as backend:
            places.append(Path(backend.endpoint.path))
    assert places[0] != places[1]
    for place in places:
        assert place.parent == tmp_path
        assert place.stat().st_mode & 0o077 == 0, "nobody else can read it"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(RendezvousError, match="temporary"):
        c10d.create_backend(params("c10d", "", store_type="file"))


def test_a_path_that_cannot_be_had_is_a_connection_error(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(RendezvousConnectionError):
        c10d.create_backend(params("c10d", str(tmp_path / "taken"), store_type="file"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store_type": "hash"}, "store_type"),
        ({"store_type": ""}, "store_type"),
        ({"read_timeout": "0"}, "read_timeout"),
        ({"read_timeout": -10}, "read_timeout"),
        ({"read_timeout": "10.5"}, "read_timeout"),
        ({"is_host": "maybe"}, "is_host"),
    ],
)
def test_wrong_options_of_c10d(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        c10d.create_backend(params("c10d", "localhost:1", **options))


def test_who_hosts_the_store_of_c10d() -> None:
    port = free_port()
    with pytest.raises(RendezvousConnectionError):
        c10d.create_backend(params("c10d", f"127.0.0.1:{port}", is_host="false", read_timeout="1"))
    host, _ = c10d.create_backend(params("c10d", f"127.0.0.1:{port}", is_host="1"))
    with host:
        with pytest.raises(RendezvousConnectionError):
            c10d.create_backend(params("c10d", f"127.0.0.1:{port}", is_host="true", read_timeout="1"))
        for is_host in ("no", None):  # By default one that finds the port taken is a client.
            with c10d.create_backend(params("c10d", f"127.0.0.1:{port}", is_host=is_host))[0] as client:
                assert client.set_state(b"x") is not None or is_host is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"protocol": "ftp"}, "protocol"),
        ({"protocol": ""}, "protocol"),
        ({"protocol": "http", "ssl_cert": "cert.pem"}, "'protocol' is 'http', .* 'ssl_cert' is set"),
        ({"read_timeout": "0"}, "read_timeout"),
        ({"read_timeout": "x"}, "read_timeout"),
        ({"ca_cert": "/nowhere/ca.pem"}, "nowhere"),
    ],
)
def test_wrong_options_of_etcd(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        etcd.create_backend(params("etcd-v2", "localhost:1", **options))


def test_etcd_that_cannot_be_reached() -> None:
    with pytest.raises(RendezvousConnectionError):
        etcd.create_backend(params("etcd-v2", f"127.0.0.1:{free_port()}", protocol="HTTP", read_timeout="1"))


@pytest.mark.parametrize("protocol", [None, "HTTPS"])
def test_etcd_over_tls(tmp_path: Path, protocol: str | None) -> None:
    """The files of the classic's options are used: each side asks for the other's certificate."""
    if etcd_program() is None:
        pytest.skip("no etcd program")
    ca, cert, key = write_certificates(tmp_path)
    context = mutual_context(ca, cert, key)
    with EtcdCluster(ca=ca, cert=cert, key=key, client_auth=True, client_tls=context) as cluster:
        place = cluster.endpoint.removeprefix("etcds://")
        options: dict[str, Any] = {
            "ca_cert": ca,
            "ssl_cert": cert,
            "ssl_cert_key": key,
            "protocol": protocol,
            "read_timeout": "20",
        }
        backend, store = etcd.create_backend(params("etcd-v2", place, **options))
        with backend:
            assert backend.endpoint.scheme == "etcds"
            store.set("key", "value")
            assert backend.set_state(b"state") is not None
        without_ca: dict[str, Any] = {"protocol": "https", "read_timeout": "2"}
        for lost in (without_ca, options | {"ssl_cert": None, "ssl_cert_key": None}):
            with pytest.raises(RendezvousConnectionError):
                etcd.create_backend(params("etcd-v2", place, **lost))
