"""The fields of log records: what ``extra=`` says of the run, the node and the round, under one name each."""

from __future__ import annotations

__all__ = ["NODE", "ROUND", "RUN", "log_fields"]

RUN = "rdzv_run"
NODE = "rdzv_node"
ROUND = "rdzv_round"


def log_fields(run: str, node: str = "", round: int | None = None) -> dict[str, object]:
    """Return the ``extra=`` of a log record: what is known of these. Round 0 is the time before the first."""
    fields: dict[str, object] = {RUN: run}
    if node:
        fields[NODE] = node
    if round is not None:
        fields[ROUND] = round
    return fields
