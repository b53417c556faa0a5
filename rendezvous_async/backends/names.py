"""Names of keys and subtrees: which are allowed, and what covers what.

A key is segments of printable characters between single slashes; with a slash at its end it is a subtree.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["MAX_KEY_LENGTH", "check_key", "check_name", "covers", "name_size", "place_of", "subtrees_of", "widest"]

MAX_KEY_LENGTH = 1024
REMEMBERED_SUBTREES = 4096
REMEMBERED_LENGTH = 128
"""How many subtrees, of which length at most, are remembered with those that hold them; long ones take megabytes."""
_RECORDS = frozenset({"nodes", "seats", "rounds"})
_RUN_DEPTH = 8


def name_size(name: str) -> int:
    """Return how many bytes a name takes."""
    return len(name) if name.isascii() else len(name.encode())


def place_of(key: str) -> tuple[str, bool]:
    """Return the start that all keys of the key's run have, and whether it is in the store of a round.

    A run's keys begin with its namespace, which may have several segments, and its id; the names of its records come
    next. Where none of those is found, the first two segments stand for the run.
    """
    subtree = key[: key.rfind("/") + 1]
    place = _remembered_place(subtree) if len(subtree) <= REMEMBERED_LENGTH else _place_in(subtree)
    return place if place[0] else (key, False)


def _place_in(subtree: str) -> tuple[str, bool]:
    """Return what ``place_of`` does for the keys in a subtree; "" if it holds runs."""
    segments = subtree.split("/", _RUN_DEPTH)[:-1]
    for depth in range(2, len(segments)):
        if segments[depth] in _RECORDS:
            return "/".join(segments[:depth]), segments[depth] == "rounds" and len(segments) > depth + 1
    return "/".join(segments[:2]) if len(segments) > 1 else "", False


_remembered_place = lru_cache(REMEMBERED_SUBTREES)(_place_in)


def covers(name: str, key: str) -> bool:
    """Tell whether ``name`` is ``key``, or a subtree that holds it."""
    return key.startswith(name) if name.endswith("/") else key == name


def subtrees_of(key: str) -> tuple[str, ...]:
    """Return every subtree that holds ``key``: ``a/`` and ``a/b/`` for ``a/b/c``."""
    subtree = key[: key.rfind("/") + 1]
    return _remembered(subtree) if len(subtree) <= REMEMBERED_LENGTH else _holders_of(subtree)


def _holders_of(subtree: str) -> tuple[str, ...]:
    """Return a subtree and all that hold it, the widest first."""
    return tuple([subtree[: end + 1] for end, letter in enumerate(subtree) if letter == "/"])


_remembered = lru_cache(REMEMBERED_SUBTREES)(_holders_of)  # thousands of keys share a few


def widest(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without those that a subtree among them covers."""
    for name in names:
        if name[-1] == "/":
            break
    else:
        return names
    subtrees = {name for name in names if name[-1] == "/"}
    return tuple([name for name in dict.fromkeys(names) if subtrees.isdisjoint(subtrees_of(name.removesuffix("/")))])


def check_key(key: str) -> str:
    """Return ``key`` if it may name an entry."""
    if not key or key[-1] == "/":
        raise ValueError(f"a key must not be empty or end in a slash: {key!r}")
    return check_name(key)


def check_name(name: str) -> str:
    """Return ``name`` if it may name a key or, with a slash at its end, a subtree; ``""`` is the whole run."""
    if len(name) > MAX_KEY_LENGTH:
        raise ValueError(f"a key has at most {MAX_KEY_LENGTH} characters, not {len(name)}: {name[:64]!r}...")
    if name.startswith("/") or "//" in name or not name.isprintable():
        raise ValueError(f"a key has segments of printable characters between single slashes, unlike {name!r}")
    return name
