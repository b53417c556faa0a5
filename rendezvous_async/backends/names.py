"""Names of keys and subtrees: which are valid, and which subtrees contain a key.

A key is segments of printable characters between single slashes; a name that ends in a slash is a subtree.
"""

from __future__ import annotations

from functools import lru_cache

from rendezvous_async.texts import quoted

__all__ = ["MAX_KEY_LENGTH", "check_key", "check_name", "covers", "name_size", "place_of", "subtrees_of", "widest"]

DEFAULT_NAMESPACE = "rendezvous_async"
MAX_KEY_LENGTH = 1024
REMEMBERED_SUBTREES = 4096
REMEMBERED_LENGTH = 128
"""Bounds of the caches below: how many subtrees, and how long they may be; long names would take megabytes."""
_RECORDS = frozenset({"nodes", "seats", "rounds"})
_RUN_DEPTH = 8


def name_size(name: str) -> int:
    """Return the length of a name in bytes."""
    return len(name) if name.isascii() else len(name.encode())


def place_of(key: str) -> tuple[str, bool]:
    """Return the prefix of a key's run, and whether the key is in the store of a round.

    A run's keys begin with its namespace, which may have several segments, and its id; the names of its records
    follow. If there is no such name, the first two segments stand for the run.
    """
    subtree = key[: key.rfind("/") + 1]
    place = _remembered_place(subtree) if len(subtree) <= REMEMBERED_LENGTH else _place_in(subtree)
    return place if place[0] else (key, False)


def _place_in(subtree: str) -> tuple[str, bool]:
    """Return the result of ``place_of`` for keys in a subtree; the prefix is "" if the subtree contains runs."""
    segments = subtree.split("/", _RUN_DEPTH)[:-1]
    for depth in range(2, len(segments)):
        if segments[depth] in _RECORDS:
            return "/".join(segments[:depth]), segments[depth] == "rounds" and len(segments) > depth + 1
    return "/".join(segments[:2]) if len(segments) > 1 else "", False


_remembered_place = lru_cache(REMEMBERED_SUBTREES)(_place_in)


def covers(name: str, key: str) -> bool:
    """Return whether ``name`` is ``key``, or a subtree that contains it."""
    return key.startswith(name) if name.endswith("/") else key == name


def subtrees_of(key: str) -> tuple[str, ...]:
    """Return every subtree that contains ``key``: ``a/`` and ``a/b/`` for ``a/b/c``."""
    subtree = key[: key.rfind("/") + 1]
    return _remembered(subtree) if len(subtree) <= REMEMBERED_LENGTH else _holders_of(subtree)


def _holders_of(subtree: str) -> tuple[str, ...]:
    """Return a subtree and all that contain it, the widest first."""
    return tuple([subtree[: end + 1] for end, letter in enumerate(subtree) if letter == "/"])


_remembered = lru_cache(REMEMBERED_SUBTREES)(_holders_of)  # Thousands of keys share a few subtrees.


def widest(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that no subtree among them covers."""
    for name in names:
        if name[-1] == "/":
            break
    else:
        return names
    subtrees = {name for name in names if name[-1] == "/"}
    return tuple([name for name in dict.fromkeys(names) if subtrees.isdisjoint(subtrees_of(name.removesuffix("/")))])


def check_key(key: str) -> str:
    """Return ``key`` if it is a valid key; raise ValueError otherwise."""
    if not key or key[-1] == "/":
        raise ValueError(f"a key must not be empty or end in a slash: {quoted(key)}")
    return check_name(key)


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid key or subtree (``""`` is the whole run); raise ValueError otherwise."""
    if len(name) > MAX_KEY_LENGTH:
        raise ValueError(f"a key has at most {MAX_KEY_LENGTH} characters, not {len(name)}: {name[:64]!r}...")
    if name.startswith("/") or "//" in name or not name.isprintable():
        raise ValueError(f"a key has segments of printable characters between single slashes, unlike {quoted(name)}")
    return name
