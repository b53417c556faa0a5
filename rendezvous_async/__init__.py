"""Asyncio-native elastic rendezvous: nodes meet, agree on rank and size, notice loss, and meet again.

::

    import rendezvous_async as rdzv

    async with rdzv.connect("tcp://head:29400", run_id="job-7", nodes="2:4") as rendezvous:
        async for world in rendezvous.worlds():
            async with world.until_changed():
                await train(world.rank, world.size)

A map of the package, from the inside out; imports go only this way:

* ``errors``, ``settings``: what can go wrong, what can be set
* ``clock``, ``notice``: what time it is, and how to wait
* ``core``: what to do, as pure values and functions (records, rules of a round, ranks, diagnosis)
* ``backends``: where state lives (memory, tcp, etcd, file), as bytes behind fencing tokens
* ``addresses``: how others reach this machine
* ``participant``, ``view``, ``control``: a node as it takes part; what it sees of a run; what anybody can do to it
* ``coordinator``, ``store``: folding the roster into rounds; a round's own key-value store
* ``arrival``, ``membership``, ``world``, ``owner``, ``handler``, ``connecting``: how a node arrives, its session, its
  round, the owner of all tasks, the rendezvous as a user holds it, and how to get one
* ``sync``, ``torchrun``, ``plugin``: the classic's blocking interface; torch's handler over it; where torchrun finds it
* ``cli``, ``testing``: the ``rdzv`` command; the simulator and the conformance kit
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rendezvous_async.backends import open_backend
    from rendezvous_async.backends.base import (
        Backend,
        Commit,
        Condition,
        Delete,
        Entry,
        Listing,
        Put,
        Session,
        Token,
        Watch,
    )
    from rendezvous_async.backends.tcp import serve
    from rendezvous_async.connecting import connect
    from rendezvous_async.core.diagnosis import Status
    from rendezvous_async.core.rules import Change
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
    )
    from rendezvous_async.events import Event, EventKind
    from rendezvous_async.handler import Rendezvous
    from rendezvous_async.settings import Settings, Timeouts
    from rendezvous_async.store import Store
    from rendezvous_async.world import World

__all__ = [
    "Backend",
    "Change",
    "Commit",
    "Condition",
    "Delete",
    "Entry",
    "Event",
    "EventKind",
    "Listing",
    "Member",
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
    "Session",
    "Settings",
    "Status",
    "Store",
    "Timeouts",
    "Token",
    "Watch",
    "World",
    "connect",
    "open_backend",
    "serve",
]

__version__ = "0.1.0"

_HOMES = {
    "backends": ("open_backend",),
    "backends.base": (
        "Backend",
        "Commit",
        "Condition",
        "Delete",
        "Entry",
        "Listing",
        "Put",
        "Session",
        "Token",
        "Watch",
    ),
    "backends.tcp": ("serve",),
    "connecting": ("connect",),
    "core.diagnosis": ("Status",),
    "core.rules": ("Change",),
    "core.state": ("Member",),
    "errors": (
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
    ),
    "events": (
        "Event",
        "EventKind",
    ),
    "handler": ("Rendezvous",),
    "settings": (
        "Settings",
        "Timeouts",
    ),
    "store": ("Store",),
    "world": ("World",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: ``rdzv --help`` must not wait for what it does not need."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
