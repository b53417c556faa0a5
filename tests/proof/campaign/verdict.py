"""What must hold of an act: the guarantees of the design, and the promises of the backend's interface.

Each check is a function from the evidence to the breaches that it finds. What clients were told is held against the
commits in their one true order: nothing acknowledged is missing, nothing refused is there, nothing happened twice;
reads, listings and watches show exactly what stood at the revision that they name.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from rendezvous_async.testing.checks import CHECKS, BrokenGuaranteeError
from rendezvous_async.testing.history import Believed, Formed, History, StoreWritten
from rendezvous_async.testing.linearizability import Operation, check_linearizable
from tests.proof.campaign.follower import CommitSeen
from tests.proof.campaign.records import Called, Failed, Line, Members, Returned, Saw, Watching

T = TypeVar("T")

__all__ = ["DATA_CHECKS", "Evidence", "judge"]


class Evidence:
    """All that is known of one act.

    Attributes:
        history: Of the nodes' run.
        lines: What all processes wrote down.
        commits: To the clients' run, in order.
        calls: Each call of a client with its return, or None.
    """

    def __init__(self, history: History, lines: Sequence[Line], commits: Sequence[CommitSeen], epoch: str) -> None:
        self.history = history
        self.lines = lines
        self.commits = commits
        self.epoch = epoch
        self.revisions = [commit.revision for commit in commits]
        returns = {(line.who, line.number): line for line in self.of(Returned)}
        self.calls: list[tuple[Called, Returned | None]] = [
            (call, returns.get((call.who, call.number))) for call in self.of(Called)
        ]
        self._gaps = [(commit.gap, commit.revision) for commit in commits if commit.gap is not None]

    def of(self, kind: type[T]) -> list[T]:
        """Return the lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]

    def in_gap(self, revision: int) -> bool:
        """Tell whether the commits around a revision are known only as a sum."""
        return any(low < revision < high for low, high in self._gaps)

    def at(self, revision: int) -> CommitSeen | None:
        """Return the commit at exactly this revision."""
        index = bisect_left(self.revisions, revision)
        return self.commits[index] if index < len(self.commits) and self.revisions[index] == revision else None


def judge(evidence: Evidence) -> Counter[str]:
    """Check everything; returns how many things each check looked at.

    Raises:
        BrokenGuaranteeError: Something does not hold; the text says what.
    """
    looked: Counter[str] = Counter()
    for name, find in CHECKS.items():
        for breach in find(evidence.history):
            raise BrokenGuaranteeError(name, breach)
    looked["records of the run"] = len(evidence.history)
    looked["writes to a round's store"] = len(evidence.history.of(StoreWritten))
    for name, check in DATA_CHECKS.items():
        for breach in check(evidence):
            raise BrokenGuaranteeError(name, breach)
    looked["acknowledged commits"] = sum(
        1 for call, done in evidence.calls if done and done.won and call.kind in ("write", "swap")
    )
    looked["reads and listings"] = sum(1 for call, done in evidence.calls if done and call.kind in ("read", "list"))
    looked["calls that nobody knows the end of"] = sum(1 for _, done in evidence.calls if done is None)
    looked["listings of watches"] = len(evidence.of(Saw))
    return looked


def members_agree(evidence: Evidence) -> Iterator[str]:
    """Find members of one round that see other members than those who were seated."""
    seated = {
        formed.token: tuple(sorted((rank, node) for node, _, rank in formed.seats))
        for formed in evidence.history.of(Formed)
    }
    for line in evidence.of(Members):
        if seated.get(line.token) != line.members:
            yield f"{line}, but seated are {seated.get(line.token)}"


def tokens_rise(evidence: Evidence) -> Iterator[str]:
    """Find a round whose fencing token is not larger than that of the round before."""
    formed = sorted(evidence.history.of(Formed), key=lambda formed: formed.round)
    for before, after in pairwise(formed):
        if int(after.token.rpartition(":")[2]) <= int(before.token.rpartition(":")[2]):
            yield f"{after} has no larger token than {before}"


def one_epoch(evidence: Evidence) -> Iterator[str]:
    """Find anything of another epoch: a backend that keeps its data never begins one."""
    for line in evidence.lines:
        epoch = line.token.rpartition(":")[0] if isinstance(line, Believed) else getattr(line, "epoch", "")
        if epoch not in ("", evidence.epoch):
            yield f"{line} is not of epoch {evidence.epoch}"


def nothing_acknowledged_is_lost(evidence: Evidence) -> Iterator[str]:
    """Find commits that were acknowledged and are not there, or are there and were refused, or happened twice."""
    written: dict[str, list[int]] = {}
    for commit in evidence.commits:
        for value in {entry.value.decode() for entry in commit.entries if entry.value is not None}:
            written.setdefault(value, []).append(commit.revision)
    for value, revisions in written.items():
        if len(revisions) > 1 and not any(map(evidence.in_gap, revisions)):
            yield f"{value!r} was written at revisions {revisions}"
    for call, done in evidence.calls:
        if call.kind not in ("write", "swap") or done is None:
            continue
        if not done.won:
            if call.value is not None and written.get(call.value):
                yield f"{call} was refused ({done}), and {call.value!r} was written at {written[call.value]}"
            continue
        if evidence.in_gap(done.revision):
            continue
        there = evidence.at(done.revision)
        found = {} if there is None else {entry.key: entry.value for entry in there.entries}
        for key in call.keys:
            if call.value is None:
                gone = key not in _state(evidence, done.revision)
                if not gone:
                    yield f"{call} was acknowledged ({done}), and {key!r} is still there"
            elif found.get(key) != call.value.encode():
                yield f"{call} was acknowledged ({done}), and the commit there is {there}"


def commits_are_in_order(evidence: Evidence) -> Iterator[str]:
    """Find a commit or listing that is older than a commit which had been acknowledged before it was called."""
    moments: list[tuple[float, int, Called, Returned]] = []
    for call, done in evidence.calls:
        if done is not None and call.kind != "read":
            moments += [(call.at, 0, call, done), (done.at, 1, call, done)]
    newest = 0
    floors: dict[tuple[str, int], int] = {}
    for _, what, call, done in sorted(moments, key=lambda moment: moment[:2]):
        mine = (call.who, call.number)
        if what == 0:
            floors[mine] = newest
        elif call.kind == "list":
            if done.revision < floors[mine]:
                yield f"{call} saw revision {done.revision}, older than {floors[mine]}, acknowledged before"
        elif done.won and call.value is not None:
            if done.revision <= floors[mine]:
                yield f"{call} won at {done.revision}, not after {floors[mine]}, acknowledged before"
            newest = max(newest, done.revision)


def calls_are_linearizable(evidence: Evidence) -> Iterator[str]:
    """Find keys whose calls cannot be put in one order."""
    failed = {(line.who, line.number) for line in evidence.of(Failed)}
    operations = []
    for call, done in evidence.calls:
        if call.kind == "list" or (call.kind == "read" and (done is None or (call.who, call.number) in failed)):
            continue
        ended = math.inf if done is None else done.at
        for key in call.keys:
            value = call.value
            if call.kind == "read":
                assert done is not None
                value = dict(done.values).get(key)
            operations.append(
                Operation(
                    key,
                    call.kind,
                    call.at,
                    ended,
                    _bytes(value),
                    _bytes(call.expected),
                    True if done is None else done.won,
                    call.who,
                )
            )
    try:
        check_linearizable(operations)
    except AssertionError as error:
        yield str(error)


def listings_are_exact(evidence: Evidence) -> Iterator[str]:
    """Find listings that are not what stood at their revision; of keys that are written together, half a commit."""
    for call, done in evidence.calls:
        if call.kind == "list" and done is not None and not evidence.in_gap(done.revision):
            state = _state(evidence, done.revision)
            stood = {key: value for key, value in state.items() if key.startswith(call.keys[0])}
            if dict(done.values) != stood:
                yield f"{call} saw {done}, but there stood {stood}"


def watches_are_exact(evidence: Evidence) -> Iterator[str]:
    """Find watches that go back, miss something, or show what never was; each shows what stood at its revision."""
    shown: dict[tuple[str, int], list[Saw]] = {}
    for saw in evidence.of(Saw):
        shown.setdefault((saw.who, saw.watch), []).append(saw)
    for watching in evidence.of(Watching):
        view = {} if watching.after is None else _state(evidence, watching.after)
        blurred = watching.after is not None and evidence.in_gap(watching.after)
        last = watching.after or 0
        truth = _States(evidence)
        for saw in shown.get((watching.who, watching.watch), []):
            if saw.revision < last or any(revision > saw.revision for _, revision, _ in saw.entries):
                yield f"{saw} goes back from {last}, or ahead of itself"
            last = saw.revision
            if saw.complete:
                view, blurred = {}, False
            for key, _, value in saw.entries:
                if value is None:
                    view.pop(key, None)
                else:
                    view[key] = value
            if blurred or evidence.in_gap(saw.revision):
                continue
            stood = truth.up_to(saw.revision)
            if view != stood:
                differ = {key for key in view.keys() | stood.keys() if view.get(key) != stood.get(key)}
                yield f"{saw}: of {sorted(differ)} the watch shows {view}, and there stood {stood}"
                return


class _States:
    """What stood at one revision after the other."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._index = 0
        self._state: dict[str, str] = {}

    def up_to(self, revision: int) -> dict[str, str]:
        """Return what stood at a revision, not smaller than that of the last call."""
        end = bisect_right(self._evidence.revisions, revision)
        for commit in self._evidence.commits[self._index : end]:
            for entry in commit.entries:
                if entry.value is None:
                    self._state.pop(entry.key, None)
                else:
                    self._state[entry.key] = entry.value.decode()
        self._index = max(self._index, end)
        return self._state


def _state(evidence: Evidence, revision: int) -> dict[str, str]:
    return dict(_States(evidence).up_to(revision))


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


DATA_CHECKS: dict[str, Callable[[Evidence], Iterable[str]]] = {
    check.__name__: check
    for check in (
        members_agree,
        tokens_rise,
        one_epoch,
        nothing_acknowledged_is_lost,
        commits_are_in_order,
        calls_are_linearizable,
        listings_are_exact,
        watches_are_exact,
    )
}
