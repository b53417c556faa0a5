"""What the programs of a cluster failed with, until a test is told: each failure once, with its own traceback."""

from __future__ import annotations

__all__ = ["Failures"]


class Failures:
    """The errors that nobody was told of yet, oldest first."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, float, BaseException]] = []

    def __repr__(self) -> str:
        return f"<Failures {[f'{node}: {error!r}' for node, _, error in self._pending]}>"

    def add(self, node: str, at: float, error: BaseException) -> None:
        """Remember what the program of a node failed with, and when."""
        self._pending.append((node, at, error))

    def raise_first(self) -> None:
        """Raise the oldest failure, if there is one; its notes name the others, which are not raised again."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        (node, at, first), *others = pending
        first.add_note(f"The program of {node} failed with it at {at:g} s of virtual time.")
        for node, at, error in others:
            first.add_note(f"The program of {node} failed too, at {at:g} s: {type(error).__name__}: {error}")
        raise first
