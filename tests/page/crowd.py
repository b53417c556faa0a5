"""Runs in any state, written into a server's table as nodes would have written them."""

from __future__ import annotations

from rendezvous_async.aio import clock
from rendezvous_async.backends.base import Delete, Put
from rendezvous_async.backends.tcp import TcpServer
from rendezvous_async.core.codec import encode
from rendezvous_async.core.state import Closed, Head, Node, Phase, Post, Seat
from rendezvous_async.settings import Settings, encode_segment

__all__ = ["Crowd"]


class Crowd:
    """Writes runs into a server.

    Args:
        server: The server.
    """

    def __init__(self, server: TcpServer) -> None:
        self._server = server
        self._session = server.table.open_session(10_000, clock.now())

    def add(
        self,
        run_id: str,
        here: int,
        *,
        nodes: int | None = None,
        lost: int = 0,
        round: int = 1,
        closed: str = "",
        last_call: float = 30.0,
        domain: str = "",
    ) -> None:
        """Write a run.

        Args:
            run_id: Its id.
            here: How many nodes are here.
            nodes: How many it needs; by default as many.
            lost: How many members of the round are gone.
            round: The round that is held; 0 if the first one still gathers.
            closed: Why it is closed.
            last_call: The settings' last call.
            domain: The label by which nodes are in racks of 8.
        """
        wanted = here if nodes is None else nodes
        settings = Settings(wanted, max(wanted, here + lost), last_call=last_call, domain=domain)
        names = [f"{run_id}-gpu-{number:04}" for number in range(here + lost)]
        head = Head(
            settings=settings,
            round=round,
            phase=Phase.FORMED if round else Phase.GATHERING,
            attempt="attempt" if round else "",
            size=len(names) if round else 0,
            lost=lost,
            closed=Closed(reason=closed, by=names[0]) if closed else None,
        )
        place = encode_segment(run_id)
        self._put(f"{place}/state", encode(head))
        self._put(f"{place}/coordinator", encode(Post(node=names[0])))
        for rank, name in enumerate(names):
            labels = {domain: f"r{rank // 8}", "zone": "a"} if domain else {"zone": "a"}
            address = f"10.0.{rank // 250}.{rank % 250}"
            if round:
                seat = Seat(round=round, attempt="attempt", arrival=name, rank=rank, address=address, labels=labels)
                self._put(f"{place}/seats/{name}", encode(seat))
            if rank < lost:
                self._server.commit([Delete(f"rendezvous_async/{place}/nodes/{name}")], [])
            else:
                fingerprint = settings.fingerprint
                node = Node(arrival=name, fingerprint=fingerprint, last=None, address=address, labels=labels)
                self._put(f"{place}/nodes/{name}", encode(node))
        self._server.pushes.settle()

    def remove(self, run_id: str) -> None:
        """Delete a run."""
        self._server.commit([Delete(f"rendezvous_async/{encode_segment(run_id)}/")], [])
        self._server.pushes.settle()

    def _put(self, key: str, value: bytes) -> None:
        session = self._session if "/nodes/" in key or key.endswith("/coordinator") else None
        self._server.commit([Put(f"rendezvous_async/{key}", value, session)], [])
