"""Features that a head requires: which of them are not known, what is said of them, and that no rule drops them."""

from __future__ import annotations

import msgspec
import pytest

from rendezvous_async.core import features
from rendezvous_async.core.diagnosis import diagnose
from rendezvous_async.core.features import check_features, in_words, unknown_features
from rendezvous_async.core.rules import Form, HandOver, Notes, Rewrite, step
from rendezvous_async.core.state import WORLD_SHAPE, Closed, Head
from rendezvous_async.errors import RendezvousVersionError
from rendezvous_async.settings import Settings
from tests.core.make import TWO_TO_FOUR, formed, gathering, record, roster_of

SHAPE = "shape@0.2"
HEAD = Head(settings=TWO_TO_FOUR, requires=(SHAPE,))


def test_a_plain_run_requires_no_feature() -> None:
    assert frozenset({WORLD_SHAPE}) == features.KNOWN
    assert Head(settings=TWO_TO_FOUR).requires == ()
    check_features(Head(settings=TWO_TO_FOUR), "job")


def test_a_feature_that_is_not_known_is_refused_with_the_version_that_knows_it() -> None:
    with pytest.raises(RendezvousVersionError) as refused:
        check_features(HEAD, "job")
    assert str(refused.value) == (
        "run 'job' requires features that this rendezvous_async does not know: 'shape' (0.2 or later). "
        "Upgrade rendezvous_async here, or use another run id"
    )


def test_a_feature_that_is_known_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "KNOWN", frozenset({SHAPE}))
    check_features(HEAD, "job")
    assert unknown_features((SHAPE, "drain@0.3")) == ("drain@0.3",)
    with pytest.raises(RendezvousVersionError, match="'drain'"):
        check_features(msgspec.structs.replace(HEAD, requires=(SHAPE, "drain@0.3")), "job")


def test_a_closed_run_is_read_whatever_it_requires() -> None:
    check_features(msgspec.structs.replace(HEAD, closed=Closed("done", "a")), "job")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("shape@0.2",), "'shape' (0.2 or later)"),
        (("shape",), "'shape' (a newer version)"),
        (("a@b@1",), "'a@b' (1 or later)"),
        (("\x1b[2J@1\n",), r"'\\u001b[2J' (1\n or later)"),
        (tuple(f"f{n}@1" for n in range(6)), ", ".join(f"'f{n}' (1 or later)" for n in range(4)) + " and 2 more"),
    ],
)
def test_features_are_named_for_people(names: tuple[str, ...], said: str) -> None:
    assert in_words(names) == said


def test_a_status_says_what_an_older_version_may_not_do() -> None:
    status = diagnose("job", HEAD, {}, (), None)
    assert status.requires == (SHAPE,)
    assert "\n  upgrade rendezvous_async here to join or close the run; it requires: 'shape' (0.2 or later)" in str(
        status
    )
    closed = diagnose("job", msgspec.structs.replace(HEAD, closed=Closed("done", "a")), {}, (), None)
    assert "upgrade" not in str(closed)
    assert "upgrade" not in str(diagnose("job", Head(settings=TWO_TO_FOUR), {}, (), None))


def test_every_step_of_a_coordinator_keeps_what_the_head_requires() -> None:
    """A feature is required for the rest of the run, also by rounds that form, counts, and settings that change."""
    tally = gathering({"a": record("a1"), "b": record("b1")})
    tally.follow(HEAD)
    form, _ = step(tally, Notes(last_call_ends=5.0), 5.0, "second")
    assert isinstance(form, Form)
    assert form.head.requires == (SHAPE,)

    head, seats = formed("ab")
    head = msgspec.structs.replace(head, requires=(SHAPE,))
    here = {"a": record("a1"), "b": record("b1")}
    count, _ = step(roster_of(head, seats, {**here, "c": record("c1")}), Notes(), 0.0, "second")
    assert isinstance(count, Rewrite)
    assert (count.head.waiting, count.head.requires) == (1, (SHAPE,))
    again, _ = step(roster_of(head, seats, {"a": record("a2", (1, 0))}), Notes(), 0.0, "second")
    assert isinstance(again, Rewrite)
    assert again.head.requires == (SHAPE,)

    three = Settings(3, 3)
    rivals = {"a": record("a1"), "b": record("b1", settings=three), "c": record("c1", settings=three)}
    hand, _ = step(roster_of(HEAD, {}, rivals), Notes(), 0.0, "second")
    assert isinstance(hand, HandOver)
    assert (hand.head.settings, hand.head.requires) == (three, (SHAPE,))
    assert HEAD.stamped(("epoch", 1)).requires == (SHAPE,)
