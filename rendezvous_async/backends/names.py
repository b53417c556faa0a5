"""Names of keys and subtrees: which are allowed, and what covers what.

A key is segments of printable characters between single slashes; with a slash at its end it is a subtree.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["MAX_KEY_LENGTH", "check_key", "check_name", "covers", "name_size", "subtrees_of"]

MAX_KEY_LENGTH = 1024
REMEMBERED_SUBTREES = 4096
"""Of so many subtrees it is remembered in which others they are."""


def name_size(name: str) -> int:
    """Return how many bytes a name takes."""
    return len(name) if name.isascii() else len(name.encode())


def covers(name: str, key: str) -> bool:
    """Tell whether ``name`` is ``key``, or a subtree that holds it."""
    return key.startswith(name) if name.endswith("/") else key == name


def subtrees_of(key: str) -> tuple[str, ...]:
    """Return every subtree that holds ``key``: ``a/`` and ``a/b/`` for ``a/b/c``."""
    return _subtrees_at(key[: key.rfind("/") + 1])


@lru_cache(REMEMBERED_SUBTREES)
def _subtrees_at(subtree: str) -> tuple[str, ...]:
    """Return a subtree and all that hold it, the widest first; thousands of keys share a few."""
    return tuple([subtree[: end + 1] for end, letter in enumerate(subtree) if letter == "/"])


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
