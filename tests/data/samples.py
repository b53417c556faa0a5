"""What is recorded: values of every kind that this library writes, each under a name.

A sample, once it was recorded in a release, keeps its name and its value: later versions must read the same value from
the old bytes. A new kind or a new field gets a sample of its own; ``test_recorded.py`` says if one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree
from typing import TypeAlias

from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import OWN, Commit, Condition, Delete, Entry, Listing, Put, Token
from rendezvous_async.backends.cas.image import Draft, Image
from rendezvous_async.backends.classic import close_envelope
from rendezvous_async.backends.table import frames
from rendezvous_async.backends.table.log import Log
from rendezvous_async.backends.table.table import CommitId, Table
from rendezvous_async.backends.tcp import restrict, wire
from rendezvous_async.backends.tcp.auth import Secret, prove
from rendezvous_async.causes import Cause
from rendezvous_async.core.history import HistoryRecord, Kind, Roll, Who, history_key
from rendezvous_async.core.state import (
    COORDINATOR,
    FORMING,
    STATE,
    WORLD_SHAPE,
    Closed,
    Head,
    Last,
    Node,
    Phase,
    Post,
    Seat,
    node_key,
    round_key,
    seat_key,
)
from rendezvous_async.settings import Settings, settings_for
from rendezvous_async.sizes import parse_sizes

CoreRecord: TypeAlias = Head | Node | Seat | Post | HistoryRecord

_SETTINGS = Settings(2, 4, "label:rack", 20.5, 2.5)
_SHAPED = settings_for(parse_sizes("4,8,24"), "sticky", 20.5, 2.5, "nvlink", 4, 5.0)
_TOKEN = Token("epoch", 7)
_ENTRY = Entry("rendezvous_async/job/state", b"value", _TOKEN, "epoch.1")
_LISTING = Listing((_ENTRY, Entry("rendezvous_async/job/gone", None, _TOKEN)), _TOKEN, complete=False)
_WRITES = (Put("rendezvous_async/job/nodes/a", b"value", OWN), Delete("rendezvous_async/job/rounds/1/"))
_WHEN = (Condition("rendezvous_async/job/state", _TOKEN), Condition("rendezvous_async/job/nodes/a", None))
_NAMES = ("rendezvous_async/job/state", "rendezvous_async/job/nodes/")

CORE_RECORDS: Mapping[str, CoreRecord] = {
    "head of a new run": Head(settings=Settings(2, 4)),
    "head of a formed round": Head(
        settings=_SETTINGS,
        round=3,
        phase=Phase.FORMED,
        attempt="attempt",
        size=4,
        waiting=2,
        returned=1,
        lost=1,
        token=("epoch", 12),
        requires=("shape@0.2",),
    ),
    "head of a closed run": Head(settings=Settings(1, 1), closed=Closed("training done", "head_1_0a1b2c3d")),
    "head of a run with steps": Head(settings=settings_for(parse_sizes("4:64:4"))),
    "head of a scaled run": Head(
        settings=_SHAPED,
        round=5,
        phase=Phase.FORMED,
        attempt="attempt",
        size=4,
        token=("epoch", 13),
        requires=(WORLD_SHAPE,),
        held_back=3,
        let_in=True,
        uncounted=True,
        origin=Settings(4, 8).fingerprint,
        generation=2,
        target=8,
        recorded=513,
    ),
    "node": Node(arrival="0a1b2c3d-1", fingerprint=_SETTINGS.fingerprint),
    "node of a survivor": Node(
        arrival="0a1b2c3d-2",
        fingerprint=_SETTINGS.fingerprint,
        last=Last(3, 1),
        address="10.1.2.3",
        labels={"rack": "r1", "zone": "é"},
        displaced="10.1.2.4",
    ),
    "node that had stalled": Node(arrival="0a1b2c3d-3", fingerprint=_SETTINGS.fingerprint, stalled=7.5),
    "seat": Seat(round=3, attempt="attempt", arrival="0a1b2c3d-1", rank=0),
    "seat with labels": Seat(
        round=2**53, attempt="attempt", arrival="0a1b2c3d-2", rank=1, address="10.1.2.3", labels={"rack": "r1"}
    ),
    "post": Post("head_1_0a1b2c3d"),
    "history": HistoryRecord(n=1, kind=Kind.CLOSED),
    "history of a round": HistoryRecord(
        n=513,
        kind=Kind.FORMED,
        at=1.5,
        since=2.5,
        round=3,
        size=4,
        by="head_1_0a1b2c3d",
        new=Roll((Who("a", "10.1.2.3"),), 1),
        gone=Roll((Who("b", "10.1.2.4", Cause.SILENT),), 2),
        back=Roll((Who("c"),), 1),
        awaited=Roll((Who("a", "10.1.2.3", after=2.25),), 1),
        forming=0.125,
        last_call=True,
        detail="é",
    ),
}

GREETINGS: Mapping[str, wire.Hello | wire.Proof] = {
    "hello": wire.Hello((1,), "client", 1, 0, b"n" * 32),
    "hello of a restricted client": wire.Hello((1, 2, 3), "client", 2, 2**53, b"n" * 32, "rendezvous_async/team-a"),
    "proof": wire.Proof(b"p" * 32),
}
REQUESTS: Mapping[str, wire.Request] = {
    "get": wire.Get(1, _NAMES[0]),
    "list": wire.List(2, _NAMES[1]),
    "transact": wire.Transact(3, 2, 1, _WRITES, _WHEN),
    "follow": wire.Follow(4, _NAMES, None),
    "follow on": wire.Follow(5, _NAMES, _TOKEN),
    "unfollow": wire.Unfollow(5),
    "open session": wire.OpenSession(6, 5.0),
    "open session and arrive": wire.OpenSession(7, 5.0, _WRITES, _WHEN, _NAMES),
    "keep alive": wire.Renew(8, "epoch.1"),
    "end session": wire.EndSession(9, "epoch.1"),
    "evict": wire.EndSession(12, "epoch.1", Cause.EVICTED),
    "ping": wire.Ping(10),
    "goodbye": wire.Goodbye(),
    "resume": wire.Resume(11, "epoch.1"),
}
ANSWERS: Mapping[str, wire.FromServer] = {
    "challenge": wire.Challenge(b"n" * 32, 1),
    "welcome": wire.Welcome(1, "epoch", 7),
    "welcome with a proof": wire.Welcome(1, "epoch", 7, b"p" * 32, "10.1.2.3"),
    "refused": wire.Refused(wire.REFUSED_SECRET, "the client does not know the server's secret"),
    "found nothing": wire.Found(1, None),
    "found": wire.Found(1, _ENTRY),
    "listed": wire.Listed(2, Listing((_ENTRY,), _TOKEN)),
    "won": wire.Transacted(3, Commit(True, _TOKEN)),
    "lost": wire.Transacted(3, Commit(False, _TOKEN, (_ENTRY,))),
    "nothing changed": wire.Changed(4, None),
    "changed": wire.Changed(4, _LISTING),
    "changed for a cause": wire.Changed(
        4, Listing((Entry("rendezvous_async/job/gone", None, _TOKEN, None, Cause.CUT),), _TOKEN)
    ),
    "opened": wire.SessionOpened(6, "epoch.1", 5.0),
    "opened and arrived": wire.SessionOpened(7, "epoch.1", 5.0, Commit(True, _TOKEN), _LISTING),
    "done": wire.Done(10),
    "failed": wire.Failed(3, wire.FAILED_SESSION, "session epoch.1 has ended"),
}

LOG_START: tuple[frames.LogRecord, ...] = (
    frames.Started("epoch.1@ns/team", 5.0),
    frames.Committed((Put("kept", b"value"), Put("leased", b"value", "epoch.1@ns/team"), Put("gone", b""))),
    frames.Committed((Delete("gone"),), (Condition("gone", Token("epoch", 1)),), CommitId("client", 2, 1)),
)
"""These are in the log's snapshot."""
LOG_REST: tuple[frames.LogRecord, ...] = (
    frames.Committed((Put("other", b"value"),), (Condition("other", None),), CommitId("other client", 1)),
    frames.Started("epoch.2", 2.5),
    frames.Ended("epoch.1@ns/team"),
    frames.Forgotten("client"),
    frames.Raised(99),
)
"""These follow it, as frames."""
LOG_RECORDS: Mapping[str, frames.LogRecord] = {"end for a cause": frames.Ended("epoch.1", Cause.CUT)}
"""These were added since."""


def logged(*records: frames.LogRecord) -> Table:
    """Return the table that the records lead to."""
    table = Table("epoch")
    frames.replay(table, records, 0.0)
    return table


def write_log(path: Path) -> None:
    """Write a log: a snapshot, one frame with several records, and frames with one each."""
    log = Log.open(str(path), epoch="epoch", sync=False)
    log.compact(logged(*LOG_START).snapshot())
    log.append(LOG_REST[:2])
    for record in LOG_REST[2:]:
        log.append([record])
    log.close()


FILE_TTL = 1.0


async def write_directory(path: Path, beside: Path) -> None:
    """Write the directory of a file backend whose only user has died; ``beside`` is for it while that one lives."""
    Log.open(str(beside / "log"), epoch="epoch").close()
    async with open_backend(f"file://{beside}", run_id="job") as backend:
        session = await backend.open_session(FILE_TTL)
        await backend.commit(Put("kept", b"value"), when=[Condition("kept", None)])
        await backend.commit(Put("nodes/a", b"record", session.id))
        copytree(beside, path)


def image_of_two_writes() -> Image:
    """Return what the backend over one value stores: a session with a key, a key without, and a keep-alive."""
    first = Draft(Image.empty("epoch"))
    session, _ = first.open_session(5.0, (Put("ns/job/nodes/a", b"record", OWN), Put("ns/job/gone", b"")), ())
    first.commit((Put("ns/job/kept", b"value"), Delete("ns/job/gone")), ())
    second = Draft(first.image(b"mark 1  "))
    second.keep_alive(session)
    return second.image(b"mark 2  ")


IMAGES: Mapping[str, Callable[[], Image]] = {"after two writes": image_of_two_writes}


def _proof(role: str) -> str:
    key = Secret.parse("a secret").key
    hello, challenge = wire.frame(GREETINGS["hello"])[4:], wire.frame(ANSWERS["challenge"])[4:]
    return prove(key, "client" if role == "client" else "server", hello, challenge).hex()


TEXTS: Mapping[str, Callable[[], str]] = {
    "keys": lambda: " ".join((STATE, COORDINATOR, FORMING, node_key("a/1"), seat_key(".."), round_key(7))),
    "key of the history": lambda: history_key(513),
    "fingerprint": lambda: Settings(2, 4).fingerprint,
    "fingerprint with labels": lambda: _SETTINGS.fingerprint,
    "fingerprint of a shape": lambda: _SHAPED.fingerprint,
    "restricted secret": lambda: restrict("a secret", "team-a/"),
    "proof of a client": lambda: _proof("client"),
    "proof of a server": lambda: _proof("server"),
    "classic state": lambda: close_envelope(b"state").hex(),
}
"""What nodes of several versions compare with each other as it is, so that it is the same in all of them."""
