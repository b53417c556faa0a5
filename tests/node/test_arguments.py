"""Every argument that users give is checked where they give it, and the error says what is wrong with it."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rendezvous_async import Rendezvous, Timeouts, connect, open_backend, serve
from rendezvous_async.backends.file.directory import Directory, explain
from rendezvous_async.errors import RendezvousConnectionError

GOOD: dict[str, Any] = {"endpoint": "tcp://head", "run_id": "job", "nodes": 2}

OPTION_ERRORS = [
    (
        "tcp://head",
        {"secrett": "s"},
        "tcp:// takes no option 'secrett'; did you mean 'secret'? it knows namespace, is_",
    ),
    ("tcp://head?secrett=s", {}, "tcp:// takes no option 'secrett'; did you mean 'secret'?"),
    ("tcp://head", {"colour": "red"}, "tcp:// takes no option 'colour'; it knows namespace"),
    ("tcp://head?is_host=true", {"is_host": False}, "option 'is_host' is given both in the endpoint"),
    ("tcp://head", {"secret": 5}, "secret must be a string or bytes, not int"),
    ("tcp://head", {"secret": ""}, "secret must not be empty"),
    ("tcp://head", {"tls": "maybe"}, "tls must be true or false, not 'maybe'"),
    ("tcp://head", {"tls": 5}, "tls must be true or false, not 5"),
    ("tcp://head", {"tls_ca": 5}, "tls_ca must be a path, not 5"),
    ("tcp://head", {"data_dir": ""}, "data_dir must be a path, not ''"),
    ("tcp://head?is_host=maybe", {}, "is_host must be true or false, not 'maybe'"),
    ("tcp://head?connect_timeout=soon", {}, "connect_timeout must be a number of seconds, not 'soon'"),
    ("tcp://head", {"linger": -1}, "linger must be a positive, finite number of seconds, not -1"),
    ("tcp://head", {"limits": 5}, "limits must be a Limits, not 5"),
    ("tcp://head", {"namespace": ""}, "namespace must be a non-empty string, not ''"),
    ("tcp://head", {"namespace": "x" * 257}, "namespace must have at most 256 characters, not 257: 'xxx"),
    ("file:///dir", {"namespace": "a//b"}, "namespace must have segments of printable characters between single"),
    ("memory://here?namespace=a%0Ab", {}, "namespace must have segments of printable characters between single"),
    ("etcd://a?namespace=a%00b", {}, "namespace must have segments of printable characters between single"),
    ("memory://here?color=red", {}, "memory:// takes no option 'color'; it knows namespace"),
    ("memory://here", {"secret": "s"}, "memory:// takes no option 'secret'"),
    ("file:///dir?fsink=false", {}, "file:// takes no option 'fsink'; did you mean 'fsync'?"),
    ("file:///dir", {"fsync": 5}, "fsync must be true or false, not 5"),
    ("etcd://a,b", {"call_timeut": 2}, "etcd:// takes no option 'call_timeut'; did you mean 'call_timeout'?"),
    ("etcds://a", {"ca": 5}, "ca must be a path, not 5"),
    ("etcd://a", {"secret": "s"}, "etcd:// takes no option 'secret'; use user= and password=; it knows namespace"),
    ("etcds://a?secret=s", {}, "etcds:// takes no option 'secret'; use user= and password=; it knows namespace"),
    ("etcd://a", {"tls": True}, "etcd:// takes no option 'tls'; it knows namespace"),
    ("etcd://a", {"password": 5, "user": "u"}, "password must be a string or bytes, not int"),
    ("etcd://a", {"user": "u"}, "etcd:// needs both user and password, or neither"),
    ("etcd://a", {"ca": "/ca.pem"}, "ca: certificates are for etcds://, not for etcd://"),
    ("etcds://a", {"cert": "/cert.pem"}, "a client certificate needs both cert and key"),
    ("udp://head", {}, "endpoint 'udp://head' has the unknown scheme 'udp'; known are etcd, etcds, file, memory, tcp"),
]


@pytest.mark.parametrize(("endpoint", "options", "text"), OPTION_ERRORS)
def test_a_wrong_option_is_refused_by_connect(endpoint: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        connect(endpoint, run_id="job", nodes=2, **options)


@pytest.mark.parametrize(("endpoint", "options", "text"), OPTION_ERRORS)
async def test_a_wrong_option_is_refused_by_open_backend(endpoint: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        await open_backend(endpoint, run_id="job", **options).__aenter__()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"timeouts": 5}, "timeouts must be a Timeouts, for example Timeouts(join=60), not 5"),
        ({"timeouts": {"join": 5}}, "timeouts must be a Timeouts"),
        ({"labels": {"rack": 1}}, 'labels must map strings to strings, for example {"rack": "7"}, not \'rack\': 1'),
        ({"labels": {1: "rack"}}, "not 1: 'rack'"),
        ({"labels": ["rack"]}, 'labels must map strings to strings, for example {"rack": "7"}, not [\'rack\']'),
        ({"labels": "rack"}, "not 'rack'"),
        ({"labels": 0}, "not 0"),
        ({"address": 5}, "address must be a string, not 5"),
        ({"address": "\ud800"}, "address and labels must be strings of at most 1024 characters"),
        ({"rng": 7}, "rng must be a random.Random, not 7"),
        ({"backend": "tcp://head", "endpoint": None}, "backend must be an open Backend, not 'tcp://head'"),
        ({"lables": {}}, "tcp:// takes no option 'lables'; did you mean 'labels'?"),
        ({"timeout": 5}, "tcp:// takes no option 'timeout'; did you mean 'timeouts'?"),
        ({"keepalive_interval": 5}, "did you mean 'keep_alive_interval'?"),
        ({"keep_alive_interval": 0.0009}, "keep_alive_interval must be at least 0.001 s, not 0.0009"),
        (
            {"keep_alive_interval": 8641, "keep_alive_max_attempt": 10},
            "keep_alive_interval * keep_alive_max_attempt must be at most 86400 s, not 8641 * 10",
        ),
        ({"keep_alive_interval": 1e308}, "must be at most 86400 s, not 1e+308 * 5"),
        ({"run_id": b"job"}, "run_id must be a non-empty string, not b'job'"),
        ({"node": 5}, "node must be a non-empty string, not 5"),
        ({"endpoint": b"tcp://head"}, "endpoint must look like scheme://..."),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_of_connect(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        connect(**GOOD | wrong)


async def test_an_endpoint_beside_a_backend_or_in_its_place_shows_no_secret() -> None:
    wrong: Any = "tcp://h?secret=hunter2"
    async with open_backend("memory://here", run_id="job") as backend:
        for arguments in ({"endpoint": wrong, "backend": backend}, {"backend": wrong}):
            with pytest.raises(ValueError, match="'tcp://h'") as caught:
                connect(run_id="job", nodes=2, **arguments)
            assert "hunter2" not in repr(caught.value)


def test_the_bounds_of_keep_alives_and_namespaces_are_allowed() -> None:
    connect(**GOOD, keep_alive_interval=0.001)
    connect(**GOOD, keep_alive_interval=8640, keep_alive_max_attempt=10)
    connect(**GOOD, namespace="x" * 256)
    connect(**GOOD, namespace="/team/project/")


def test_options_that_are_none_are_not_given() -> None:
    connect(**GOOD, data_dir=None, is_host=None, connect_timeout=None)
    connect("tcp://head?is_host=true", run_id="job", nodes=2, is_host=None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"host": 5}, "host must be an address or a name, not 5"),
        ({"host": ""}, "host must be an address or a name, not ''"),
        ({"port": "29400"}, "port must be a number from 0 to 65535, not '29400'"),
        ({"port": 70000}, "not 70000"),
        ({"port": True}, "not True"),
        ({"secret": 5}, "secret must be a string or bytes, not int"),
        ({"data_dir": 5}, "data_dir must be a path, not 5"),
        ({"insecure": "no"}, "insecure must be True or False, not 'no'"),
        ({"limits": {"keys": 5}}, "limits must be a Limits, not {'keys': 5}"),
        ({"tls": 5}, "tls must be true or false, not 5"),
        ({"tls_cert": 5}, "tls_cert must be a path, not 5"),
        ({"disconnect_grace": "1"}, "disconnect_grace must be a number of seconds, not '1'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_a_wrong_argument_of_serve(wrong: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {"host": "127.0.0.1", "port": 0} | wrong
    with pytest.raises(ValueError, match=re.escape(text)):
        await serve(**arguments).__aenter__()


@pytest.mark.parametrize("wrong", [5, None, b"memory://here", ["memory://here"]])
async def test_a_wrong_endpoint_of_open_backend(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"endpoint must look like scheme://\.\.\."):
        await open_backend(wrong, run_id="job").__aenter__()


def test_timeouts_know_their_names() -> None:
    with pytest.raises(TypeError, match="jion"):
        Timeouts(jion=5)  # type: ignore[call-arg]


def test_connect_imports_no_backend_that_it_does_not_need() -> None:
    code = (
        "import sys, rendezvous_async as rdzv\n"
        "for endpoint in ('tcp://head', 'memory://here', 'etcd://a'):\n"
        "    rdzv.connect(endpoint, run_id='job', nodes=2)\n"
        "print([name for name in ('aetcd', 'grpc') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"


# Other event loops


def step_without_a_loop(coroutine: Any) -> None:
    """Take a coroutine's first step as another framework would."""
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


@pytest.mark.parametrize(
    "enter",
    [
        lambda: connect("memory://here", run_id="job", nodes=1).__aenter__(),
        lambda: open_backend("memory://here", run_id="job").__aenter__(),
        lambda: serve("127.0.0.1", 0).__aenter__(),
    ],
    ids=["connect", "open_backend", "serve"],
)
def test_without_asyncio_it_says_that_it_needs_it(enter: Any) -> None:
    with pytest.raises(RuntimeError, match=r"rendezvous_async needs asyncio, .* it does not run under trio"):
        step_without_a_loop(enter())


def test_under_trio_it_says_that_it_needs_asyncio() -> None:
    trio = pytest.importorskip("trio")

    async def main() -> Rendezvous:
        async with connect("memory://here", run_id="job", nodes=1) as rendezvous:
            return rendezvous

    with pytest.raises(RuntimeError, match="rendezvous_async needs asyncio"):
        trio.run(main)


def test_a_path_may_be_a_path(tmp_path: Path) -> None:
    connect(**GOOD, data_dir=tmp_path, tls_ca=tmp_path / "ca.pem")


# What errors say


def test_an_attempt_that_the_headline_tells_is_not_told_twice() -> None:
    attempts = ("a:1: wrong secret", "b:1: silent")
    error = RendezvousConnectionError("cannot reach tcp://a: a:1: wrong secret", attempts)
    assert str(error) == "cannot reach tcp://a: a:1: wrong secret\n  b:1: silent"
    assert error.attempts == attempts


def test_a_directory_that_never_was_there_has_not_been_removed(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    text = f"{path} cannot be created or opened: no such file or directory"
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", Mock(side_effect=missing))
        with pytest.raises(RendezvousConnectionError, match=re.escape(text)):
            Directory.open(str(path))
    assert "it has been removed while in use" in str(explain(str(path), "write in", missing))
    stale = OSError(errno.ESTALE, "Stale file handle")
    assert "it has been removed while in use" in str(explain(str(path), "write in", stale))
    assert str(explain(str(path), "open the directory", stale, was_open=False)).endswith(": Stale file handle")
