"""The ledger without thread or loop: what is ended under the lock, and what a write that fails leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous_async.backends.file.directory import Directory, open_file
from rendezvous_async.backends.file.ledger import Ledger, LedgerChange
from rendezvous_async.backends.file.life import Lives
from rendezvous_async.backends.file.lock import FileLock
from rendezvous_async.errors import RendezvousConnectionError


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger whose caller has the directory for itself."""
    place = tmp_path / "place"
    directory = Directory.open(str(place))
    lives = Lives(directory.subdirectory("sessions"), directory.mode, is_local=True)
    lock = FileLock(open_file("lock", directory.fd, directory.mode))
    ledger = Ledger(directory, lives, lock, fsync=False)
    yield ledger
    ledger.close()
    lives.close()
    lock.close()
    directory.close()


def session_files(ledger: Ledger) -> list[str]:
    return os.listdir(os.path.join(ledger.directory.path, "sessions"))


def open_one(ledger: Ledger) -> str:
    [(session, error)] = ledger.write([lambda change: ledger.open_session(change, 5.0)])
    assert error is None
    assert isinstance(session, str)
    return session


def test_a_session_that_shows_life_under_the_lock_is_not_ended(ledger: Ledger) -> None:
    """An observer judged it by an older look; what it shows once nobody else can write is what counts."""
    session = open_one(ledger)
    look = ledger.lives.look(session)
    ledger.keep_alive(LedgerChange(), session, 5.0)
    ledger.write([lambda change: ledger.end_silent(change, {session: look})])
    assert ledger.table.has_session(session)
    again = ledger.lives.look(session)
    ledger.write([lambda change: ledger.end_silent(change, {session: again})])
    assert not ledger.table.has_session(session)
    assert session_files(ledger) == []


def test_what_fails_leaves_no_session_file_behind(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = ledger.table.snapshot()
    with monkeypatch.context() as patch, pytest.raises(RendezvousConnectionError, match="free some space"):
        patch.setattr(os, "pwrite", full)
        ledger.write([lambda change: ledger.open_session(change, 5.0)])
    assert session_files(ledger) == []
    assert ledger.table.snapshot() == before
    assert ledger.table.has_session(open_one(ledger))
