"""The follower sees every commit of a log, once and in order, whatever the writer does to the file."""

from __future__ import annotations

from pathlib import Path

from rendezvous_async.backends.base import Delete, Put
from rendezvous_async.backends.table.frames import Committed
from rendezvous_async.backends.table.log import Log
from tests.proof.campaign.follower import CommitSeen, LogFollower


class Writer:
    """Commits to a log as a server does."""

    def __init__(self, path: Path) -> None:
        self.log = Log.open(str(path), epoch="e")

    def put(self, key: str, value: bytes, *, append: bool = True) -> None:
        writes = (Put(key, value),)
        assert self.log.table.commit(writes).won
        if append:
            self.log.append([Committed(writes)])


def shown(commits: list[CommitSeen]) -> list[tuple[int, list[tuple[str, bytes | None]], int | None]]:
    return [(seen.revision, [(entry.key, entry.value) for entry in seen.entries], seen.gap) for seen in commits]


def test_it_sees_commits_one_by_one(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path / "log")
    assert follower.poll() == []  # there is no file yet
    writer = Writer(tmp_path / "log")
    writer.put("a", b"1")
    writer.put("a", b"2")
    assert shown(follower.poll()) == [(1, [("a", b"1")], None), (2, [("a", b"2")], None)]
    assert follower.epoch == "e"
    assert follower.poll() == []
    writes = (Delete("a"),)
    writer.log.table.commit(writes)
    writer.log.append([Committed(writes)])
    assert shown(follower.poll()) == [(3, [("a", None)], None)]
    follower.close()
    writer.log.close()


def test_it_reads_the_old_file_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log")
    follower = LogFollower(tmp_path / "log")
    writer.put("a", b"1")
    follower.poll()
    writer.put("a", b"2")
    writer.put("b", b"3", append=False)  # it is in the snapshot, and was never appended
    writer.put("b", b"4", append=False)
    writer.log.compact(writer.log.table.snapshot())
    writer.put("a", b"5")
    assert shown(follower.poll()) == [(2, [("a", b"2")], None), (4, [("b", b"4")], 2), (5, [("a", b"5")], None)]
    follower.close()
    writer.log.close()


def test_half_a_frame_is_left_until_it_is_whole_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = Writer(path)
    follower = LogFollower(path)
    writer.put("a", b"1")
    whole = path.read_bytes()
    follower.poll()
    writer.put("a", b"2")
    torn = path.read_bytes()[:-3]
    writer.log.close()
    path.write_bytes(torn)
    assert follower.poll() == []
    path.write_bytes(whole)
    writer = Writer(path)  # whose last commit never happened
    writer.put("a", b"3")
    assert shown(follower.poll()) == [(2, [("a", b"3")], None)]
    follower.close()
    writer.log.close()
