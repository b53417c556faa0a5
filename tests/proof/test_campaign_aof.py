"""The follower of a Redis sees every write of the value once, in order, whatever Redis does to its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rendezvous_async.backends.base import Delete, Put, Write
from rendezvous_async.backends.cas.image import Draft, Image
from rendezvous_async.backends.values import OWN
from tests.proof.campaign.aof import AofFollower
from tests.proof.campaign.follower import CommitSeen

KEY = "value"


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Writer:
    """Writes a value, and what Redis notes of it."""

    def __init__(self, folder: Path) -> None:
        self.image = Image.empty("e")
        self._folder = folder
        self.file = 1

    def write(self, *work: Callable[[Draft], object]) -> bytes:
        draft = Draft(self.image)
        for each in work:
            each(draft)
        self.image = draft.image(b"%08d" % self.image.number)
        return command(b"SET", KEY.encode(), b"token---" + self.image.data)

    def append(self, data: bytes) -> None:
        with (self._folder / f"appendonly.aof.{self.file}.incr.aof").open("ab") as file:
            file.write(data)


def commit(*writes: Write) -> Callable[[Draft], object]:
    return lambda draft: draft.commit(writes, ())


def shown(commits: list[CommitSeen]) -> list[tuple[int, list[tuple[str, bytes | None]], int | None]]:
    return [(seen.revision, [(entry.key, entry.value) for entry in seen.entries], seen.gap) for seen in commits]


def follow(folder: Path) -> AofFollower:
    return AofFollower(folder, KEY, len("token---"), "ns")


def test_each_write_is_a_commit_and_several_in_one_are_a_gap(tmp_path: Path) -> None:
    writer, follower = Writer(tmp_path), follow(tmp_path)
    assert follower.poll() == []
    writer.append(command(b"SELECT", b"0") + command(b"SET", b"another", b"x") + b"#TS:1\r\n")
    writer.append(writer.write(commit(Put("ns/a", b"1"))))
    assert shown(follower.poll()) == [(1, [("ns/a", b"1")], None)]
    assert follower.epoch == "e"
    writer.append(writer.write(commit(Put("ns/a", b"2")), commit(Put("ns/a", b"3")), commit(Put("ns/b", b"1"))))
    writer.append(writer.write(commit(Delete("ns/a"))))
    assert shown(follower.poll()) == [(4, [("ns/a", b"3"), ("ns/b", b"1")], 1), (5, [("ns/a", None)], None)]
    assert follower.poll() == []
    follower.close()


def test_keep_alives_are_no_commits(tmp_path: Path) -> None:
    writer, follower = Writer(tmp_path), follow(tmp_path)
    sessions: list[str] = []
    writer.append(writer.write(lambda draft: sessions.append(draft.open_session(5.0, (Put("ns/a", b"", OWN),), ())[0])))
    assert len(follower.poll()) == 1
    writer.append(writer.write(lambda draft: draft.keep_alive(sessions[0])))
    assert follower.poll() == []
    writer.append(writer.write(lambda draft: draft.end_session(sessions[0])))
    assert shown(follower.poll()) == [(2, [("ns/a", None)], None)]
    follower.close()


def test_half_a_command_is_left_until_it_is_whole_or_gone(tmp_path: Path) -> None:
    writer, follower = Writer(tmp_path), follow(tmp_path)
    writer.append(writer.write(commit(Put("ns/a", b"1"))))
    follower.poll()
    path = next(tmp_path.iterdir())
    before, image = path.read_bytes(), writer.image
    lost = writer.write(commit(Put("ns/a", b"lost")))
    for size in (1, 6, 30, len(lost) - 1):
        path.write_bytes(before + lost[:size])
        assert follower.poll() == []
    path.write_bytes(before)  # A Redis that starts again cuts off what is not whole.
    writer.image = image
    writer.append(writer.write(commit(Put("ns/a", b"2"))))
    assert shown(follower.poll()) == [(2, [("ns/a", b"2")], None)]
    follower.close()


def test_a_file_is_read_to_its_end_before_the_next_one_though_it_is_gone(tmp_path: Path) -> None:
    writer, follower = Writer(tmp_path), follow(tmp_path)
    writer.append(writer.write(commit(Put("ns/a", b"1"))))
    follower.poll()
    writer.append(writer.write(commit(Put("ns/a", b"2"))))
    next(tmp_path.iterdir()).unlink()
    writer.file = 2
    writer.append(writer.write(commit(Put("ns/a", b"3"))))
    assert [seen[0] for seen in shown(follower.poll())] == [2, 3]
    follower.close()
