"""The table of mutations: each can be planted, and a few are, to see that they are caught and that a miss is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.mutations import MUTATIONS, ROOT, Mutation, copy_to, plant

PARTS = ("core/", "node/", "backends/tcp/", "backends/file/", "backends/etcd/", "backends/cas/", "sync/")
FAST = ("a peer can have the server wait", "an observer that was stopped")
LEAST = 25


def test_there_are_enough_in_every_part() -> None:
    assert len(MUTATIONS) >= LEAST
    for part in (*PARTS, "sync/torchrun.py"):
        assert any(mutation.file.startswith(part) for mutation in MUTATIONS), part


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)
def test_it_can_be_planted(mutation: Mutation) -> None:
    source = (ROOT / "rendezvous_async" / mutation.file).read_text()
    assert source.count(mutation.before) == 1
    assert mutation.before != mutation.after
    compile(source.replace(mutation.before, mutation.after), mutation.file, "exec")
    path, test = mutation.caught_by.partition("::")[0], mutation.caught_by.rpartition("::")[2]
    assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text()


def test_some_are_planted_and_caught(tmp_path: Path) -> None:
    copy_to(tmp_path)
    planted = [mutation for mutation in MUTATIONS if mutation.breaks.startswith(FAST)]
    assert len(planted) == len(FAST)
    assert [plant(mutation, tmp_path).verdict for mutation in planted] == ["caught"] * len(FAST)
    harmless = planted[0]._replace(after=planted[0].before)
    assert plant(harmless, tmp_path).verdict == "missed"
