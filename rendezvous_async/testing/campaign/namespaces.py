"""Links that can be cut: a process in a network namespace of its own, joined to this machine by a pair of interfaces.

Taking the link down is a real partition: packets are lost in silence, both ways, and no connection is told. It needs
root and ``ip``; where they are missing, ``Links.why_not`` says so, and the campaign goes on without.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from rendezvous_async.testing.campaign.disks import run_command

__all__ = ["Link", "Links"]


class Link(NamedTuple):
    """A namespace, and the addresses at the two ends of the way into it."""

    namespace: str
    here: str
    there: str
    interface: str

    def cut(self) -> str | None:
        """Let nothing pass any more; returns why it could not be done, or None."""
        return run_command("ip", "link", "set", self.interface, "down")

    def mend(self) -> str | None:
        """Let everything pass again."""
        return run_command("ip", "link", "set", self.interface, "up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it in there."""
        return ("ip", "netns", "exec", self.namespace)


class Links:
    """Makes some links, and takes them away.

    Attributes:
        links: Those that there are.
        why_not: Why there are none; empty if there are.
    """

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.why_not = ""

    def __repr__(self) -> str:
        return f"<Links {self.links or self.why_not}>"

    def make(self, count: int) -> None:
        """Make so many, or none."""
        mine = os.getpid()
        for index in range(count):
            # A /30 of 10.0.0.0/8 for each, by our process id, so that campaigns on one machine do not meet.
            place = (mine * 8 + index) % (1 << 21)
            base = f"10.{128 + (place >> 14) % 128}.{(place >> 6) % 256}"
            low = place % 64 * 4
            link = Link(
                f"rdzv-{mine}-{index}", f"{base}.{low + 1}", f"{base}.{low + 2}", f"rdz{mine % 1000000}-{index}"
            )
            inside = ("ip", "-n", link.namespace)
            steps = [
                ("ip", "netns", "add", link.namespace),
                ("ip", "link", "add", link.interface, "type", "veth", "peer", "name", "up0", "netns", link.namespace),
                ("ip", "addr", "add", f"{link.here}/30", "dev", link.interface),
                ("ip", "link", "set", link.interface, "up"),
                (*inside, "addr", "add", f"{link.there}/30", "dev", "up0"),
                (*inside, "link", "set", "up0", "up"),
                (*inside, "link", "set", "lo", "up"),
            ]
            self.links.append(link)
            for step in steps:
                if (failure := run_command(*step)) is not None:
                    self.remove()
                    self.why_not = f"no network namespaces: {failure}"
                    return

    def remove(self) -> None:
        """Take all links away; processes in there must have ended."""
        for link in self.links:
            run_command("ip", "netns", "del", link.namespace)
            run_command("ip", "link", "del", link.interface)
        self.links = []
