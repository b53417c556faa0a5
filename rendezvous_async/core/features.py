"""Features that a run requires of its nodes: how a newer version keeps older ones from taking part.

Most changes need no word here. A reader passes over fields that it does not know, and a new field has a default. An
older coordinator drops such a field when it rewrites the head, so the default must also be right for a field that was
lost.

Where that is not enough (an older node would coordinate, or hold a rank, by rules that it does not know), the newer
version names a feature in ``Head.requires``, as ``"name@version"``: the name is for people, the version is the first
release that knows it. A node that finds one it does not know

* does not take part: ``join()`` raises ``RendezvousVersionError``, a world that it holds ends, it gives up the post;
* does not write the head: ``close()`` and ``rdzv close`` raise the same error;
* may read the run (``status()``), and end a session in it (``evict()``): every version copes with a lost session.

A feature is required for the rest of a run: each rewrite of the head keeps ``requires``. Closed stays final and
readable under every feature, so an older node still learns of a close, and may purge a closed run.

To add a feature: put its text into ``KNOWN``, and set it in the head where the feature begins to matter. A node puts
its record before it has read the head, so the new coordinator must also pass over the records of older nodes: a feature
that comes with a setting does that through the fingerprint, any other one needs a field of its own in ``Node``. (One
exception: a run that was scaled still accepts the settings that older nodes bring. Such a node may be counted for the
moment until it has read the head, and then leaves.)
"""

from __future__ import annotations

from collections.abc import Iterable

from rendezvous_async.core.state import WORLD_SHAPE, Head
from rendezvous_async.errors import RendezvousVersionError
from rendezvous_async.texts import printable

__all__ = ["KNOWN", "check_features", "in_words", "unknown_features"]

KNOWN: frozenset[str] = frozenset({WORLD_SHAPE})
"""The features that this version knows, as they stand in ``Head.requires``."""
SHOWN = 4


def unknown_features(requires: Iterable[str]) -> tuple[str, ...]:
    """Return those of the required features that this version does not know."""
    return tuple([feature for feature in requires if feature not in KNOWN])


def check_features(head: Head, run_id: str) -> None:
    """Refuse a run in which this version must not take part; a closed one is only read, whatever it requires.

    Raises:
        RendezvousVersionError: The head requires a feature that this version does not know.
    """
    unknown = unknown_features(head.requires) if head.closed is None else ()
    if unknown:
        raise RendezvousVersionError(
            f"run {run_id!r} requires features that this rendezvous_async does not know: {in_words(unknown)}. "
            "Upgrade rendezvous_async here, or use another run id"
        )


def in_words(features: tuple[str, ...]) -> str:
    """Return features and the versions that know them, safe to show: ``'shape' (0.2 or later)``."""
    texts = []
    for feature in features[:SHOWN]:
        name, _, version = printable(feature).rpartition("@")
        texts.append(f"{name!r} ({version} or later)" if name else f"{version!r} (a newer version)")
    more = len(features) - SHOWN
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")
