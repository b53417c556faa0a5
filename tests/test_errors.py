"""The tree of errors: drawn as it is, and each error says what a person needs."""

from __future__ import annotations

import inspect
import re

import pytest

from rendezvous_async import errors
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)

ALL = [getattr(errors, name) for name in errors.__all__]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"^ +(?:│ +)?(?:[├└]── )?(Rendezvous\w*Error) ", errors.__doc__ or "", re.MULTILINE)
    assert drawn[0] == "RendezvousError"
    assert sorted(drawn) == sorted(errors.__all__)
    defined = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if issubclass(thing, Exception)]
    assert {thing.__name__ for thing in defined} == set(errors.__all__)


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_ours_and_documented(error: type[Exception]) -> None:
    assert issubclass(error, RendezvousError)
    parents = (RendezvousError, RendezvousClosedError, errors.RendezvousStateError)
    assert error is RendezvousError or error.__mro__[1] in parents
    assert (error.__doc__ or "").split("\n")[0].endswith((".", ";"))
    assert str(error("text", "by") if error is RendezvousClosedError else error("text")).find("text") >= 0


def test_builtin_errors_catch_ours() -> None:
    assert issubclass(RendezvousTimeoutError, TimeoutError)
    assert issubclass(RendezvousConnectionError, ConnectionError)


def test_closed_says_who_and_why() -> None:
    error = RendezvousClosedError("training done", "node-1", run_id="job-7")
    assert str(error) == "run 'job-7' was closed by node-1: training done"
    assert (error.reason, error.by) == ("training done", "node-1")
    assert str(RendezvousClosedError()) == "the rendezvous was closed by an unnamed node: no reason given"


def test_a_timeout_carries_its_diagnosis() -> None:
    class Status:
        def __str__(self) -> str:
            return "2 of 4 are here"

    error = RendezvousTimeoutError("join() took over 600 s", Status())
    assert str(error) == "join() took over 600 s\n2 of 4 are here"
    assert isinstance(error.diagnosis, Status)
    bare = RendezvousTimeoutError("no answer")
    assert (str(bare), bare.diagnosis) == ("no answer", None)


def test_a_connection_error_lists_what_was_tried() -> None:
    error = RendezvousConnectionError("cannot reach head", ["10.0.0.1:29400: refused", "10.0.0.2:29400: timed out"])
    assert str(error) == "cannot reach head\n  10.0.0.1:29400: refused\n  10.0.0.2:29400: timed out"
    assert error.attempts == ("10.0.0.1:29400: refused", "10.0.0.2:29400: timed out")
    assert RendezvousConnectionError("closed").attempts == ()
