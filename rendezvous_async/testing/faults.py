"""The faults of a simulated network, of either kind."""

from __future__ import annotations

import math

import msgspec

from rendezvous_async.texts import quoted

__all__ = ["Faults"]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a simulated network.

    On the wire a request is what a client writes in one turn, and a reply is what the server writes. TCP loses nothing
    of that silently: a loss is a delay, or the end of the connection. So a dropped request or reply cuts the connection
    in the middle of these bytes, and a late one holds up everything behind it. On the stand-in, which has no
    connections, each is lost or late alone.

    Attributes:
        delay: The longest delay of one leg, in seconds; each leg takes a random part of it.
        drop_request: The probability that a request never arrives.
        drop_reply: The probability that the reply to an applied request never arrives.
        late: The probability that a request is delayed further, perhaps until after its caller has given up.
        lateness: The longest further delay, in seconds.
        bandwidth: The bytes that a connection carries each second in each direction; 0 means any number. The stand-in
            does not have it.
    """

    delay: float = 0.001
    drop_request: float = 0.0
    drop_reply: float = 0.0
    late: float = 0.0
    lateness: float = 5.0
    bandwidth: float = 0.0

    def __post_init__(self) -> None:
        for name in ("drop_request", "drop_reply", "late"):
            if not (_is_number(chance := getattr(self, name)) and 0 <= chance <= 1):
                raise ValueError(f"{name} must be a probability from 0 to 1, not {quoted(chance)}")
        for name in ("delay", "lateness"):
            if not (_is_number(seconds := getattr(self, name)) and 0 <= seconds < math.inf):
                raise ValueError(f"{name} must be a finite number of seconds, 0 or more, not {quoted(seconds)}")
        if not (_is_number(self.bandwidth) and 0 <= self.bandwidth < math.inf):
            raise ValueError(f"bandwidth must be a finite number of bytes, 0 or more, not {quoted(self.bandwidth)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
