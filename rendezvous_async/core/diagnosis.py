"""Why has this round not formed: who is here, who is missing, who has not come back, and what happens next.

``diagnose`` turns the records of a run into a ``Status``: structured for programs, and with a ``str()`` for a tired
person.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from rendezvous_async.core.features import in_words, unknown_features
from rendezvous_async.core.ranks import Candidate
from rendezvous_async.core.shape import Fit, choose, explain
from rendezvous_async.core.spec import Spec, spec_of
from rendezvous_async.core.state import Closed, Head, Node, Phase, Seat
from rendezvous_async.core.tally import Tally, tally_of
from rendezvous_async.settings import Settings
from rendezvous_async.texts import counted, printable

__all__ = ["Absent", "Present", "Role", "Status", "diagnose"]

SHOW_AT_MOST = 16


class Role(StrEnum):
    """What a live node is doing."""

    MEMBER = "member"
    BACK = "back"
    WAITING = "waiting"
    SPARE = "spare"
    FOREIGN = "foreign"


class Present(msgspec.Struct, frozen=True):
    """A node that is here.

    Attributes:
        node: Its id.
        role: ``member`` holds the round, ``back`` has returned to the barrier, ``waiting`` is new, ``spare`` is not in
            the largest world of all who are here, ``foreign`` came with other settings.
        rank: In the round, for its members.
        address: Where other members reach it, by its own account.
        displaced: The address of a live node with the same id whose place it took.
    """

    node: str
    role: Role
    rank: int | None = None
    address: str = ""
    displaced: str = ""


class Absent(msgspec.Struct, frozen=True):
    """A member of the last round that is not here."""

    node: str
    rank: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment; ``str()`` of it explains itself.

    Attributes:
        run_id: Which run.
        settings: The settings that hold; None before the run is founded.
        spec: What of them may change while the run goes on, with the target; None before the run is founded.
        origin: The fingerprint of the settings that a node must bring.
        fit: What of the nodes here is usable and what is left over, and what the next size takes.
        unlabelled: Nodes without the label of the domain: spares.
        unranked: Nodes without the label that ranks go by: spares, too.
        held_back: How many newcomers would make the world larger and are not let in yet; see ``Timeouts.grow``.
        round: The last round that formed; 0 if none has.
        phase: ``gathering`` or ``formed``.
        here: Every live node, members by rank, then the others as they came.
        absent: Members of the last round that are not here.
        missing: How many more must come before a round can form.
        coordinator: The node that forms rounds, if there is one.
        closed: Why the run is over, if it is.
        damaged: Keys of records that cannot be read; they count as if they were not there.
        requires: Features that a node must know to take part.
    """

    run_id: str
    settings: Settings | None = None
    spec: Spec | None = None
    origin: str = ""
    fit: Fit | None = None
    unlabelled: tuple[str, ...] = ()
    unranked: tuple[str, ...] = ()
    held_back: int = 0
    round: int = 0
    phase: Phase = Phase.GATHERING
    here: tuple[Present, ...] = ()
    absent: tuple[Absent, ...] = ()
    missing: int = 0
    coordinator: str | None = None
    closed: Closed | None = None
    damaged: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    def __str__(self) -> str:
        details = (f"{label}: {text}" for label, text in self._details())
        return "\n  ".join([f"run {self.run_id!r}: {self._headline()}", *details])

    def why(self) -> list[str]:
        """Return the state of the run and what it waits for, without its nodes: for displays that show them already."""
        details = (f"{label}: {text}" for label, text in self._details() if label not in ("here", "coordinator"))
        return [self._headline(), *details]

    def nodes(self, *roles: Role) -> list[str]:
        """Return the nodes that are here in one of ``roles``."""
        return [present.node for present in self.here if present.role in roles]

    def _headline(self) -> str:
        if self.settings is None:
            return "one of the nodes here is about to found it" if self.here else "nobody has joined yet"
        if self.closed is not None:
            return f"closed by {self.closed.in_words}"
        if self.phase is Phase.FORMED:
            holding = len(self.nodes(Role.MEMBER))
            size = holding + len(self.nodes(Role.BACK)) + len(self.absent)
            return f"round {self.round} is formed; {holding} of its {size} members hold it"
        at_barrier = len(self.nodes(Role.BACK, Role.WAITING, Role.SPARE))
        sizes, high = self.settings.sizes, self.settings.max_nodes
        if sizes.step != 1:
            wanted = f"{sizes} nodes"
        else:
            wanted = f"{sizes.smallest} to {high} nodes" if sizes.smallest != high else counted(high, "node")
        what = f"a round after round {self.round}" if self.round else "its first round"
        return f"gathering {what}; {at_barrier} of {wanted} {'is' if high == 1 else 'are'} at the barrier"

    def _details(self) -> Iterable[tuple[str, str]]:
        here = [
            f"{printable(present.node)} ({present.role}{'' if present.rank is None else f', rank {present.rank}'})"
            for present in self.here
        ]
        yield "here", _shorten(here) or "nobody"
        if self.absent:
            absent = [f"{printable(gone.node)} (rank {gone.rank} in round {self.round})" for gone in self.absent]
            yield "left" if self.closed else "not back", _shorten(absent)
        if self.closed is None and self.settings is not None:
            yield "next", self._next(self.settings)
            if self.spec is not None and self.spec.generation:
                yield "scaled", f"{self.spec} (change {self.spec.generation}; nodes still start with {self.origin!r})"
            if self.fit is not None and (not self.settings.is_plain or self.spec != Spec(str(self.settings.sizes))):
                yield "usable", str(self.fit)
            for label, spares in ((self.settings.domain, self.unlabelled), (self.settings.label, self.unranked)):
                if spares:
                    yield f"spares without the label {printable(label or '')}", _shorten(list(map(printable, spares)))
            yield "coordinator", printable(self.coordinator or "") or "none yet; a live node takes the post by itself"
        twice = [
            f"{printable(p.node)} (at {printable(p.address)}, before at {printable(p.displaced)})"
            for p in self.here
            if p.displaced
        ]
        if twice:
            yield "took the place of a node with the same id that had not left", _shorten(twice)
        foreign = self.nodes(Role.FOREIGN)
        if foreign and self.settings is not None:
            yield f"with other settings than {self.origin!r}", _shorten(list(map(printable, foreign)))
        unknown = unknown_features(self.requires)
        if unknown and self.closed is None:
            yield "upgrade rendezvous_async here to join or close the run; it requires", in_words(unknown)
        if self.damaged:
            yield "cannot be read", _shorten(list(map(printable, self.damaged)))

    def _next(self, settings: Settings) -> str:
        holding = self.nodes(Role.MEMBER)
        if self.phase is Phase.FORMED and holding:
            size = len(holding) + len(self.nodes(Role.BACK)) + len(self.absent)
            if self.spec is not None and self.spec.generation and self._is_resized(size):
                return f"the members go back to the barrier: worlds of {size} are no longer allowed, only {self.spec}"
            waiting = self.nodes(Role.BACK, Role.WAITING)
            if self.held_back:
                when = (
                    "by grow() (rdzv scale --grow) or by a loss"
                    if settings.grow_seconds == math.inf
                    else f"after {settings.grow_seconds:g} s"
                )
                return f"the members keep the round; {counted(self.held_back, 'newcomer')} will be let in {when}"
            if not waiting and not self.absent:
                return "nothing is due; the members keep the round"
            return f"the next round gathers when these return or leave: {_shorten(list(map(printable, holding)))}"
        if self.missing:
            where = "" if self.fit is None else self.fit.where
            return f"{self.missing} more{where} must join before a round can form"
        most = settings.max_nodes if self.fit is None else self.fit.shape.most
        return (
            f"the last call runs: a round forms within {settings.last_call:g} s "
            f"({settings.regroup:g} s with survivors), or at once with {most} nodes"
        )

    def _is_resized(self, size: int) -> bool:
        """Tell whether a smaller valid world can be made of one of ``size``, which is not valid any more."""
        return self.fit is not None and 0 < self.fit.shape.size_within(min(size, self.fit.shape.most)) < size


def diagnose(
    run_id: str,
    head: Head | None,
    seats: Mapping[str, Seat],
    records: Iterable[tuple[str, Node, int]],
    coordinator: str | None,
) -> Status:
    """Return the status of a run.

    Args:
        run_id: Which run.
        head: Its state, if there is one.
        seats: All seats by node; those that do not count are passed over.
        records: ``(node, record, revision of its put)`` of every live node.
        coordinator: Who holds the post.
    """
    if head is None:
        early = sorted(records, key=lambda record: record[2])
        here = tuple(Present(node, Role.WAITING, None, record.address, record.displaced) for node, record, _ in early)
        return Status(run_id=run_id, here=here, coordinator=coordinator)
    tally = tally_of(head, seats, records)
    held = bool(tally.holding)
    in_next = _in_next(tally)
    domain = head.settings.domain
    unlabelled = [
        (order, node)
        for node, (record, order) in tally.records.items()
        if domain and domain not in record.labels and node not in tally.foreign
    ]
    unranked = {node for node in tally.foreign if tally.records[node][0].fingerprint not in tally.rivals}
    fit = explain(tally.domains, tally.shape, len(unlabelled))

    def present(node: str) -> Present:
        seat = tally.seats.get(node)
        rank = None if seat is None else seat.rank
        if node in tally.foreign:
            role, rank = Role.SPARE if node in unranked else Role.FOREIGN, None
        elif node in tally.holding:
            role = Role.MEMBER
        elif node in tally.returned:
            role = Role.BACK
        else:
            role = Role.WAITING if node in in_next else Role.SPARE
        record, _ = tally.records[node]
        return Present(node, role, rank, record.address, record.displaced)

    def place(shown: Present) -> tuple[bool, int]:
        return shown.rank is None, shown.rank if shown.rank is not None else tally.records[shown.node][1]

    return Status(
        run_id=run_id,
        settings=head.settings,
        spec=spec_of(head),
        origin=head.fingerprint,
        fit=fit,
        unlabelled=tuple(node for _, node in sorted(unlabelled)),
        unranked=tuple(sorted(unranked)),
        held_back=head.held_back if held else 0,
        round=head.round,
        phase=Phase.FORMED if held else Phase.GATHERING,
        here=tuple(sorted(map(present, tally.records), key=place)),
        absent=tuple(
            sorted(
                (Absent(node, seat.rank) for node, seat in tally.seats.items() if node not in tally.records),
                key=lambda gone: gone.rank,
            )
        ),
        missing=0 if held or head.closed is not None or fit.usable else fit.missing,
        coordinator=coordinator,
        closed=head.closed,
        requires=head.requires,
    )


def _in_next(tally: Tally) -> set[str]:
    """Return the newcomers who count: those in the largest world of all who are here; all with a label if none is."""
    if tally.holding and not tally.wanted:
        return set()
    everybody = tally.candidates()
    if tally.holding:
        everybody = [candidate for candidate in everybody if candidate.node in tally.newcomers]
        for node in tally.holding | tally.returned:
            everybody.append(Candidate(node, 0, tally.seats[node].rank, labels=tally.records[node][0].labels))
    domain = tally.shape.domain
    world = choose(everybody, tally.shape) or [c for c in everybody if not domain or domain in c.labels]
    return {candidate.node for candidate in world}


def _shorten(names: list[str]) -> str:
    more = len(names) - SHOW_AT_MOST
    return ", ".join(names[:SHOW_AT_MOST]) + (f" and {more} more" if more > 0 else "")
