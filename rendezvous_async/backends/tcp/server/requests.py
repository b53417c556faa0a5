"""One function per kind of request, and the checks of what a client may do.

Requests are untrusted: names, sizes and sessions are checked here, whatever the client has checked. A refused request
has changed nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rendezvous_async.backends.names import place_of, subtrees_of, widest
from rendezvous_async.backends.table.table import CommitId
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.values import FIRST_WRITES, Condition, Put, Token, Write, names_session
from rendezvous_async.causes import known_cause
from rendezvous_async.errors import RendezvousSessionError

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.server.connection import Connection

__all__ = ["ANSWERS", "Watcher", "end_watch", "too_long"]

MAX_NAME: Final = 4096
MAX_DEPTH: Final = 32
"""Upper bound on the slashes in a name: the table has an index entry for each."""
DEPTH: Final = 8
"""Upper bound on the average number of slashes in the names of the largest commit."""
MAX_UNSETTLED: Final = 65_536
NAME_COST: Final = 64
"""The fixed cost of a watched name, in characters."""


class Watcher:
    """A watch as the server sees it: the names, and the position up to which the watcher knows them."""

    __slots__ = ("connection", "dirty", "id", "names", "seen")

    def __init__(self, connection: Connection, id: int, names: tuple[str, ...], seen: Token) -> None:
        self.connection = connection
        self.id = id
        self.names = names
        self.seen = seen
        self.dirty = False


def _get(peer: Connection, request: wire.Get) -> None:
    if _may_name(peer, request.id, request.key):
        peer.send(wire.Found(request.id, peer.server.table.get(request.key)))


def _list(peer: Connection, request: wire.List) -> None:
    if _may_name(peer, request.id, request.name):
        table = peer.server.table
        if table.has_more(peer.server.limits.listed, (request.name,)):
            peer.fail(request.id, wire.FAILED_LIMIT, too_long(peer))
            return
        listing = table.list(request.name)
        peer.send_if_short(request.id, wire.Listed(request.id, listing), listing.entries)


def _transact(peer: Connection, request: wire.Transact) -> None:
    id = request.id
    if request.number - request.settled > MAX_UNSETTLED:
        raise wire.FrameError(f"more than {MAX_UNSETTLED} commits whose answers must be remembered")
    assert peer.client is not None
    commit_id = CommitId(peer.client, request.number, request.settled)
    if _may_write(peer, id, request.writes, request.when) and (
        peer.server.table.has_answer(commit_id)
        or _has_room(peer, id, peer.server.quota.refuse_commit(peer.scope, peer.client, _puts(request.writes)))
    ):
        try:
            commit = peer.server.commit(request.writes, request.when, commit_id)
        except RendezvousSessionError as error:
            peer.fail(id, wire.FAILED_SESSION, str(error))
        else:
            peer.send_if_short(id, wire.Transacted(id, commit), commit.entries)


def _follow(peer: Connection, request: wire.Follow) -> None:
    id = request.id
    if names := _may_follow(peer, id, request.names):
        listing = peer.server.table.changes(names, request.after)
        if peer.send_if_short(id, wire.Changed(id, listing), () if listing is None else listing.entries):
            _start_watch(peer, id, names)


def _may_follow(peer: Connection, id: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a new watch without redundant ones; none if it was refused."""
    limits = peer.server.limits
    if id in peer.watchers:
        raise wire.FrameError(f"a second watch with the id {id}")
    if not names or len(names) > limits.names or len(peer.watchers) >= limits.watches:
        peer.fail(
            id,
            wire.FAILED_LIMIT,
            f"a connection may have {limits.watches} watches, of 1 to {limits.names} names each",
        )
        return ()
    if not _may_name(peer, id, *names):
        return ()
    names = widest(names)
    if peer.watched + _cost(names) > limits.watched:
        peer.fail(
            id,
            wire.FAILED_LIMIT,
            f"the names that a connection watches may have {limits.watched} characters, with {NAME_COST} more for each",
        )
        return ()
    if peer.server.table.has_more(limits.listed, names):
        peer.fail(id, wire.FAILED_LIMIT, too_long(peer))
        return ()
    return names


def _start_watch(peer: Connection, id: int, names: tuple[str, ...]) -> None:
    """Tell the peer of changes from now on."""
    watcher = Watcher(peer, id, names, peer.server.table.token)
    peer.watchers[id] = watcher
    peer.watched += _cost(names)
    peer.server.fanout.add(names, watcher)


def _unfollow(peer: Connection, request: wire.Unfollow) -> None:
    end_watch(peer, request.id)


def end_watch(peer: Connection, id: int) -> None:
    """End the watch with this id, if there is one."""
    watcher = peer.watchers.pop(id, None)
    if watcher is not None:
        peer.watched -= _cost(watcher.names)
        peer.server.fanout.remove(watcher.names, watcher)


def _cost(names: tuple[str, ...]) -> int:
    return sum(map(len, names)) + NAME_COST * len(names)


def _open_session(peer: Connection, request: wire.OpenSession) -> None:
    id, ttl, limits = request.id, request.ttl, peer.server.limits
    names: tuple[str, ...] = ()
    if not 0 < ttl <= limits.longest_ttl:
        peer.fail(id, wire.FAILED_INVALID, f"a session's ttl is at most {limits.longest_ttl:g} s, not {ttl:g}")
    elif len(request.writes) > FIRST_WRITES or len(request.when) > FIRST_WRITES:
        # In the log each write has its session's full name, which may be a thousand times as long as ``OWN``.
        peer.fail(id, wire.FAILED_LIMIT, f"a session's first commit has at most {FIRST_WRITES} writes")
    elif names_session(request.writes):
        peer.fail(id, wire.FAILED_INVALID, "the first commit of a session puts nothing under another one")
    elif (
        _may_write(peer, id, request.writes, request.when)
        and (not request.names or (names := _may_follow(peer, id, request.names)))
        and _has_room(peer, id, peer.server.quota.refuse_session(peer.scope, _puts(request.writes)))
    ):
        granted = max(ttl, limits.shortest_ttl)
        session, commit = peer.server.open_session(peer, granted, request.writes, request.when)
        if names:
            listing = peer.server.table.changes(names, None)
            assert listing is not None
            if peer.try_to_send(wire.SessionOpened(id, session, granted, commit, listing), listing.entries):
                _start_watch(peer, id, names)
                return
        # A client whose watch was not started requests it separately, and is refused then if it is too large.
        entries = () if commit is None else commit.entries
        if not peer.send_if_short(id, wire.SessionOpened(id, session, granted, commit), entries):
            peer.server.end_session(session)


def _refresh(peer: Connection, request: wire.Renew | wire.Resume) -> None:
    if _may_use(peer, request.id, request.session):
        refresh = peer.server.keep_alive if isinstance(request, wire.Renew) else peer.server.resume
        if refresh(peer, request.session):
            peer.send_at_once(wire.Done(request.id))
        else:
            peer.fail(request.id, wire.FAILED_SESSION, f"session {request.session} has ended")


def _end_session(peer: Connection, request: wire.EndSession) -> None:
    if _may_use(peer, request.id, request.session):
        peer.server.end_session(request.session, known_cause(request.cause))
        peer.send(wire.Done(request.id))


def _ping(peer: Connection, request: wire.Ping) -> None:
    peer.send_at_once(wire.Done(request.id))


def _goodbye(peer: Connection, _: wire.Goodbye) -> None:
    peer.server.end_sessions_of(peer)
    peer.close()
    peer.server.forget(peer)


# Checks


def too_long(peer: Connection) -> str:
    """Return the message for an answer over the limit."""
    return f"the answer has more than {peer.server.limits.listed} keys or {wire.MAX_ANSWER} bytes; ask for less"


def _may_name(peer: Connection, id: int, *names: str) -> bool:
    scope = peer.scope
    for name in names:
        if not _is_well_formed(name):
            peer.fail(id, wire.FAILED_INVALID, f"not a name: {name[:64]!r}")
            return False
        if not name.startswith(scope):
            peer.fail(id, wire.FAILED_DENIED, f"this client's secret opens {scope}* only, not {name}")
            return False
    most = DEPTH * peer.server.limits.writes
    if len(names) * MAX_DEPTH > most and sum([name.count("/") for name in names]) > most:
        peer.fail(id, wire.FAILED_LIMIT, f"the names in a request have at most {most} slashes; split it")
        return False
    return True


def _may_use(peer: Connection, id: int, session: str) -> bool:
    if peer.scope and session.partition("@")[2] != peer.scope:
        peer.fail(id, wire.FAILED_DENIED, f"session {session} is not one of those that {peer.scope}* opened")
        return False
    return True


def _may_write(peer: Connection, id: int, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> bool:
    limits, table = peer.server.limits, peer.server.table
    if len(writes) > limits.writes or len(when) > limits.writes:
        peer.fail(id, wire.FAILED_LIMIT, f"a commit has at most {limits.writes} writes and conditions")
        return False
    names = [condition.key for condition in when]
    sessions: list[str] = []
    deletes: list[str] = []
    puts = 0
    for write in writes:
        if isinstance(write, Put):
            names.append(write.key)
            puts += 1
            if write.key.endswith("/"):
                peer.fail(id, wire.FAILED_INVALID, f"a key must not end in a slash: {write.key[:64]!r}")
                return False
            if write.session:  # not OWN
                sessions.append(write.session)
        else:
            names.append(write.name)
            if write.name.endswith("/"):  # single keys are bounded by the number of writes
                deletes.append(write.name)
    if not _may_name(peer, id, *names):
        return False
    if sessions and not _may_own(peer, id, sessions, writes):
        return False
    if deletes and table.has_more(limits.listed, deletes):
        peer.fail(id, wire.FAILED_LIMIT, f"a commit may delete {limits.listed} keys; delete smaller subtrees")
        return False
    return len(table) + puts <= limits.listed or not _is_crowded(peer, id, writes)


def _may_own(peer: Connection, id: int, sessions: list[str], writes: tuple[Write, ...]) -> bool:
    """Check the number of keys per session, which one commit must be able to delete; ``sessions`` has one per put."""
    table, most = peer.server.table, peer.server.limits.writes
    for session, keys in Counter(sessions).items():
        if not _may_use(peer, id, session):
            return False
        if table.keys_of(session) + keys > most:
            puts = [write.key for write in writes if isinstance(write, Put) and write.session == session]
            known = [entry for entry in map(table.get, puts) if entry is not None and entry.session == session]
            if table.keys_of(session) + len(puts) - len(known) > most:
                peer.fail(id, wire.FAILED_LIMIT, f"session {session} may have {most} keys")
                return False
    return True


def _is_crowded(peer: Connection, id: int, writes: tuple[Write, ...]) -> bool:
    """Refuse puts that would make the store of a round too large to list and delete."""
    table, most = peer.server.table, peer.server.limits.listed
    added: Counter[str] = Counter()
    new = [put.key for put in _puts(writes) if table.get(put.key) is None]
    for parent, keys in Counter([key[: key.rfind("/") + 1] for key in new]).items():
        run, is_data = place_of(parent)
        if is_data:
            for subtree in subtrees_of(parent)[run.count("/") + 2 :]:
                added[subtree] += keys
    for subtree, keys in added.items():
        if table.has_more(most - keys, (subtree,)):
            peer.fail(id, wire.FAILED_LIMIT, f"{subtree} may have {most} keys; delete some")
            return True
    return False


def _has_room(peer: Connection, id: int, why_not: str | None) -> bool:
    if why_not is not None:
        peer.fail(id, wire.FAILED_LIMIT, why_not)
    return why_not is None


def _puts(writes: tuple[Write, ...]) -> list[Put]:
    return [write for write in writes if isinstance(write, Put)]


ANSWERS: Final[dict[type, Callable[[Connection, Any], None]]] = {
    wire.Get: _get,
    wire.List: _list,
    wire.Transact: _transact,
    wire.Follow: _follow,
    wire.Unfollow: _unfollow,
    wire.OpenSession: _open_session,
    wire.Renew: _refresh,
    wire.Resume: _refresh,
    wire.EndSession: _end_session,
    wire.Ping: _ping,
    wire.Goodbye: _goodbye,
}


def _is_well_formed(name: str) -> bool:
    """Tell whether a correct client could have sent this name."""
    if not name or name[0] == "/" or "//" in name or not name.isprintable():
        return False
    return len(name) <= MAX_NAME and name.count("/") <= MAX_DEPTH
