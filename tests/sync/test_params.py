"""Parameters, registry and endpoints of the blocking facade, as the classic has them."""

from __future__ import annotations

import itertools
import logging
import math
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rendezvous_async.node.addresses import address_toward, find_local_address
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.sync import (
    RendezvousHandlerRegistry,
    RendezvousParameters,
    RendezvousSettings,
    RendezvousTimeout,
    create_handler,
    get_rendezvous_handler,
    parse_rendezvous_endpoint,
    rendezvous_handler_registry,
)
from rendezvous_async.sync.options import endpoint_options, find_endpoint, kind_of
from rendezvous_async.sync.registry import make_handler
from tests.ports import free_port

_names = itertools.count()


def params(backend: str = "memory", endpoint: str = "", **options: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint or f"params-{next(_names)}", "run", 1, 2, **options)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, ("localhost", 123)),
        ("", ("localhost", 123)),
        ("  ", ("localhost", 123)),
        ("host", ("host", 123)),
        ("host:29500", ("host", 29500)),
        (" my-host.example:0 ", ("my-host.example", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]", ("::1", 123)),
        ("[2001:db8::1]:29500", ("2001:db8::1", 29500)),
    ],
)
def test_endpoints(endpoint: str | None, expected: tuple[str, int]) -> None:
    assert parse_rendezvous_endpoint(endpoint, 123) == expected


@pytest.mark.parametrize("endpoint", ["host:", "host:x", "host:-1", "host:65536", "host:123456", "~", "ho st:1"])
def test_wrong_endpoints(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_rendezvous_endpoint(endpoint, 123)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, True), (0, False), (True, True), ("Yes", True), ("t", True), ("N", False), ("false", False), (None, None)],
)
def test_truth_values(value: object, expected: bool | None) -> None:
    assert params(flag=value).get_as_bool("flag") is expected


def test_numbers_and_defaults() -> None:
    given = params(number="12", text="x", fraction="0.5")
    assert given.get("text") == "x"
    assert given.get("no", 7) == 7
    assert given.get_as_int("number") == 12
    assert given.get_as_int("no") is None
    assert given.get_as_int("no", 3) == 3
    assert given.get_as_bool("no", True) is True
    for name in ("text", "fraction"):
        with pytest.raises(ValueError, match=name):
            given.get_as_int(name)
    for wrong in (2, "maybe", 0.5, b"1"):
        with pytest.raises(ValueError, match="flag"):
            params(flag=wrong).get_as_bool("flag")


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (2, 1)])
def test_wrong_counts_of_nodes(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="nodes"):
        RendezvousParameters("memory", "x", "run", low, high)
    for backend in ("", None):
        with pytest.raises(ValueError, match="name"):
            RendezvousParameters(backend, "x", "run", 1, 1)  # type: ignore[arg-type]


def test_timeouts() -> None:
    timeout = RendezvousTimeout(last_call=timedelta(seconds=1))
    assert [timeout.join, timeout.close, timeout.heartbeat] == [timedelta(seconds=s) for s in (600, 30, 5)]
    assert timeout.regroup == timedelta(seconds=1)
    assert RendezvousTimeout().regroup == timedelta(seconds=3)
    for name in ("join", "last_call", "close", "heartbeat", "regroup"):
        with pytest.raises(ValueError, match=name):
            RendezvousTimeout(**{name: timedelta(0)})


def test_the_registry() -> None:
    registry = RendezvousHandlerRegistry()
    handler = create_handler(params())
    registry.register("memory", lambda _: handler)
    made = params()
    assert registry.create_handler(made) is handler
    with pytest.raises(ValueError, match="registered"):
        registry.register("memory", create_handler)
    with pytest.raises(ValueError, match="name"):
        registry.register("", create_handler)
    with pytest.raises(ValueError, match="not registered; use one of memory"):
        registry.create_handler(params("unknown"))
    registry.register("other", lambda _: handler)
    with pytest.raises(RuntimeError, match="other"):
        registry.create_handler(params("other"))


def test_a_handler_by_name() -> None:
    """The classic's names have our handlers, and ``get_rendezvous_handler`` asks the registry of the process."""
    for name in ("c10d", "etcd-v2", "etcd", "tcp", "async-tcp", "async-etcd"):
        handler = get_rendezvous_handler(params(name, "localhost:1"))
        assert handler.get_backend() == name
        assert handler.get_run_id() == "run"
    with pytest.raises(ValueError, match="not registered"):
        get_rendezvous_handler(params("static", "localhost:1"))
    own = create_handler(params())
    name = f"own-{next(_names)}"
    rendezvous_handler_registry.register(name, lambda _: own)
    with pytest.raises(RuntimeError, match=name):
        get_rendezvous_handler(params(name))
    assert create_handler(params=params()).get_backend() == "memory"


def test_the_type_of_c10ds_store(tmp_path: Path) -> None:
    def where(backend: str, endpoint: str, **options: Any) -> str:
        given = params(backend, endpoint, **options)
        return str(find_endpoint(kind_of(given), given))

    assert where("c10d", "head") == where("c10d", "head", store_type=" TCP ") == "tcp://head:29400"
    assert where("c10d", str(tmp_path), store_type="File") == where("file", str(tmp_path), store_type="file")
    assert where("async-tcp", "head", store_type="tcp") == "tcp://head:29400"
    for backend, wrong in (("c10d", "hash"), ("c10d", None), ("c10d", 1), ("async-tcp", "file"), ("file", "tcp")):
        with pytest.raises(ValueError, match="store_type"):
            where(backend, str(tmp_path), store_type=wrong)


def test_etcd_over_tls_is_never_lost() -> None:
    """Whatever of the classic's options asks for TLS: it is used, or refused."""

    def where(endpoint: str = "a:1", **options: Any) -> tuple[str, dict[str, Any]]:
        given = params("etcd-v2", endpoint, **options)
        found = find_endpoint(kind_of(given), given)
        return found.scheme, endpoint_options("etcd", given, found)

    assert where() == where(protocol=" HTTP ") == where(ssl_cert="", ca_cert=None) == ("etcd", {})
    assert where(protocol="https") == where("etcds://a:1", protocol="https") == ("etcds", {})
    files = {"ssl_cert": "c.pem", "ssl_cert_key": "k.pem", "ca_cert": "ca.pem"}
    assert where(**files) == where(protocol="https", **files)
    assert where(**files) == ("etcds", {"cert": "c.pem", "key": "k.pem", "ca": "ca.pem"})
    assert where(ssl_cert="both.pem") == ("etcds", {"cert": "both.pem", "key": "both.pem"})
    for wrong in ("ftp", "", 1, "httpss"):
        with pytest.raises(ValueError, match="protocol"):
            where(protocol=wrong)
    for contradiction in (
        {"protocol": "http", "ca_cert": "ca.pem"},
        {"endpoint": "etcd://a:1", "protocol": "https"},
        {"endpoint": "etcds://a:1", "protocol": "http"},
        {"ca_cert": "a.pem", "tls_ca": "b.pem"},
    ):
        with pytest.raises(ValueError):
            where(**contradiction)


def test_options_of_the_classic_are_whole_positive_seconds() -> None:
    settings = make_handler(
        params(
            join_timeout="9",
            last_call_timeout=8,
            close_timeout="7",
            heartbeat_timeout="6",
            keep_alive_interval="2",
            keep_alive_max_attempt="4",
            regroup_timeout="0.5",
            grow_timeout="1.5",
            ranks="sorted",
            timeout=900,
        )
    ).settings
    timeout = settings.timeout
    assert [timeout.join, timeout.last_call, timeout.close, timeout.heartbeat, timeout.regroup, timeout.grow] == [
        timedelta(seconds=s) for s in (9, 8, 7, 6, 0.5, 1.5)
    ]
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=2), 4)
    assert settings.ranks == "sorted"
    for name in ("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval"):
        for value in ("0", "0.5", 0.5, "-1", "x"):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(ValueError):
                create_handler(params(**wrong))
    for name, value in (
        ("ranks", "random"),
        ("ranks", "label:x"),
        ("keep_alive_max_attempt", "1"),
        ("regroup_timeout", "x"),
    ):
        wrong = {name: value}
        with pytest.raises(ValueError):
            create_handler(params(**wrong))
    assert make_handler(params(ranks="label:rack", label_rack="r7")).settings.ranks == "label:rack"


@pytest.mark.parametrize(
    "name", ["join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval"]
)
@pytest.mark.parametrize("value", [0, "0", -1, 0.5, "0.5", True, math.nan, math.inf, 10**20, "x", b"1", [1]])
def test_a_wrong_time_says_what_it_must_be(name: str, value: object) -> None:
    wrong: dict[str, Any] = {name: value}
    wanted = rf"'{name}' must be a whole number of seconds from 1 to 1000000000, not {re.escape(repr(value))}$"
    with pytest.raises(ValueError, match=wanted):
        create_handler(params(**wrong))


@pytest.mark.parametrize("name", ["keep_alive_interval", "keep_alive_max_attempt", "read_timeout"])
def test_an_option_that_must_be_there_is_not_none(name: str) -> None:
    none: dict[str, Any] = {name: None}
    with pytest.raises(TypeError, match=f"'{name}' must be a whole number, not None"):
        create_handler(params("async-tcp", "localhost:1", **none))


def test_none_is_the_default_of_the_others() -> None:
    waits = ("join", "last_call", "close", "heartbeat", "regroup", "grow")
    names = tuple(f"{wait}_timeout" for wait in waits)
    none: dict[str, Any] = dict.fromkeys(names)
    timeout = make_handler(params(**none)).settings.timeout
    assert vars(timeout) == vars(RendezvousTimeout())


@pytest.mark.parametrize("value", [0, -1, "x", "", math.nan, math.inf, 1e300, [1], True])
def test_a_wrong_time_to_regroup(value: object) -> None:
    wrong: dict[str, Any] = {"regroup_timeout": value}
    with pytest.raises(ValueError, match="regroup_timeout"):
        create_handler(params(**wrong))


@pytest.mark.parametrize("value", [-1, "-0.5", "x", "", math.nan, -math.inf, 1e300, [1], True])
def test_a_wrong_time_to_grow(value: object) -> None:
    wrong: dict[str, Any] = {"grow_timeout": value}
    with pytest.raises(ValueError, match="grow_timeout"):
        create_handler(params(**wrong))


@pytest.mark.parametrize(
    ("value", "grow"),
    [(0, timedelta(0)), ("0", timedelta(0)), ("0.5", timedelta(seconds=0.5)), ("inf", timedelta.max)],
)
def test_times_to_grow(value: object, grow: timedelta) -> None:
    given: dict[str, Any] = {"grow_timeout": value}
    handler = make_handler(params(**given))
    assert handler.settings.timeout.grow == grow
    assert RendezvousTimeout(grow=grow).grow == grow
    with pytest.raises(ValueError, match="the grow timeout must be 0 or more, not -1 day"):
        RendezvousTimeout(grow=timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("value", "sizes"),
    [
        ("4:16:4", "4:16:4"),
        ("4/8/16", "4,8,16"),
        ("4,8,16", "4,8,16"),
        ([4, 8, 16], "4,8,16"),
        ("2:16", "2:16"),
        (8, "8:8"),
        (None, ""),
    ],
)
def test_the_sizes_of_a_world(value: object, sizes: str) -> None:
    given = RendezvousParameters("memory", "sizes", "run", 2, 16, sizes=value)
    settings = make_handler(given).settings
    assert (settings.sizes, settings.min_nodes, settings.max_nodes) == (sizes, 2, 16)
    assert f"sizes={sizes!r}" in repr(settings)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "4:32:4",
            r"the sizes '4:32:4' must all be from min_nodes to max_nodes \(torchrun: --nnodes\), which are 2:16",
        ),
        ("1/4/16", "'1,4,16' must all be from min_nodes"),
        ("4/16/8", "the rendezvous option 'sizes': .*16 is before 8"),
        ("4:15:4", "'sizes': .*do not reach 15"),
        ("", "'sizes'"),
        ("4;8", "'sizes'"),
        (4.5, "'sizes': .*4.5"),
        (True, "'sizes'"),
    ],
)
def test_wrong_sizes_say_why(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_handler(RendezvousParameters("memory", "sizes", "run", 2, 16, sizes=value))


def test_domains(caplog: pytest.LogCaptureFixture) -> None:
    whole: dict[str, Any] = {"domain": "nvlink", "per_domain": "2"}
    settings = make_handler(params(**whole, label_nvlink="a")).settings
    assert (settings.domain, settings.per_domain) == ("nvlink", 2)
    assert not caplog.messages
    assert not make_handler(params(**whole)).is_closed()
    assert ["so it can only be a spare" in text for text in caplog.messages] == [True]
    assert "option label_nvlink" in caplog.messages[0]
    for wrong, words in (
        ({"per_domain": 2}, "per_domain=2 needs a domain"),
        ({"domain": "x", "per_domain": 0}, "per_domain must be from 1"),
        ({"domain": "x", "per_domain": 3}, "none of the sizes 1:2 is a multiple of per_domain=3"),
        ({"domain": "x", "per_domain": "1.5"}, "'per_domain' must be a whole number"),
        ({"domain": ""}, "'domain' must be the name of a label, not ''"),
        ({"domain": "x", "label_x": ""}, "the label 'x' is empty, and domain='x' goes by its value"),
        ({"ranks": "label:x", "label_x": ""}, "the label 'x' is empty, and ranks='label:x' goes by its value"),
        ({"label_x": None}, "'label_x' must be label_<name> with a value, not None"),
        ({"label_": "y"}, "'label_' must be label_<name> with a value, not 'y'"),
    ):
        mistaken: dict[str, Any] = wrong
        with pytest.raises(ValueError, match=words):
            create_handler(params(**mistaken))
    with pytest.raises(TypeError, match="domain must be a string, not 5"):
        create_handler(params(domain=5))


@pytest.mark.parametrize("value", [1, 1.5, True, "x", [1], math.nan])
def test_a_wrong_count_of_keep_alives(value: object) -> None:
    with pytest.raises(ValueError, match="keep_alive_max_attempt"):
        create_handler(params(keep_alive_max_attempt=value))


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat", "regroup", "grow"])
@pytest.mark.parametrize("value", [5, 0.5, "5", True])
def test_timeouts_are_timedeltas(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"the {name} timeout must be a timedelta, not {re.escape(repr(value))}"):
        RendezvousTimeout(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", 5),
        *(("endpoint", value) for value in (5, b"x")),
        *(("run_id", value) for value in (None, 5)),
        *((name, value) for name in ("min_nodes", "max_nodes") for value in (None, "1", 1.0, True)),
        *(("local_addr", value) for value in (5, b"x")),
    ],
)
def test_parameters_of_the_wrong_type_are_named(name: str, value: Any) -> None:
    given = {"backend": "memory", "endpoint": "x", "run_id": "run", "min_nodes": 1, "max_nodes": 1, name: value}
    with pytest.raises(TypeError, match=rf"{name} must be .*not {re.escape(repr(value))}$"):
        RendezvousParameters(**given)


def test_no_endpoint_and_no_address_are_defaults() -> None:
    nowhere = RendezvousParameters("tcp", None, "run", 1, 1, local_addr=None)  # type: ignore[arg-type]
    assert make_handler(nowhere).get_backend() == "tcp"
    assert str(find_endpoint("tcp", nowhere)) == "tcp://localhost:29400"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("run_id", value) for value in (None, 5)),
        *((name, value) for name in ("min_nodes", "max_nodes") for value in (None, "1", 1.0, True)),
        *(("timeout", value) for value in (None, 30)),
        *(("keep_alive_interval", value) for value in (None, 5)),
        *(("keep_alive_max_attempt", value) for value in (None, "5", 2.0, True)),
        ("ranks", None),
        *(("sizes", value) for value in (None, 4, ["4"])),
        *(("domain", value) for value in (None, b"x")),
        *(("per_domain", value) for value in (None, "2", 2.0, True)),
    ],
)
def test_settings_of_the_wrong_type_are_named(name: str, value: Any) -> None:
    given = {"run_id": "run", "min_nodes": 1, "max_nodes": 1, "timeout": RendezvousTimeout(), name: value}
    with pytest.raises(TypeError, match=rf"^{name} must be .*not {re.escape(repr(value))}$"):
        RendezvousSettings(**given)


def test_options_without_use_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    create_handler(params("async-tcp", "localhost:29500", store_type="tcp", last_cal_timeout="3", timeout=900))
    create_handler(params("async-etcd", "a:1,b:2", is_host="true", store_type="tcp", protocol="http", ca_cert=""))
    create_handler(params("tcp", "localhost:29500", ssl_cert="c.pem"))
    named = " ".join(caplog.messages)
    assert all(name in named for name in ("store_type", "last_cal_timeout", "is_host", "ssl_cert"))
    assert not any(f"option {name} " in named for name in ("timeout", "protocol", "ca_cert"))
    assert named.count("store_type") == 1, "it does not apply to etcd"


def test_where_handlers_meet(tmp_path: Path) -> None:
    def where(backend: str, endpoint: str, **options: Any) -> str:
        given = params(backend, endpoint, **options)
        return str(find_endpoint(kind_of(given), given))

    assert where("async-tcp", "  ") == "tcp://localhost:29400"
    assert where("async-tcp", "head:1234") == "tcp://head:1234"
    assert where("async-tcp", "[::1]:1234") == "tcp://[::1]:1234"
    assert where("async-tcp", "tcp://head?is_host=false") == "tcp://head:29400"
    assert where("async-etcd", "a:1,b") == "etcd://a:1,b:2379"
    assert where("async-etcd", "a:1", tls_ca="ca.pem") == "etcds://a:1"
    assert where("async-file", f"{tmp_path}/meet here") == f"file://{tmp_path}/meet here"
    for backend, endpoint in (("async-file", " "), ("async-tcp", "etcd://a"), ("async-tcp", "head:x")):
        with pytest.raises(ValueError):
            where(backend, endpoint)


def test_what_etcd_gets(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("me:open:sesame\n")

    def options(**given: Any) -> dict[str, Any]:
        asked = params("async-etcd", "a:1", **given)
        return endpoint_options("etcd", asked, find_endpoint("etcd", asked))

    assert options() == {}
    assert options(secret_file=str(secret), read_timeout="7", tls_cert="c.pem", namespace="team") == {
        "user": "me",
        "password": "open:sesame",
        "cert": "c.pem",
        "key": "c.pem",
        "namespace": "team",
        "connect_timeout": 7.0,
    }
    for wrong in ({"secret_file": str(tmp_path / "none")}, {"secret_file": str(tmp_path)}):
        with pytest.raises(ValueError, match="secret_file"):
            options(**wrong)
    secret.write_text("sesame")
    with pytest.raises(ValueError, match="user:password"):
        options(secret_file=str(secret))


def test_what_tcp_gets() -> None:
    def options(endpoint: str = "localhost:1", **given: Any) -> dict[str, Any]:
        asked = params("async-tcp", endpoint, **given)
        return endpoint_options("tcp", asked, find_endpoint("tcp", asked))

    assert options() == {"connect_timeout": 60.0}
    assert options(is_host="no", insecure="1", data_dir="d", read_timeout=5, timeout=900, shared="true") == {
        "is_host": False,
        "insecure": True,
        "data_dir": "d",
        "connect_timeout": 5.0,
    }
    assert options("tcp://localhost:1?is_host=true&connect_timeout=3") == {}
    for wrong in ({"is_host": "maybe"}, {"read_timeout": "0"}):
        with pytest.raises(ValueError):
            options(**wrong)


def test_a_whole_endpoint_is_used_as_it_is() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}?is_host=true&connect_timeout=7"
    handler = create_handler(RendezvousParameters("async-tcp", endpoint, "run", 1, 1))
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown()


def test_the_address_that_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def with_own_name_on_loopback(host: Any, *more: Any, **options: Any) -> Any:
        """As the hosts file of many a system has it."""
        return look_up("127.0.1.1" if host == "head" else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", with_own_name_on_loopback)
    out = find_local_address()
    for endpoint, address in (
        ("tcp://127.0.0.1", "127.0.0.1"),
        ("tcp://localhost", "127.0.0.1"),
        ("memory://here", "127.0.0.1"),
        ("tcp://head", out),
        ("etcd://127.0.0.1,elsewhere", out),
        ("file:///tmp/meet", out),
    ):
        assert address_toward(parse_endpoint(endpoint)) == address


def test_a_secret_is_read_from_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a long enough secret for everybody\n")
    endpoint = f"127.0.0.1:{free_port()}"
    options = {"secret_file": str(secret), "last_call_timeout": "1"}
    one, other = (create_handler(RendezvousParameters("tcp", endpoint, "run", 1, 1, **options)) for _ in range(2))
    assert one.next_rendezvous().world_size == 1
    assert not other.is_closed()
    assert other.shutdown()
    assert one.shutdown()
