"""Asyncio-native elastic rendezvous: nodes meet, agree on rank and size, notice loss, and meet again.

::

    import rendezvous_async as rdzv

    async with rdzv.connect("tcp://head:29400", run_id="job-7", nodes="2:4") as rendezvous:
        async for world in rendezvous.worlds():
            async with world.until_changed():
                await train(world.rank, world.size)

The rooms, from the inside out; imports go only this way (``docs/design.md`` says more):

* ``errors``, ``settings``, ``texts``: what can go wrong, what can be set, how text from others is shown
* ``core``: what to do, as values and pure functions: records, rules of a round, the coordinator, an arrival
* ``aio``: how to wait: the clocks, a deadline, a notice, a latch
* ``backends``: where state lives: ``Backend``, which users hold, over a ``Driver`` (memory, tcp, etcd, file, one value)
* ``admin``: what anybody can do to a run: status, close, evict
* ``node``: a node's life: connect, join, keep alive, coordinate, leave
* ``sync``, ``launch``, ``page``: the classic's blocking interface and torchrun; the launcher; the status page
* ``testing``: virtual time, a cluster with faults, the conformance kit
* ``cli``: the ``rdzv`` command
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rendezvous_async.aio.deadline import Deadline
    from rendezvous_async.backends import open_backend
    from rendezvous_async.backends.base import (
        Backend,
        Commit,
        Condition,
        Delete,
        Driver,
        Entry,
        Granted,
        Listing,
        Opened,
        Opening,
        Put,
        Session,
        Sink,
        Subscription,
        Token,
        Watch,
        Write,
    )
    from rendezvous_async.backends.tcp import serve
    from rendezvous_async.core.diagnosis import Status
    from rendezvous_async.core.history import HistoryRecord
    from rendezvous_async.core.rules import Change
    from rendezvous_async.core.spec import Spec
    from rendezvous_async.core.state import Member
    from rendezvous_async.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousDisplacedError,
        RendezvousError,
        RendezvousFencedError,
        RendezvousGracefulExitError,
        RendezvousSessionError,
        RendezvousSettingsError,
        RendezvousStateError,
        RendezvousTimeoutError,
        RendezvousVersionError,
    )
    from rendezvous_async.node.connect import connect
    from rendezvous_async.node.events import Event, EventKind
    from rendezvous_async.node.rendezvous import Rendezvous
    from rendezvous_async.node.store import Store
    from rendezvous_async.node.world import World
    from rendezvous_async.settings import Settings, Timeouts

__all__ = [
    "Backend",
    "Change",
    "Commit",
    "Condition",
    "Deadline",
    "Delete",
    "Driver",
    "Entry",
    "Event",
    "EventKind",
    "Granted",
    "HistoryRecord",
    "Listing",
    "Member",
    "Opened",
    "Opening",
    "Put",
    "Rendezvous",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousDisplacedError",
    "RendezvousError",
    "RendezvousFencedError",
    "RendezvousGracefulExitError",
    "RendezvousSessionError",
    "RendezvousSettingsError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "RendezvousVersionError",
    "Session",
    "Settings",
    "Sink",
    "Spec",
    "Status",
    "Store",
    "Subscription",
    "Timeouts",
    "Token",
    "Watch",
    "World",
    "Write",
    "connect",
    "open_backend",
    "serve",
]

__version__ = "0.1.0"

_HOMES = (
    *("errors", "settings", "aio.deadline", "core.state", "core.rules", "core.spec", "core.diagnosis", "core.history"),
    *("backends.base", "backends", "node.events", "node.store", "node.world", "node.rendezvous", "node.connect"),
    "backends.tcp",
)
"""The modules that have the public names, each in its ``__all__``; those that cost more to import come later."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: ``rdzv --help`` must not wait for what it does not need."""
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if name in module.__all__:
                value: object = getattr(module, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
