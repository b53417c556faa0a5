"""A verdict that nothing could change would prove nothing: each check of a campaign finds the breach planted for it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rendezvous_async.backends.base import Entry, Token
from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.history import Arrived, Believed, Formed, History, Record
from tests.proof.campaign.follower import CommitSeen
from tests.proof.campaign.records import Called, Line, Members, Returned, Saw, Watching
from tests.proof.campaign.verdict import DATA_CHECKS, Evidence, judge

EPOCH = "e"


def commit(revision: int, gap: int | None = None, **values: str | None) -> CommitSeen:
    entries = [
        Entry(key, None if value is None else value.encode(), Token(EPOCH, revision)) for key, value in values.items()
    ]
    return CommitSeen(revision, tuple(entries), gap)


COMMITS = [commit(5, x="a.1"), commit(7, x="b.1", y="b.1"), commit(8, y=None), commit(9, x="a.3")]
LINES: list[Line] = [
    Called(1.0, "a", 1, "write", ("x",), "a.1"),
    Returned(1.1, "a", 1, EPOCH, True, 5),
    Called(1.2, "b", 1, "write", ("x", "y"), "b.1"),
    Returned(1.3, "b", 1, EPOCH, True, 7),
    Called(1.4, "a", 2, "read", ("x",)),
    Returned(1.5, "a", 2, EPOCH, True, 0, (("x", "b.1"),)),
    Called(1.6, "b", 2, "write", ("y",), None),
    Returned(1.7, "b", 2, EPOCH, True, 8),
    Called(1.8, "a", 3, "swap", ("x",), "a.3", "b.1"),
    Returned(1.9, "a", 3, EPOCH, True, 9),
    Called(2.0, "b", 3, "swap", ("x",), "b.3", "b.1"),
    Returned(2.1, "b", 3, EPOCH, False, 9),
    Called(2.2, "a", 4, "list", ("",)),
    Returned(2.3, "a", 4, EPOCH, True, 9, (("x", "a.3"),)),
    Called(2.4, "b", 4, "write", ("x",), "b.4"),  # killed: nobody knows what became of it
    Watching(1.0, "a", 1, None),
    Saw(1.0, "a", 1, EPOCH, 4, True, ()),
    Saw(1.3, "a", 1, EPOCH, 7, False, (("x", 7, "b.1"), ("y", 7, "b.1"))),
    Saw(1.9, "a", 1, EPOCH, 9, False, (("x", 9, "a.3"), ("y", 8, None))),
    Watching(1.6, "b", 1, 7),
    Saw(1.9, "b", 1, EPOCH, 9, False, (("x", 9, "a.3"), ("y", 8, None))),
    Believed(1.0, "n0", 1, 0, 2, "e:20"),
    Members(1.1, "n0", 1, "e:20", ((0, "n0"), (1, "n1"))),
]
RECORDS: list[Record] = [
    Arrived(0.5, "n0", "i"),
    Arrived(0.6, "n1", "j"),
    Formed(0.9, 1, 2, "e:20", (("n0", "i", 0), ("n1", "j", 1))),
    Believed(1.0, "n0", 1, 0, 2, "e:20"),
]


def evidence(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> Evidence:
    history = History(2, 4, 4.0)
    for record in records:
        history.add(record)
    return Evidence(history, lines, commits, EPOCH)


def test_a_sound_act_is_found_sound() -> None:
    looked = judge(evidence(LINES, COMMITS, RECORDS))
    assert looked["acknowledged commits"] == 4
    assert looked["listings of watches"] == 4
    assert looked["calls that nobody knows the end of"] == 1


Plant = Callable[[list[Line], list[CommitSeen], list[Record]], None]


def a_commit_is_missing(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    del commits[0]


def a_commit_happened_twice(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    commits.append(commit(11, x="a.3"))


def a_refused_commit_happened(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    commits.append(commit(11, x="b.3"))


def half_a_commit_happened(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    commits[1] = commit(7, x="b.1")


def a_deletion_did_not_happen(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    del commits[2]


def a_commit_won_before_an_older_one(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines += [Called(3.0, "c", 1, "write", ("z",), "c.1"), Returned(3.1, "c", 1, EPOCH, True, 6)]
    commits.insert(1, commit(6, z="c.1"))


def a_listing_is_stale(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines += [Called(3.0, "c", 1, "list", ("",)), Returned(3.1, "c", 1, EPOCH, True, 8, (("x", "b.1"),))]


def a_read_is_stale(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines += [Called(3.0, "c", 1, "read", ("x",)), Returned(3.1, "c", 1, EPOCH, True, 0, (("x", "b.1"),))]


def a_listing_shows_half(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines += [Called(1.3, "c", 1, "list", ("",)), Returned(1.4, "c", 1, EPOCH, True, 7, (("x", "b.1"),))]


def a_watch_misses_a_deletion(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines[18] = Saw(1.9, "a", 1, EPOCH, 9, False, (("x", 9, "a.3"),))


def a_watch_goes_back(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines.append(Saw(2.0, "a", 1, EPOCH, 7, True, (("x", 7, "b.1"), ("y", 7, "b.1"))))


def a_watch_that_resumes_has_a_gap(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines[20] = Saw(1.9, "b", 1, EPOCH, 9, False, (("y", 8, None),))


def another_epoch_begins(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines[3] = msgspec.structs.replace(lines[3], epoch="f")


def a_member_sees_others(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    lines[-1] = Members(1.1, "n0", 1, "e:20", ((0, "n0"), (1, "n2")))


def a_token_falls(lines: list[Line], commits: list[CommitSeen], records: list[Record]) -> None:
    records += [
        Arrived(2.0, "n0", "k"),
        Arrived(2.0, "n1", "l"),
        Formed(2.1, 2, 2, "e:19", (("n0", "k", 0), ("n1", "l", 1))),
    ]


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (a_commit_is_missing, "nothing_acknowledged_is_lost"),
        (a_commit_happened_twice, "nothing_acknowledged_is_lost"),
        (a_refused_commit_happened, "nothing_acknowledged_is_lost"),
        (half_a_commit_happened, "nothing_acknowledged_is_lost"),
        (a_deletion_did_not_happen, "nothing_acknowledged_is_lost"),
        (a_commit_won_before_an_older_one, "commits_are_in_order"),
        (a_listing_is_stale, "commits_are_in_order"),
        (a_read_is_stale, "calls_are_linearizable"),
        (a_listing_shows_half, "listings_are_exact"),
        (a_watch_misses_a_deletion, "watches_are_exact"),
        (a_watch_goes_back, "watches_are_exact"),
        (a_watch_that_resumes_has_a_gap, "watches_are_exact"),
        (another_epoch_begins, "one_epoch"),
        (a_member_sees_others, "members_agree"),
        (a_token_falls, "tokens_rise"),
    ],
)
def test_each_breach_is_found_by_its_check(plant: Plant, check: str) -> None:
    lines, commits, records = list(LINES), list(COMMITS), list(RECORDS)
    plant(lines, commits, records)
    with pytest.raises(BrokenGuaranteeError) as caught:
        judge(evidence(lines, commits, records))
    assert caught.value.guarantee == check
    assert check in DATA_CHECKS


def test_a_complete_listing_takes_the_place_of_what_was_known() -> None:
    """A watch that cannot resume starts over, and shows deletions by omission."""
    lines = list(LINES)
    lines[20] = Saw(1.9, "b", 1, EPOCH, 9, True, (("x", 9, "a.3"),))
    judge(evidence(lines, COMMITS, RECORDS))


def test_what_is_known_only_as_a_sum_is_not_held_against_anybody() -> None:
    """A compaction hides the commits of one batch; the keys that they left are known, the commits are not."""
    commits = [commit(5, x="a.1"), commit(8, gap=5, x="b.1"), commit(9, x="a.3")]
    judge(evidence(LINES, commits, RECORDS))
