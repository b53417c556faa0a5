"""What has changed between two looks at a run, in words."""

from __future__ import annotations

from msgspec.structs import replace

from rendezvous_async.core.changes import SHOW_AT_MOST, changes
from rendezvous_async.core.diagnosis import Absent, Present, Role, Status
from rendezvous_async.core.spec import Spec
from rendezvous_async.core.state import Closed, Phase

MEMBERS = (Present("a", Role.MEMBER, 0), Present("b", Role.MEMBER, 1))
HELD = Status(run_id="job", round=1, phase=Phase.FORMED, here=MEMBERS, coordinator="a")


def test_the_first_look_tells_all() -> None:
    assert changes(None, HELD) == ["round 1 has formed with 2 members", "here now: a, b", "a coordinates"]


def test_nothing_new_is_nothing() -> None:
    assert changes(HELD, HELD) == []
    assert changes(HELD, replace(HELD, coordinator=None)) == []


def test_a_loss_is_told_before_the_end_of_its_round() -> None:
    lost = replace(HELD, here=MEMBERS[:1], absent=(Absent("b", 1),))
    assert changes(HELD, lost) == ["gone: b"]
    assert changes(lost, replace(lost, phase=Phase.GATHERING)) == ["round 1 is over; gathering the next"]


def test_the_members_of_a_round_are_counted_with_those_who_are_gone_again() -> None:
    now = replace(HELD, round=2, here=(*MEMBERS, Present("c", Role.WAITING)), absent=(Absent("d", 2),))
    assert changes(HELD, now) == ["round 2 has formed with 3 members", "here now: c"]


def test_a_role_that_changes_within_a_round_is_told() -> None:
    back = replace(HELD, here=(MEMBERS[0], Present("b", Role.BACK, 1)))
    assert changes(HELD, back) == [f"b is {Role.BACK} now; it was {Role.MEMBER}"]
    assert changes(HELD, replace(back, round=2)) == ["round 2 has formed with 2 members"]


def test_scaling_and_newcomers_that_are_held_back_are_told() -> None:
    before = replace(HELD, spec=Spec("2:4", 3, 1))
    held_back = replace(before, spec=Spec("2:8", None, 2), held_back=2)
    assert changes(before, held_back) == ["scaled from 2:4, target 3 to 2:8", "2 newcomers held back"]
    assert changes(held_back, held_back) == changes(held_back, replace(held_back, held_back=0)) == []
    assert changes(None, before)[0] == "round 1 has formed with 2 members", "what held before is not known"


def test_a_close_comes_first_and_ends_the_talk_of_gathering() -> None:
    closed = replace(HELD, phase=Phase.GATHERING, closed=Closed("done", "a"), coordinator="b")
    assert changes(HELD, closed) == ["closed by a: done", "b coordinates"]
    assert changes(closed, closed) == []


def test_names_are_shown_safely_and_not_all_of_many() -> None:
    many = tuple(Present(f"n{number}\n", Role.WAITING) for number in range(SHOW_AT_MOST + 2))
    (line,) = changes(Status(run_id="job"), Status(run_id="job", here=many))
    assert line == "here now: " + ", ".join(f"n{number}\\n" for number in range(SHOW_AT_MOST)) + " and 2 more"
    (line,) = changes(Status(run_id="job"), Status(run_id="job", here=many[:SHOW_AT_MOST]))
    assert "more" not in line
