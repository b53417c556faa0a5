"""The classic's abstract classes: what a subclass must have, and what it need not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rendezvous_async import sync
from rendezvous_async.sync import (
    RendezvousBackend,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

HANDLER = {
    "get_backend": lambda self: "own",
    "next_rendezvous": lambda self: RendezvousInfo("a store", 0, 1, RendezvousStoreInfo("here", 1)),
    "is_closed": lambda self: False,
    "set_closed": lambda self: None,
    "num_nodes_waiting": lambda self: 0,
    "get_run_id": lambda self: "run",
    "shutdown": lambda self: True,
}
BACKEND = {
    "name": property(lambda self: "own"),
    "get_state": lambda self: None,
    "set_state": lambda self, state, token=None: None,
}


@pytest.mark.parametrize(
    ("base", "methods", "missing"),
    [(RendezvousHandler, HANDLER, name) for name in HANDLER] + [(RendezvousBackend, BACKEND, name) for name in BACKEND],
)
def test_an_incomplete_subclass_cannot_be_made(base: type, methods: dict[str, Any], missing: str) -> None:
    incomplete = type("Incomplete", (base,), {name: method for name, method in methods.items() if name != missing})
    with pytest.raises(TypeError, match=missing):
        incomplete()


def test_a_handler_of_a_users_own() -> None:
    own: Any = type("Own", (RendezvousHandler,), HANDLER)()
    assert not own.use_agent_store
    registry = RendezvousHandlerRegistry()
    registry.register("own", lambda params: own)
    handler = registry.create_handler(RendezvousParameters("own", "", "run", 1, 1))
    assert handler is own
    info = handler.next_rendezvous()
    assert (info.store, info.rank, info.world_size) == ("a store", 0, 1)
    assert info.bootstrap_store_info == RendezvousStoreInfo("here", 1)
    with pytest.raises(AttributeError):
        info.rank = 1


def test_a_backend_of_a_users_own() -> None:
    own: Any = type("Own", (RendezvousBackend,), BACKEND)()
    assert (own.name, own.get_state(), own.set_state(b"x")) == ("own", None, None)


@pytest.mark.parametrize(
    "error",
    [
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    ],
)
def test_all_errors_are_rendezvous_errors(error: type[RendezvousError]) -> None:
    assert issubclass(error, RendezvousError)
    assert issubclass(RendezvousError, Exception)


def test_everything_public_is_there_and_documented() -> None:
    assert sync.__all__ == sorted(set(sync.__all__))
    for name in sync.__all__:
        thing = getattr(sync, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name
