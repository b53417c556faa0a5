"""The names that users' code relies on, and what importing them costs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import msgspec
import pytest

import rendezvous_async as rdzv
from rendezvous_async import Change, Rendezvous, Store, World

FIXED = {
    "connect",
    "open_backend",
    "Timeouts",
    "Change",
    "RendezvousError",
    "RendezvousClosedError",
    "RendezvousTimeoutError",
    "RendezvousConnectionError",
    "RendezvousStateError",
    "RendezvousGracefulExitError",
    "RendezvousSettingsError",
    "Spec",
    "Status",
    "Backend",
    "Entry",
    "Listing",
    "Commit",
    "Watch",
    "Session",
    "Token",
    "Condition",
    "Put",
    "Delete",
}
HEAVY = (
    "grpc",
    "aetcd",
    "google.protobuf",
    "torch",
    "rich",
    "numpy",
    "hypothesis",
    "pytest",
    "rendezvous_async.testing",
)


def test_all_names_the_fixed_names() -> None:
    assert set(rdzv.__all__) >= FIXED


def test_every_name_is_there_once_and_in_order() -> None:
    assert rdzv.__all__ == sorted(set(rdzv.__all__))
    for name in rdzv.__all__:
        assert hasattr(rdzv, name)


def test_everything_public_is_documented() -> None:
    for name in rdzv.__all__:
        thing = getattr(rdzv, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and inspect.isfunction(value) and value.__module__ == thing.__module__:
                    assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (Rendezvous, ["join", "worlds", "leave", "close", "scale", "grow", "status", "history", "events"]),
        (World, ["members", "gather", "changed", "until_changed"]),
        (Store, ["set", "get", "compare_set", "add", "wait", "delete", "num_keys", "barrier", "gather"]),
        (rdzv.Backend, ["get", "list", "commit", "watch", "open_session", "aclose", "get_state", "set_state"]),
    ],
    ids=lambda value: value.__name__ if inspect.isclass(value) else "",
)
def test_methods_are_as_designed(owner: type, names: list[str]) -> None:
    for name in names:
        assert callable(getattr(owner, name))


def test_connect_takes_what_the_design_says() -> None:
    parameters = inspect.signature(rdzv.connect).parameters
    keywords = {name: p.default for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for name, default in {
        "run_id": inspect.Parameter.empty,
        "nodes": inspect.Parameter.empty,
        "timeouts": None,
        "keep_alive_interval": 1.0,
        "keep_alive_max_attempt": 5,
        "ranks": "sticky",
        "address": None,
        "labels": None,
        "domain": "",
        "per_domain": 1,
        "secret": None,
        "tls": None,
        "backend": None,
        "node": None,
    }.items():
        assert keywords[name] == default


def test_scaling_takes_what_the_design_says() -> None:
    scale = inspect.signature(Rendezvous.scale).parameters
    assert {name: p.default for name, p in scale.items() if name != "self"} == {"nodes": None, "target": None}
    assert list(inspect.signature(Rendezvous.grow).parameters) == ["self"]
    assert list(msgspec.structs.asdict(rdzv.Spec("2:4"))) == ["nodes", "target", "generation"]


def test_timeouts_have_the_defaults_of_the_design() -> None:
    defaults = msgspec.structs.asdict(rdzv.Timeouts())
    assert defaults == {"join": 600, "last_call": 30, "regroup": None, "close": 30, "heartbeat": 5, "grow": 0}


def test_changes_are_ordered_by_how_final_they_are() -> None:
    order = [Change.CLOSED, Change.EVICTED, Change.MEMBER_LOST, Change.RESIZED, Change.NODES_WAITING]
    assert list(Change) == order


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (rdzv.RendezvousClosedError, [rdzv.RendezvousError]),
        (rdzv.RendezvousTimeoutError, [rdzv.RendezvousError, TimeoutError]),
        (rdzv.RendezvousConnectionError, [rdzv.RendezvousError, ConnectionError]),
        (rdzv.RendezvousStateError, [rdzv.RendezvousError]),
        (rdzv.RendezvousGracefulExitError, [rdzv.RendezvousClosedError]),
        (rdzv.RendezvousSettingsError, [rdzv.RendezvousError]),
        (rdzv.RendezvousSessionError, [rdzv.RendezvousError]),
        (rdzv.RendezvousFencedError, [rdzv.RendezvousError]),
    ],
    ids=lambda value: value.__name__ if inspect.isclass(value) else "",
)
def test_errors_have_the_bases_of_the_design(error: type[Exception], bases: list[type[Exception]]) -> None:
    assert list(error.__bases__) == bases


def test_errors_carry_what_they_say() -> None:
    closed = rdzv.RendezvousClosedError("done", "a", run_id="job")
    assert (closed.reason, closed.by, str(closed)) == ("done", "a", "run 'job' was closed by a: done")
    bare = rdzv.RendezvousClosedError()
    assert str(bare) == "the rendezvous was closed by an unnamed node: no reason given"
    spare = rdzv.RendezvousGracefulExitError("done", "a", run_id="job")
    assert (spare.reason, spare.by) == ("done", "a")
    assert str(spare) == "run 'job' was closed by a: done; this node was a spare, and was not needed"
    late = rdzv.RendezvousTimeoutError("too late", "why")
    assert (late.diagnosis, str(late)) == ("why", "too late\nwhy")
    lost = rdzv.RendezvousConnectionError("no way", ["a: refused", "b: silent"], final=True)
    assert (lost.attempts, lost.final) == (("a: refused", "b: silent"), True)
    assert str(lost) == "no way\n  a: refused\n  b: silent"


def test_importing_the_package_is_light() -> None:
    """In a fresh interpreter; the heavy parts are loaded by whoever needs them."""
    program = "import sys, json, rendezvous_async; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    loaded = json.loads(output)
    assert "rendezvous_async" in loaded
    assert [name for name in loaded if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))] == []
    assert "rendezvous_async.backends.memory" not in loaded, "backends are loaded by their endpoint"
