"""Links that can be cut: a process in a network namespace of its own, joined to this machine by a pair of interfaces.

Taking the link down is a real partition: packets are lost in silence, both ways, and no connection is told. It needs
root and ``ip``; where they are missing, ``Links.why_not`` says so, and the campaign goes on without.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tests.proof.campaign.disks import run_command

__all__ = ["Link", "Links"]


class Link(NamedTuple):
    """A namespace, the addresses at the two ends of a way into it, and the interfaces there."""

    namespace: str
    here: str
    there: str
    interface: str
    inside: str

    def cut(self) -> str | None:
        """Let nothing pass any more; returns why it could not be done, or None."""
        return run_command("ip", "link", "set", self.interface, "down")

    def mend(self) -> str | None:
        """Let everything pass again."""
        return run_command("ip", "link", "set", self.interface, "up")

    def cut_inside(self) -> str | None:
        """Cut it at its other end, so that the address at this one stays for processes that are not in there."""
        return run_command("ip", "-n", self.namespace, "link", "set", self.inside, "down")

    def mend_inside(self) -> str | None:
        """Let everything pass again."""
        return run_command("ip", "-n", self.namespace, "link", "set", self.inside, "up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it in there."""
        return ("ip", "netns", "exec", self.namespace)


class Links:
    """Makes some links, and takes them away.

    Args:
        first: The number of the first; those of one process must differ, and be less than 8.

    Attributes:
        links: Those that there are.
        why_not: Why there are none; empty if there are.
    """

    def __init__(self, first: int = 0) -> None:
        self.links: list[Link] = []
        self.why_not = ""
        self._first = first

    def __repr__(self) -> str:
        return f"<Links {self.links or self.why_not}>"

    def make(self, namespaces: int, ways: int = 1) -> None:
        """Make this many namespaces with this many ways into each, or none; the ways into one are consecutive."""
        for index in range(namespaces):
            for way in range(ways):
                if (failure := self._make(self._first + index * ways, way)) is not None:
                    self.remove()
                    self.why_not = f"no network namespaces: {failure}"
                    return

    def _make(self, number: int, way: int) -> str | None:
        mine = os.getpid()
        # A /30 of 10.0.0.0/8 for each, by our process id, so that campaigns on one machine do not meet.
        place = (mine * 8 + number + way) % (1 << 21)
        base = f"10.{128 + (place >> 14) % 128}.{(place >> 6) % 256}"
        low = place % 64 * 4
        interface = f"rdz{mine % 1000000}-{number + way}"
        link = Link(f"rdzv-{mine}-{number}", f"{base}.{low + 1}", f"{base}.{low + 2}", interface, f"up{way}")
        inside = ("ip", "-n", link.namespace)
        steps = [
            ("ip", "link", "add", interface, "type", "veth", "peer", "name", link.inside, "netns", link.namespace),
            ("ip", "addr", "add", f"{link.here}/30", "dev", interface),
            ("ip", "link", "set", interface, "up"),
            (*inside, "addr", "add", f"{link.there}/30", "dev", link.inside),
            (*inside, "link", "set", link.inside, "up"),
            (*inside, "link", "set", "lo", "up"),
        ]
        if way == 0:
            steps.insert(0, ("ip", "netns", "add", link.namespace))
        self.links.append(link)
        for step in steps:
            if (failure := run_command(*step)) is not None:
                return failure
        return None

    def remove(self) -> None:
        """Take all links away; processes in there must have ended."""
        for link in self.links:
            run_command("ip", "link", "del", link.interface)
        for namespace in {link.namespace: None for link in self.links}:
            run_command("ip", "netns", "del", namespace)
        self.links = []
