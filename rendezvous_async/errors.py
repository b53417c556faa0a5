"""What can go wrong, as a tree.

::

    RendezvousError                      anything that this library raises on purpose
    ├── RendezvousClosedError            somebody closed the run, for everyone and for good
    │   └── RendezvousGracefulExitError  ... while this node was a spare: it was not needed, nothing failed
    ├── RendezvousTimeoutError           a deadline passed; also a TimeoutError; carries a diagnosis
    ├── RendezvousConnectionError        the backend cannot be reached; also a ConnectionError; lists what was tried
    ├── RendezvousStateError             bytes in the backend that are damaged, or not of this library
    │   └── RendezvousVersionError       ... or that need a newer version of it; nothing is damaged: upgrade
    ├── RendezvousSettingsError          this node and the run disagree on min, max, ranks or timeouts
    ├── RendezvousDisplacedError         another live node has taken this node's id; each node needs its own
    ├── RendezvousSessionError           the backend has ended this session; whatever was bound to it is gone
    └── RendezvousFencedError            a write or a wait of a round that is over; also what a cut-off node gets

An error leaves the state as it was. Wrong arguments are plain ``ValueError`` or ``TypeError``, raised before anything
is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from rendezvous_async.texts import printable

__all__ = [
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
]


class RendezvousError(Exception):
    """The base of every error that this library raises on purpose."""


class RendezvousClosedError(RendezvousError):
    """Somebody closed the run, for everyone and for good.

    Attributes:
        reason: What the author of the close said.
        by: The node that closed it.
    """

    _note = ""

    def __init__(self, reason: str = "", by: str = "", *, run_id: str = "") -> None:
        self.reason = reason
        self.by = by
        run = f"run {run_id!r}" if run_id else "the rendezvous"
        who, why = printable(by) or "an unnamed node", printable(reason) or "no reason given"
        super().__init__(f"{run} was closed by {who}: {why}{self._note}")


class RendezvousGracefulExitError(RendezvousClosedError):
    """The run was closed while this node was a spare: it was not needed, and nothing failed."""

    _note = "; this node was a spare, and was not needed"


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """A deadline passed.

    Attributes:
        diagnosis: Why, in full: a ``Status`` whose ``str()`` explains itself, or None if it could not be read.
    """

    def __init__(self, message: str, diagnosis: object | None = None) -> None:
        self.diagnosis = diagnosis
        super().__init__(f"{message}\n{diagnosis}" if diagnosis is not None else message)


class RendezvousConnectionError(RendezvousError, ConnectionError):
    """The backend cannot be reached, or did not answer in time; a write in flight may or may not have happened.

    Attributes:
        attempts: What was tried and how each attempt ended, one line each.
        final: Trying again cannot help: a wrong secret, a wrong certificate, another protocol.
    """

    def __init__(self, message: str, attempts: Sequence[str] = (), *, final: bool = False) -> None:
        self.attempts: tuple[str, ...] = tuple(attempts)
        self.final = final
        news = [attempt for attempt in self.attempts if attempt not in message]
        super().__init__("\n  ".join((message, *news)))


class RendezvousStateError(RendezvousError):
    """The backend holds bytes that are damaged, or that this library did not write."""


class RendezvousVersionError(RendezvousStateError):
    """A newer version of this library wrote this, or it needs a feature that this version does not know: upgrade."""


class RendezvousSettingsError(RendezvousError):
    """This node's settings differ from those that hold for the run; see ``core.agreement`` for which do."""


class RendezvousDisplacedError(RendezvousError):
    """Another live node has joined with this node's id, and has taken its place; the newest counts."""


class RendezvousSessionError(RendezvousError):
    """The backend has ended this session, and with it everything that was bound to it."""


class RendezvousFencedError(RendezvousError):
    """The round that this call belongs to is over, or this node is out of it; the call changed nothing."""
