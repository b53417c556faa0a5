"""A server's figures in the text format of Prometheus. Pure, but for reading the overview."""

from __future__ import annotations

from collections import Counter

from rendezvous_async.cli.overview import Overview
from rendezvous_async.core.diagnosis import Role

__all__ = ["metrics"]


def metrics(overview: Overview) -> str:
    """Return all figures as Prometheus reads them."""
    server = overview.server
    lines: list[str] = []

    def family(name: str, help: str, samples: list[tuple[dict[str, str], int]]) -> None:
        lines.append(f"# HELP rdzv_{name} {help}")
        lines.append(f"# TYPE rdzv_{name} gauge")
        for labels, value in samples:
            inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            lines.append(f"rdzv_{name}{f'{{{inner}}}' if inner else ''} {value}")

    family("connections", "Open connections.", [({}, server.connections)])
    family("sessions", "Open sessions.", [({}, server.table.sessions)])
    family("keys", "Keys in the table.", [({}, len(server.table))])
    family("table_bytes", "Bytes that the table keeps, as the limit counts them.", [({}, server.table.size)])
    family("revision", "The table's revision: counts commits.", [({}, server.table.revision)])
    family("failed", "1 if the server's log has failed.", [({}, int(server.failure is not None))])
    runs = [(run.run_id, run.status) for run in overview.runs() if run.status is not None]
    family("run_round", "The last round that formed.", [({"run_id": id}, status.round) for id, status in runs])
    family("run_closed", "1 if the run is closed.", [({"run_id": id}, int(s.closed is not None)) for id, s in runs])
    family("run_missing", "Nodes that a round still needs.", [({"run_id": id}, s.missing) for id, s in runs])
    family("run_absent", "Members that are not here.", [({"run_id": id}, len(s.absent)) for id, s in runs])
    counts = [(id, Counter(present.role for present in status.here)) for id, status in runs]
    family(
        "run_nodes",
        "Live nodes by what they do.",
        [({"run_id": id, "role": role.value}, counter[role]) for id, counter in counts for role in Role],
    )
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
