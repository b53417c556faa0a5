"""The launcher's settings, validated on construction, and its error. Nothing is started here."""

from __future__ import annotations

from urllib.parse import unquote_plus

import msgspec

from rendezvous_async.backends.access import SECRETS
from rendezvous_async.settings import Timeouts, check_id, check_seconds, parse_endpoint
from rendezvous_async.sizes import check_domains, parse_sizes

__all__ = ["FAILED", "NPROC", "LaunchError", "Plan"]

FAILED = 1
"""The exit code of a job that failed without a worker's exit code."""
NPROC = "nproc"
"""The label that holds a node's number of workers."""


class LaunchError(Exception):
    """The launcher cannot continue.

    Attributes:
        code: The launcher's exit code.
    """

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one launcher runs, and in which run.

    Attributes:
        endpoint: The run's endpoint as the user wrote it; workers get it without its secrets.
        run_id: The run.
        nodes: The number of launchers in a round: ``"2"``, ``"2:4"``, ``"4:64:4"`` or ``"4,8,16"``.
        command: The command line of each worker.
        workers: The number of workers on this node.
        max_restarts: How often to restart the workers after failures on this node.
        grace: Seconds from SIGTERM to SIGKILL.
        timeouts: The rendezvous timeouts; ``join`` also bounds closing the run.
        connect_timeout: Seconds for the first read of the run's status.
        keep_alive_interval: Seconds between keep-alives.
        address: This node's address for the other nodes; None to detect it.
        node: This node's id; None to generate one.
        labels: What this node says about itself.
        domain: The label whose values are domains; empty: there are none.
        per_domain: A round has a multiple of this number of launchers from each domain.
    """

    endpoint: str
    run_id: str
    nodes: str
    command: tuple[str, ...]
    workers: int = 1
    max_restarts: int = 3
    grace: float = 15.0
    timeouts: Timeouts = Timeouts()
    connect_timeout: float = 30.0
    keep_alive_interval: float = 1.0
    address: str | None = None
    node: str | None = None
    labels: dict[str, str] = {}
    domain: str = ""
    per_domain: int = 1

    def __post_init__(self) -> None:
        parse_endpoint(self.endpoint)
        check_id("run_id", self.run_id)
        check_domains(parse_sizes(self.nodes), self.domain, self.per_domain)
        if NPROC in self.labels:
            raise ValueError(f"the label {NPROC!r} is the launcher's own: give the number of workers instead")
        if self.node is not None:
            check_id("node", self.node)
        if not self.command:
            raise ValueError("there is no command to launch")
        if self.workers < 1:
            raise ValueError(f"workers must be 1 or more, not {self.workers}")
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must be 0 or more, not {self.max_restarts}")
        for name in ("grace", "connect_timeout", "keep_alive_interval"):
            check_seconds(name, getattr(self, name))

    def __repr__(self) -> str:
        return f"<Plan of run {self.run_id!r} at {self.public_endpoint}>"

    @property
    def public_endpoint(self) -> str:
        """The endpoint as given, without the secrets in its query."""
        place, _, query = self.endpoint.partition("?")
        kept = [pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]) not in SECRETS]
        return "?".join([place, *filter(None, ["&".join(kept)])])
