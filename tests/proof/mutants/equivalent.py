"""The mutants that no test can kill, and why: ``equivalent.txt``, a line each."""

from __future__ import annotations

from pathlib import Path

from tests.proof.mutants.generate import Mutant

__all__ = ["key_of", "reasons"]

Key = tuple[str, str, str]


def key_of(mutant: Mutant) -> Key:
    """Return what names a mutant for as long as its own lines stay as they are."""
    return mutant.file, " ".join(mutant.before.split()), " ".join(mutant.after.split())


def reasons() -> dict[Key, str]:
    """Return the reason for each listed mutant."""
    listed = {}
    for line in Path(__file__).with_name("equivalent.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            file, before, after, why = line.split(" | ")
            listed[file, before, after] = why
    return listed
