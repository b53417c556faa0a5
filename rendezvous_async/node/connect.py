"""``connect``: what a node says of itself and of the run, checked before anything is sent."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from typing import Any

from rendezvous_async.backends.base import Backend
from rendezvous_async.backends.options import BackendOptions, read_options
from rendezvous_async.backends.schemes import find_scheme
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.state import Node
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.logs import log_fields
from rendezvous_async.node.events import Events
from rendezvous_async.node.participant import Participant
from rendezvous_async.node.rendezvous import Rendezvous
from rendezvous_async.settings import (
    Endpoint,
    Timeouts,
    check_encodable,
    check_id,
    check_seconds,
    parse_endpoint,
    settings_for,
    show_endpoint,
)
from rendezvous_async.sizes import parse_sizes
from rendezvous_async.texts import quoted

__all__ = ["connect"]

SHORTEST_INTERVAL = 0.001
LONGEST_TTL = 86_400
"""The least seconds between keep-alives, and the most seconds without one until a node counts as lost."""


def connect(
    endpoint: str | Endpoint | None = None,
    *,
    run_id: str,
    nodes: int | str | tuple[int, int] | list[int],
    timeouts: Timeouts | None = None,
    keep_alive_interval: float = 1.0,
    keep_alive_max_attempt: int = 5,
    ranks: str = "sticky",
    address: str | None = None,
    labels: Mapping[str, str] | None = None,
    domain: str = "",
    per_domain: int = 1,
    secret: str | bytes | None = None,
    tls: Any = None,
    backend: Backend | None = None,
    node: str | None = None,
    rng: random.Random | None = None,
    **options: Any,
) -> Rendezvous:
    """Return a rendezvous to be entered with ``async with``; nothing is sent before the first call.

    Args:
        endpoint: Where the run's state lives, for example ``tcp://head:29400``.
        run_id: The run's id; nodes with the same run id meet.
        nodes: How many: a count, ``"min:max"`` or ``(min, max)``, ``"min:max:step"``, or the allowed sizes as a list:
            ``"4,8,16"`` or ``[4, 8, 16]``.
        timeouts: How long to wait for what.
        keep_alive_interval: Seconds between keep-alives.
        keep_alive_max_attempt: How many keep-alives in a row must fail before the others count this node as lost.
        ranks: ``sticky``, ``sorted`` or ``label:<name>``.
        address: How other members reach this node; by default the host's name.
        labels: What this node says about itself.
        domain: A label, for example ``"nvlink"``: nodes with equal values of it are a domain, and get contiguous ranks.
            A node without the label is a spare.
        per_domain: A world has a multiple of this number of nodes from each domain: whole domains only.
        secret: Shared secret of the backend, if it has one.
        tls: TLS settings of the backend, if it uses TLS.
        backend: An open backend to use instead of an endpoint; it stays open.
        node: This node's id; by default ``host_pid_8hex``.
        rng: Where random ids and delays come from; for tests that must repeat.
        **options: The endpoint's options, the same as in its query string.

    Raises:
        ValueError: An argument is wrong; its value is in the text.
    """
    timeouts = Timeouts() if timeouts is None else timeouts
    _check_types(timeouts=timeouts, backend=backend, rng=rng)
    _check_domain(domain, per_domain)
    settings = settings_for(
        parse_sizes(nodes),
        ranks,
        timeouts.last_call,
        timeouts.regroup_seconds,
        domain,
        per_domain,
        float(timeouts.grow),
    )
    if check_seconds("keep_alive_interval", keep_alive_interval) < SHORTEST_INTERVAL:
        raise ValueError(
            f"keep_alive_interval must be at least {SHORTEST_INTERVAL} s, not {quoted(keep_alive_interval)}"
        )
    attempts: object = keep_alive_max_attempt
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 2 <= attempts <= 1000:
        raise ValueError(f"keep_alive_max_attempt must be a count from 2 to 1000, not {quoted(keep_alive_max_attempt)}")
    if float(keep_alive_interval) * keep_alive_max_attempt > LONGEST_TTL:
        raise ValueError(
            f"keep_alive_interval * keep_alive_max_attempt must be at most {LONGEST_TTL} s, not "
            f"{quoted(keep_alive_interval)} * {quoted(keep_alive_max_attempt)}"
        )
    labels = _check_labels(labels)
    if settings.label is not None and settings.label not in labels:
        raise ValueError(
            f"ranks={quoted(ranks)} needs the label {settings.label!r} on every node, not {quoted(labels)}"
        )
    for label, meaning in ((settings.label, f"ranks={quoted(ranks)}"), (domain, f"domain={quoted(domain)}")):
        if label and labels.get(label) == "":
            raise ValueError(
                f"the label {quoted(label)} is empty, and {meaning} goes by its value: give it one, or leave it out"
            )
    if (endpoint is None) == (backend is None):
        shown = show_endpoint(endpoint)
        raise ValueError(f"connect needs an endpoint or a backend, and not both; the endpoint is {shown}")
    if endpoint is not None and not isinstance(endpoint, Endpoint):
        endpoint = parse_endpoint(endpoint)
    check_id("run_id", run_id)
    if backend is not None and backend.run_id != run_id:
        raise ValueError(f"run_id is {run_id!r}, but the backend is open for run {backend.run_id!r}")
    rng = random.Random() if rng is None else rng
    if node is None:
        node = f"{socket.gethostname()}_{os.getpid()}_{rng.getrandbits(32):08x}"
    check_id("node", node)
    identity = Node(
        arrival="",
        fingerprint=settings.fingerprint,
        address=socket.gethostname() if address is None else address,
        labels=labels,
    )
    _check_identity(identity)
    options |= {name: value for name, value in (("secret", secret), ("tls", tls)) if value is not None}
    useless = sorted(options)
    if backend is not None and useless:
        raise ValueError(f"an open backend has its options already; connect has no use for {', '.join(useless)}")
    asked: BackendOptions | None = None
    if endpoint is not None:
        if endpoint.scheme == "tcp" and "linger" not in endpoint.options:
            options.setdefault("linger", timeouts.close)  # A host waits for the others no longer than that.
        asked = read_options(find_scheme(endpoint).options, endpoint, options, connect.__kwdefaults__ or ())
    fields = log_fields(run_id, node, 0)
    who = Participant(
        node=node,
        fields=fields,
        settings=settings,
        timeouts=timeouts,
        interval=float(keep_alive_interval),
        ttl=keep_alive_interval * keep_alive_max_attempt,
        rng=rng,
        events=Events(f"run {run_id!r}: node {node}", fields),
    )
    source = endpoint if backend is None else backend
    assert source is not None
    return Rendezvous(run_id, source, asked, who, identity)


def _check_types(*, timeouts: object, backend: object, rng: object) -> None:
    if not isinstance(timeouts, Timeouts):
        raise ValueError(f"timeouts must be a Timeouts, for example Timeouts(join=60), not {quoted(timeouts)}")
    if backend is not None and not isinstance(backend, Backend):
        shown = show_endpoint(backend) if isinstance(backend, str | bytes) else repr(backend)
        raise ValueError(f"backend must be an open Backend, not {shown}")
    if rng is not None and not isinstance(rng, random.Random):
        raise ValueError(f"rng must be a random.Random, not {quoted(rng)}")


def _check_domain(domain: object, per_domain: object) -> None:
    if not isinstance(domain, str):
        raise ValueError(f'domain must be the name of a label, for example "nvlink", not {quoted(domain)}')
    check_encodable("domain", domain)
    if type(per_domain) is not int:
        raise ValueError(f"per_domain must be a count of nodes, not {quoted(per_domain)}")


def _check_labels(labels: object) -> dict[str, str]:
    """Return the labels; raise ValueError unless they map strings to strings."""
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise ValueError(f'labels must map strings to strings, for example {{"rack": "7"}}, not {quoted(labels)}')
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(
                f'labels must map strings to strings, for example {{"rack": "7"}}, not {quoted(name)}: {quoted(value)}'
            )
    return dict(labels)


def _check_identity(identity: Node) -> None:
    """Raise ValueError if other nodes could not read this one's record: they would pass it over, and it would wait."""
    address: object = identity.address
    if not isinstance(address, str):
        raise ValueError(f"address must be a string, not {quoted(address)}")
    try:
        decode(Node, encode(identity))
    except (RendezvousStateError, UnicodeEncodeError) as error:
        raise ValueError(
            f"address and labels must be strings of at most 1024 characters, and at most 64 labels, not "
            f"address={identity.address!r:.100} and labels={identity.labels!r:.200}: {error}"
        ) from error
