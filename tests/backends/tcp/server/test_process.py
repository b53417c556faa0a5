"""A process that is a server and nothing else: as many files as it may have connections, and little collecting."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator

import pytest

from rendezvous_async.backends.tcp import Limits
from rendezvous_async.backends.tcp.server.limits import OTHER_FILES
from rendezvous_async.backends.tcp.server.process import NEW_OBJECTS, dedicate_process

WANTED = Limits().connections + OTHER_FILES
INFINITY = resource.RLIM_INFINITY


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Leave this process's garbage collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ((1024, INFINITY), [(WANTED, INFINITY)]),
        ((1024, 4096), [(4096, 4096)]),
        ((1024, 2 * WANTED), [(2 * WANTED, 2 * WANTED)]),
        ((WANTED - 1, INFINITY), [(WANTED, INFINITY)]),
        ((WANTED, INFINITY), []),
        ((INFINITY, INFINITY), []),
    ],
)
def test_it_may_open_as_many_files_as_a_server_needs(
    monkeypatch: pytest.MonkeyPatch, has: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: has if what == resource.RLIMIT_NOFILE else None)
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: asked.append(limits))
    dedicate_process()
    assert asked == expected


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_where_it_may_not_the_limit_stays(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(what: int, limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda what: (1, 1))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    dedicate_process()


def test_garbage_is_collected_seldom_and_not_among_what_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (INFINITY, INFINITY))
    frozen = gc.get_freeze_count()
    dedicate_process()
    assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == (NEW_OBJECTS, 20, 50)
