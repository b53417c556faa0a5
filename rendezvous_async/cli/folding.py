"""Fits rows of nodes into a number of lines: what is healthy is folded first. Pure.

A row is ``(node, state, rank, ...)``, with ``-`` for no rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rendezvous_async.texts import counted, printable

__all__ = ["Row", "fold", "ranges"]

Row = tuple[str, ...]

NAME = 34
"""Columns for the names of folded nodes; half of it for each of the two that are shown."""
TAIL = 4
"""How much is shown of what the names have in common, if they are long."""
RANKS = 24


def fold(rows: Sequence[Row], room: int, healthy: str) -> list[Row]:
    """Return one row for each node if they fit, else one for all healthy nodes, else one for each state."""
    if len(rows) <= room:
        return list(rows)
    by_state: dict[str, list[Row]] = {}
    for row in rows:
        by_state.setdefault(row[1], []).append(row)
    others = [row for row in rows if row[1] != healthy]
    if len(others) + (healthy in by_state) <= room:
        return [*others, *(_folded(by_state[state]) for state in by_state if state == healthy)]
    return [_folded(by_state[state]) for state in sorted(by_state, key=lambda state: state == healthy)][:room]


def _folded(rows: list[Row]) -> Row:
    """Return one row for nodes of one state; a column in which they differ is empty."""
    if len(rows) == 1:
        return rows[0]
    first, last = printable(rows[0][0]), printable(rows[-1][0])
    same = next((at for at, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1), 0)
    if len(first) > NAME // 2 and same > NAME // 4:
        first, last = f"…{first[same - TAIL :]}", f"…{last[same - TAIL :]}"
    names = [_short(name, NAME // 2) for name in (first, last)]
    rest = [cells[0] if len(set(cells)) == 1 else "" for cells in zip(*(row[3:] for row in rows), strict=True)]
    ranks = ranges(int(row[2]) for row in rows if row[2].isdecimal())
    return (f"{counted(len(rows), 'node')}: {' to '.join(names)}", rows[0][1], _short(ranks, RANKS) or "-", *rest)


def ranges(numbers: Iterable[int]) -> str:
    """Return ``0-3, 5, 7-9`` for these numbers."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
