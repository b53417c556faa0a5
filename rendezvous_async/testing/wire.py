"""A simulated network: machines, and the bytes between them, on a virtual loop and drawn from one seed.

::

    wire = Wire(random.Random(7))
    head = wire.machine("head")
    head.start("server", serve_forever)             # a process: asyncio's own calls and ours work in it as usual
    wire.machine("other").start("client", use, "tcp://head:29400")

Connections are TCP's: in order and without loss, but cut anywhere, slow, late, held up, reset, or half open. What a
process asks of asyncio for them leads here (``loop/sockets.py``), and what it asks of its operating system leads to its
machine (``machine.py``). UDP, TLS and the sockets that a program makes for itself are not simulated.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Hashable
from contextvars import copy_context
from typing import Any, Final

from rendezvous_async.testing.faults import Faults
from rendezvous_async.testing.loop.clock import VirtualLoop, virtual_loop
from rendezvous_async.testing.machine import ANY, Machine, Process, WireSocket
from rendezvous_async.testing.transport import FIN, RST, Item, WireTransport

__all__ = ["Wire"]

CUT: Final = 0.05
"""How often bytes that were written at once arrive in two pieces."""
RETRIES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds until a connection that nobody answers is tried again."""
PROBED: Final = 30.0
"""Seconds after which the kernel finds that the other machine is gone."""


class Wire:
    """The network of one virtual loop.

    Args:
        rng: Where all delays and faults come from.
        faults: The faults.

    Attributes:
        faults: The current faults; may be changed at any time.
        loop: The loop, which has this network from now on.
        machines: The machines, by name.
        processes: The running processes, by group.
    """

    def __init__(self, rng: random.Random, faults: Faults | None = None) -> None:
        self.faults: Faults = Faults() if faults is None else faults
        self.loop: VirtualLoop = virtual_loop()
        self.machines: dict[str, Machine] = {}
        self.processes: dict[Hashable, Process] = {}
        self.rng = rng
        self._addresses: dict[str, Machine] = {}
        self._closed: set[tuple[str, str]] = set()
        self._stuck: dict[WireTransport, None] = {}
        self._context = copy_context()
        self.loop.network = self

    def __repr__(self) -> str:
        return f"<Wire machines={len(self.machines)} processes={len(self.processes)}>"

    def machine(self, name: str) -> Machine:
        """Return the machine of that name; add it if there is none."""
        found = self.machines.get(name)
        if found is None:
            number = len(self.machines) + 1
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            found = self.machines[name] = self._addresses[address] = Machine(self, name, address)
        return found

    # What is in the way

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass from one machine to another; what comes is held up until ``heal``."""
        self._closed.add((source, target))

    def heal(self, *machines: str) -> None:
        """Free the ways from and to these machines, or all."""
        concerned = set(machines or self.machines)
        self._closed = {pair for pair in self._closed if concerned.isdisjoint(pair)}
        self.retry()

    def reset(self, machine: str) -> None:
        """Reset all connections of a machine."""
        for process in self.machines[machine].processes.values():
            for transport in process.transports:
                self._break(transport, b"")

    def retry(self) -> None:
        """Send once more what could not arrive."""
        stuck, self._stuck = self._stuck, {}
        for sender in stuck:
            items, sender.stuck = sender.stuck, type(sender.stuck)()
            for item in items:
                self._fly(sender, item)

    def is_free(self, source: Machine, target: Machine) -> bool:
        """Tell whether bytes pass from one machine to another."""
        return source is target or (source.is_on and target.is_on and (source.name, target.name) not in self._closed)

    # Connections

    def process(self, group: Hashable | None) -> Process | None:
        return self.processes.get(group)

    def find(self, asker: Machine, host: str) -> Machine | None:
        """Return the machine at a name or an address, as another one sees it."""
        if host == "localhost" or host.startswith("127."):
            return asker
        return self.machines.get(host) or self._addresses.get(host)

    async def dial(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect a process to an address.

        Raises:
            OSError: The connection is refused, or nobody answers.
        """
        source = process.machine
        target = self.find(source, host)
        for pause in RETRIES:
            await asyncio.sleep(self.leg())
            if target is None:
                raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
            if self.is_free(source, target):
                listener = target.listeners.get((host, port)) or target.listeners.get((ANY, port))
                if listener is None:
                    await asyncio.sleep(self.leg())
                    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                if listener.has_room and self.is_free(target, source):
                    mine = self._connect(process, listener, host, port)
                    try:
                        await asyncio.sleep(self.leg())
                        protocol = factory()
                        mine.attach(protocol)
                    except BaseException:
                        mine.abort()
                        raise
                    return mine, protocol
            await asyncio.sleep(pause)
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _connect(self, process: Process, listener: WireSocket, host: str, port: int) -> WireTransport:
        local = (process.machine.address_toward(host), process.machine.next_port())
        mine = WireTransport(process, local, (host, port), dialled=True)
        theirs = WireTransport(listener.process, (host, port), local, dialled=False)
        mine.peer, theirs.peer = theirs, mine
        listener.add(theirs)
        return mine

    # Bytes

    def later(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Do something later, whatever happens to the process that asks for it."""
        self.loop.call_later(seconds, action, *args, context=self._context)

    def leg(self) -> float:
        """Draw the delay of one leg."""
        return self.rng.random() * self.faults.delay

    def carry(self, sender: WireTransport, item: Item) -> None:
        """Take something from one end of a connection, for the other."""
        faults, rng = self.faults, self.rng
        if sender.broken:
            return
        if item is RST or item == FIN:
            self._fly(sender, item)
            return
        assert item is not None
        if (drop := faults.drop_request if sender.dialled else faults.drop_reply) and rng.random() < drop:
            self._break(sender, item[: rng.randrange(len(item))])
            return
        late = faults.late if sender.dialled else 0.0
        further = rng.random() * faults.lateness if late and rng.random() < late else 0.0
        if len(item) > 1 and rng.random() < CUT:
            middle = rng.randrange(1, len(item))
            self._fly(sender, item[:middle], further)
            item = item[middle:]
        self._fly(sender, item, further)

    def _break(self, sender: WireTransport, rest: bytes) -> None:
        """Reset a connection after the rest of what it carried."""
        if rest:
            self._fly(sender, rest)
        for end in (sender, sender.peer):
            end.broken = True
            self._fly(end, RST)

    def _fly(self, sender: WireTransport, item: Item, further: float = 0.0) -> None:
        faults, now = self.faults, self.loop.lease_time()
        at = now + further + self.leg()
        if faults.bandwidth and item:
            at = max(at, sender.last_at) + len(item) / faults.bandwidth
        sender.last_at = max(at, sender.last_at)
        sender.flying.append(item)
        self.later(sender.last_at - now, self._arrive, sender)

    def _arrive(self, sender: WireTransport) -> None:
        """Hand over what flies longest from this end: each of its timers stands for one item, whichever it was for."""
        item = sender.flying.popleft()
        receiver = sender.peer
        if sender.stuck or not self.is_free(sender.process.machine, receiver.process.machine):
            if item is RST and not sender.broken:
                return  # nobody repeats it
            sender.stuck.append(item)
            self._stuck[sender] = None
        else:
            receiver.receive(item)

    def vanish(self, transport: WireTransport) -> None:
        """Forget an end whose machine has lost its power; the other one finds out by itself."""
        transport.forget()
        transport.stuck.clear()
        self._stuck.pop(transport, None)
        self.later(PROBED, transport.peer.time_out)
