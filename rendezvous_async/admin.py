"""What anybody with access to the backend can do to a run, member or not: look, scale, close, evict, purge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

import msgspec

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import Backend, Condition, Delete, Entry, Put
from rendezvous_async.core.chronicle import closing, counted_in, scaling
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.diagnosis import Status, diagnose
from rendezvous_async.core.features import check_features
from rendezvous_async.core.history import HISTORY, HistoryRecord, history_key
from rendezvous_async.core.spec import Spec, let_in, rescaled, spec_of
from rendezvous_async.core.state import (
    COORDINATOR,
    NODES,
    SEATS,
    STATE,
    Closed,
    Head,
    Node,
    Post,
    Seat,
    node_key,
    node_of,
)
from rendezvous_async.errors import RendezvousClosedError, RendezvousStateError, RendezvousVersionError
from rendezvous_async.settings import Settings, check_encodable, check_id
from rendezvous_async.texts import quoted

__all__ = [
    "check_reason",
    "close_run",
    "evict_node",
    "let_newcomers_in",
    "purge_run",
    "read_head",
    "read_history",
    "read_records",
    "read_status",
    "scale_run",
    "status_of",
]

R = TypeVar("R", Node, Post, Seat)
Since: TypeAlias = Callable[[], float | None] | None


def read_head(entry: Entry | None) -> Head | None:
    """Return the head that ``entry`` holds, stamped with its round's token."""
    if entry is None:
        return None
    return decode(Head, entry.value, entry.key).stamped((entry.token.epoch, entry.token.revision))


async def read_status(backend: Backend) -> Status:
    """Read the status of the backend's run; see ``status_of``."""
    state = await backend.get(STATE)
    post = await backend.get(COORDINATOR)
    seats = await backend.list(SEATS)
    nodes = await backend.list(NODES)
    return status_of(backend.run_id, state, post, seats.entries, nodes.entries)


def status_of(
    run_id: str, state: Entry | None, post: Entry | None, seats: Iterable[Entry], nodes: Iterable[Entry]
) -> Status:
    """Return the status of a run from its entries. Entries that cannot be decoded are named and not used.

    Raises:
        RendezvousStateError: The run's state itself cannot be read.
    """
    damaged: list[str] = []

    def read(kind: type[R], entry: Entry) -> Iterator[R]:
        try:
            yield decode(kind, entry.value, entry.key)
        except RendezvousStateError:
            damaged.append(entry.key)

    status = diagnose(
        run_id,
        read_head(state),
        {node_of(entry.key): seat for entry in seats for seat in read(Seat, entry)},
        [(node_of(e.key), node, e.token.revision) for e in nodes for node in read(Node, e)],
        None if post is None else next((found.node for found in read(Post, post)), None),
    )
    return msgspec.structs.replace(status, damaged=tuple(damaged))


def check_reason(reason: object) -> str:
    """Return the reason for a close; raise ValueError if it cannot be stored."""
    if not isinstance(reason, str):
        raise ValueError(f"reason must be a string, not {quoted(reason)}")
    return check_encodable("reason", reason)


async def close_run(
    backend: Backend, reason: str, by: str, settings: Settings | None = None, since: Since = None
) -> Closed:
    """Close the run for everyone, finally. Retries until it is closed, and returns who closed it and why.

    Args:
        backend: The run's backend.
        reason: Shown to the others.
        by: The node or person that closes it.
        settings: The settings of the head that is created if the run has none yet.
        since: Returns when the last change was seen, by this node's clock, if it was.

    Raises:
        ValueError: The reason is no string that can be stored, or too long for a record; nothing was written.
        RendezvousVersionError: The run is of a newer version, which alone may write its head; nothing was written.
    """
    closed = Closed(check_reason(reason), by)
    entry = await backend.get(STATE)
    while True:
        try:
            head = read_head(entry)
        except RendezvousVersionError:
            raise
        except RendezvousStateError:
            head = None  # Closing must work on a damaged run too: it is the way to get rid of it.
        if head is not None and head.closed is not None:
            return head.closed
        if head is None:
            head = Head(settings=settings or Settings(1, 1))
        check_features(head, backend.run_id)
        put = Put(STATE, encode(counted_in(msgspec.structs.replace(head, closed=closed))))
        record = _put_record(closing(head, closed), since)
        commit = await backend.commit(put, record, when=[Condition(STATE, None if entry is None else entry.token)])
        if commit.won:
            return closed
        entry = commit.entry(STATE)


async def scale_run(
    backend: Backend,
    nodes: int | str | tuple[int, int] | list[int] | None = None,
    target: int | None = None,
    by: str = "",
    since: Since = None,
) -> Spec:
    """Change the sizes that worlds of the run may have, or the target, while it runs; return what holds then.

    Nodes that were started with the old sizes still match. A world that is too large now re-forms, and its last ranks
    become spares; one that is too small is kept until a larger one can form. Nodes of a version that cannot scale are
    out for good, members too.

    Args:
        backend: The run's backend.
        nodes: The sizes, as ``connect`` takes them; None keeps them. New sizes drop the old target.
        target: The size that no world exceeds; a world of this size forms at once. 0 removes the target.
        by: The node or person that scales it, for the history.
        since: Returns when the last change was seen, by this node's clock, if it was.

    Raises:
        ValueError: Neither is given, or no world can have these sizes or that target; nothing was written.
        RendezvousClosedError: The run is closed.
        RendezvousStateError: There is no such run.
        RendezvousVersionError: The run is of a newer version, which alone may write its head.
    """

    def record_of(head: Head, scaled: Head) -> HistoryRecord:
        return scaling(head, scaled, by)

    return spec_of(await _rewrite_head(backend, lambda head: rescaled(head, nodes, target), record_of, since))


async def let_newcomers_in(backend: Backend) -> int:
    """Let in the newcomers that are held back, see ``Timeouts.grow``; do nothing if there are none.

    Returns:
        How many were held back. Right after the run was scaled nobody has counted them, and it is 0: those whom the
        coordinator counts next are let in nevertheless.

    Raises:
        RendezvousClosedError: The run is closed.
        RendezvousStateError: There is no such run.
        RendezvousVersionError: The run is of a newer version, which alone may write its head.
    """
    held_back = 0

    def change(head: Head) -> Head:
        nonlocal held_back
        held_back = head.held_back
        return let_in(head)

    await _rewrite_head(backend, change)
    return held_back


async def _rewrite_head(
    backend: Backend,
    change: Callable[[Head], Head],
    record_of: Callable[[Head, Head], HistoryRecord] | None = None,
    since: Since = None,
) -> Head:
    """Change the head of an open run, and return the new one; retry as long as others are faster."""
    entry = await backend.get(STATE)
    while True:
        head = read_head(entry)
        if entry is None or head is None:
            raise RendezvousStateError(f"there is no run {backend.run_id!r} here: nobody has joined it yet")
        if head.closed is not None:
            raise RendezvousClosedError(head.closed.reason, head.closed.by, run_id=backend.run_id)
        check_features(head, backend.run_id)
        changed = change(head)
        if changed == head:
            return head
        records = []
        if record_of is not None:
            records = [_put_record(record_of(head, changed), since)]
            changed = counted_in(changed)
        commit = await backend.commit(Put(STATE, encode(changed)), *records, when=[Condition(STATE, entry.token)])
        if commit.won:
            return changed
        entry = commit.entry(STATE)


async def read_history(backend: Backend) -> tuple[HistoryRecord, ...]:
    """Read the history of the backend's run, the oldest change first; empty if nothing was recorded."""
    return tuple(read_records((await backend.list(HISTORY)).entries))


def read_records(entries: Iterable[Entry]) -> Iterator[HistoryRecord]:
    """Yield the records in these entries, the oldest first; those that cannot be read are passed over."""
    for entry in sorted(entries, key=lambda entry: entry.token.revision):
        with suppress(RendezvousStateError):
            yield decode(HistoryRecord, entry.value, entry.key)


def _put_record(record: HistoryRecord, since: Since) -> Put:
    seen = None if since is None else since()
    lasted = None if seen is None else round(clock.now() - seen, 3)
    return Put(history_key(record.n), encode(msgspec.structs.replace(record, at=round(clock.wall(), 3), since=lasted)))


async def evict_node(backend: Backend, node: str) -> bool:
    """Remove a node by ending the session that its record names; False if there is no such node.

    Raises:
        ValueError: No node can have that id.
    """
    entry = await backend.get(node_key(check_id("node", node)))
    if entry is None:
        return False
    if entry.session is None:
        await backend.commit(Delete(entry.key), when=[Condition(entry.key, entry.token)])
    else:
        await backend.end_session(entry.session)
    return True


async def purge_run(backend: Backend) -> bool:
    """Remove every key of a closed run; False if nodes are still here or the run is not closed."""
    state = await backend.get(STATE)
    head = read_head(state)
    if (head is not None and head.closed is None) or (await backend.list(NODES)).entries:
        return False
    when = [Condition(STATE, None if state is None else state.token)]
    for name in ("rounds/", SEATS, ""):  # A backend may limit how much one commit deletes.
        if not (await backend.commit(Delete(name), when=when)).won:
            return False
    return True
