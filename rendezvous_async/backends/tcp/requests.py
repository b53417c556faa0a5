"""What a client asks and what it is answered: one function for each kind of request, and what a client may do.

A request comes from outside: names, sizes and sessions are checked again here, whatever the client has checked. What
is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rendezvous_async.backends.base import FIRST_WRITES, Condition, Put, Token, Write
from rendezvous_async.backends.table import CommitId
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.values import names_session
from rendezvous_async.errors import RendezvousSessionError

if TYPE_CHECKING:
    from rendezvous_async.backends.tcp.connection import Connection

__all__ = ["ANSWERS", "Watcher"]

MAX_NAME: Final = 4096
MAX_UNSETTLED: Final = 65_536
NAME_COST: Final = 64
"""A watched name costs memory even if it is short; in characters."""


class Watcher:
    """A watch as the server sees it: what is watched, and up to where the watcher knows it."""

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
        peer.send_if_short(request.id, wire.Listed(request.id, peer.server.table.list(request.name)))


def _transact(peer: Connection, request: wire.Transact) -> None:
    id = request.id
    if request.number - request.settled > MAX_UNSETTLED:
        raise wire.FrameError(f"more than {MAX_UNSETTLED} commits whose answers must be remembered")
    if _may_write(peer, id, request.writes, request.when):
        assert peer.client is not None
        commit_id = CommitId(peer.client, request.number, request.settled)
        try:
            commit = peer.server.commit(request.writes, request.when, commit_id)
        except RendezvousSessionError as error:
            peer.fail(id, wire.FAILED_SESSION, str(error))
        else:
            peer.send_if_short(id, wire.Committed(id, commit))


def _follow(peer: Connection, request: wire.Follow) -> None:
    id, names = request.id, request.names
    if _may_follow(peer, id, names):
        news = wire.Changed(id, peer.server.table.changes(names, request.after))
        if peer.send_if_short(id, news):
            _start_watch(peer, id, names)


def _may_follow(peer: Connection, id: int, names: tuple[str, ...]) -> bool:
    limits = peer.server.limits
    if id in peer.watchers:
        raise wire.FrameError(f"a second watch with the id {id}")
    if not names or len(names) > limits.writes or len(peer.watchers) >= limits.watches:
        peer.fail(
            id,
            wire.FAILED_LIMIT,
            f"a connection may have {limits.watches} watches, of 1 to {limits.writes} names each",
        )
        return False
    if peer.watched + _cost(names) > limits.watched:
        peer.fail(
            id,
            wire.FAILED_LIMIT,
            f"the names that a connection watches may have {limits.watched} characters, with {NAME_COST} more for each",
        )
        return False
    return _may_name(peer, id, *names)


def _start_watch(peer: Connection, id: int, names: tuple[str, ...]) -> None:
    """Tell the peer of what changes from now on."""
    watcher = Watcher(peer, id, names, peer.server.table.token)
    peer.watchers[id] = watcher
    peer.watched += _cost(names)
    peer.server.fanout.add(names, watcher)


def _unfollow(peer: Connection, request: wire.Unfollow) -> None:
    watcher = peer.watchers.pop(request.id, None)
    if watcher is not None:
        peer.watched -= _cost(watcher.names)
        peer.server.fanout.remove(watcher.names, watcher)


def _cost(names: tuple[str, ...]) -> int:
    return sum(map(len, names)) + NAME_COST * len(names)


def _open_session(peer: Connection, request: wire.OpenSession) -> None:
    id, ttl, names, limits = request.id, request.ttl, request.names, peer.server.limits
    if not 0 < ttl <= limits.longest_ttl:
        peer.fail(id, wire.FAILED_INVALID, f"a session's ttl is at most {limits.longest_ttl:g} s, not {ttl:g}")
    elif peer.server.table.sessions >= limits.sessions:
        peer.fail(id, wire.FAILED_LIMIT, f"the server has its {limits.sessions} sessions")
    elif len(request.writes) > FIRST_WRITES or len(request.when) > FIRST_WRITES:
        # In the log each has the whole name of its session, which may be a thousand times as long as ``OWN``.
        peer.fail(id, wire.FAILED_LIMIT, f"a session's first commit has at most {FIRST_WRITES} writes")
    elif names_session(request.writes):
        peer.fail(id, wire.FAILED_INVALID, "the first commit of a session puts nothing under another one")
    elif _may_write(peer, id, request.writes, request.when) and (not names or _may_follow(peer, id, names)):
        granted = max(ttl, limits.shortest_ttl)
        session, commit = peer.server.open_session(peer, granted, request.writes, request.when)
        if names:
            listing = peer.server.table.changes(names, None)
            if peer.try_to_send(wire.Opened(id, session, granted, commit, listing)):
                _start_watch(peer, id, names)
                return
        # A client whose watch is not started asks for it, and is then told if it is too much.
        if not peer.send_if_short(id, wire.Opened(id, session, granted, commit)):
            peer.server.end_session(session)


def _refresh(peer: Connection, request: wire.KeepAlive | wire.Resume) -> None:
    if _may_use(peer, request.id, request.session):
        refresh = peer.server.keep_alive if isinstance(request, wire.KeepAlive) else peer.server.resume
        if refresh(peer, request.session):
            peer.send(wire.Done(request.id))
        else:
            peer.fail(request.id, wire.FAILED_SESSION, f"session {request.session} has ended")


def _end_session(peer: Connection, request: wire.EndSession) -> None:
    if _may_use(peer, request.id, request.session):
        peer.server.end_session(request.session)
        peer.send(wire.Done(request.id))


def _ping(peer: Connection, request: wire.Ping) -> None:
    peer.send(wire.Done(request.id))


def _goodbye(peer: Connection, _: wire.Goodbye) -> None:
    for session in tuple(peer.sessions):
        peer.server.end_session(session)
    peer.close()
    peer.server.forget(peer)


# What a peer may do.


def _may_name(peer: Connection, id: int, *names: str) -> bool:
    scope = peer.scope
    for name in names:
        if len(name) > MAX_NAME or not _is_well_formed(name):
            peer.fail(id, wire.FAILED_INVALID, f"not a name: {name[:64]!r}")
            return False
        if not name.startswith(scope):
            peer.fail(id, wire.FAILED_DENIED, f"this client's secret opens {scope}* only, not {name}")
            return False
    return True


def _may_use(peer: Connection, id: int, session: str) -> bool:
    if peer.scope and session.partition("@")[2] != peer.scope:
        peer.fail(id, wire.FAILED_DENIED, f"session {session} is not one of those that {peer.scope}* opened")
        return False
    return True


def _may_write(peer: Connection, id: int, writes: tuple[Write, ...], when: tuple[Condition, ...]) -> bool:
    limits = peer.server.limits
    if len(writes) > limits.writes or len(when) > limits.writes:
        peer.fail(id, wire.FAILED_LIMIT, f"a commit has at most {limits.writes} writes and conditions")
        return False
    names = [condition.key for condition in when]
    puts = size = 0
    for write in writes:
        if isinstance(write, Put):
            names.append(write.key)
            puts += 1
            size += len(write.key) + len(write.value)
            if write.key.endswith("/"):
                peer.fail(id, wire.FAILED_INVALID, f"a key must not end in a slash: {write.key[:64]!r}")
                return False
            if write.session and not _may_use(peer, id, write.session):  # OWN is nobody else's
                return False
        else:
            names.append(write.name)
    if not _may_name(peer, id, *names):
        return False
    table = peer.server.table
    if puts and (len(table) + puts > limits.keys or table.size + size > limits.bytes):
        peer.fail(id, wire.FAILED_LIMIT, f"the server is full: {len(table)} keys, {table.size} bytes")
        return False
    return True


ANSWERS: Final[dict[type, Callable[[Connection, Any], None]]] = {
    wire.Get: _get,
    wire.List: _list,
    wire.Transact: _transact,
    wire.Follow: _follow,
    wire.Unfollow: _unfollow,
    wire.OpenSession: _open_session,
    wire.KeepAlive: _refresh,
    wire.Resume: _refresh,
    wire.EndSession: _end_session,
    wire.Ping: _ping,
    wire.Goodbye: _goodbye,
}


def _is_well_formed(name: str) -> bool:
    """Tell whether a client of ours could have sent this name."""
    return name != "" and name[0] != "/" and "//" not in name and name.isprintable()
