"""Gathers what happened in an act: the commits of its two runs, what its processes wrote down, what was done to them.

The run of the nodes becomes a history, as in the simulator; that of the clients stays a list of commits.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import msgspec

from rendezvous_async.backends.base import Entry
from rendezvous_async.settings import encode_segment
from rendezvous_async.testing.history import (
    Arrived,
    Believed,
    CloseCalled,
    Fault,
    History,
    Left,
    Record,
    Released,
    Settled,
    Vanished,
)
from rendezvous_async.testing.witness import Witness
from tests.proof.campaign.follower import CommitSeen
from tests.proof.campaign.processes import Child
from tests.proof.campaign.records import Heard, Line
from tests.proof.campaign.stage import Stage

__all__ = ["Recorder"]

LOOK_EVERY = 0.03


class Recorder:
    """Everything that is known about one act.

    Attributes:
        lines: What processes wrote down.
        commits: The commits to the clients' run, with relative keys.
        revision: The newest that was seen of the backend.
        believed: The round that each node says it holds; absent if none.
    """

    def __init__(self, stage: Stage, run: str, history: History) -> None:
        self.run = run
        self.data_run = f"{run}-data"
        self.lines: list[Line] = []
        self.commits: list[CommitSeen] = []
        self.revision = 0
        self.believed: dict[str, int] = {}
        self.children: list[Child] = []
        self._stage = stage
        self._committed = history
        self._did: list[Record] = []
        self.witness = Witness(history)

    def __repr__(self) -> str:
        return f"<Recorder {self.run} lines={len(self.lines)} commits={len(self.commits)}>"

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await anyio.sleep(LOOK_EVERY)

    def look(self) -> None:
        """Take in what is new."""
        now = anyio.current_time()
        for commit in self._stage.follower.poll():
            self.revision = max(self.revision, commit.revision)
            if ours := _of_run(commit, f"{self._stage.namespace}/{encode_segment(self.run)}/"):
                self.witness.take(now, ours)
            if theirs := _of_run(commit, f"{self._stage.namespace}/{encode_segment(self.data_run)}/"):
                self.commits.append(CommitSeen(commit.revision, theirs, commit.gap))
            elif commit.gap is not None:
                self.commits.append(CommitSeen(commit.revision, (), commit.gap))
        for child in self.children:
            for line in child.read():
                self._take(line)

    def note(self, kind: str, *nodes: str) -> None:
        """Write down what was done to whom."""
        self._did.append(Fault(anyio.current_time(), kind, nodes))
        if kind == "crash":
            for node in nodes:
                self.believed.pop(node, None)

    def settled(self, live: list[str]) -> None:
        """Write down that everything is quiet."""
        self._did.append(Settled(anyio.current_time(), tuple(live), tuple(self.witness.roster)))

    def history(self) -> History:
        """Return all of it in the order of time."""
        merged = History(self._committed.min_nodes, self._committed.max_nodes, self._committed.ttl)
        told = [line for line in self.lines if isinstance(line, Believed | Released | Left | CloseCalled)]
        committed = as_heard(self._committed, self.lines)
        for record in sorted([*committed, *self._did, *told], key=lambda record: record.at):
            merged.add(record)
        return merged

    def _take(self, line: Line) -> None:
        self.lines.append(line)
        if isinstance(line, Believed):
            self.believed[line.node] = line.round
        elif isinstance(line, Released) and self.believed.get(line.node) == line.round:
            del self.believed[line.node]

    def dump(self) -> bytes:
        """Return the commits to the clients' run, a line each, for finding out what went wrong."""
        return b"\n".join(map(msgspec.json.encode, self.commits))


def as_heard(committed: Iterable[Record], lines: Iterable[Line]) -> list[Record]:
    """Return what was committed, with each arrival no later than its node knew of it.

    Commits are seen a moment after they were made. A node that comes back may have arrived and hold a world by then,
    and must not be taken for one that believes in a world without having arrived.
    """
    heard = {line.detail: line.at for line in lines if isinstance(line, Heard) and line.kind == "arrived"}
    latest: dict[str, float] = {}
    found: list[Record] = []
    for record in reversed(list(committed)):
        if isinstance(record, Arrived | Vanished):  # What came before an arrival stays before it.
            at = min(record.at, latest.get(record.node, record.at))
            if isinstance(record, Arrived):
                at = latest[record.node] = min(at, heard.get(record.arrival, at))
            record = msgspec.structs.replace(record, at=at)
        found.append(record)
    return found[::-1]


def _of_run(commit: CommitSeen, prefix: str) -> tuple[Entry, ...]:
    return tuple(entry.relative_to(prefix) for entry in commit.entries if entry.key.startswith(prefix))
