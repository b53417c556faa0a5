"""The exhaustive check of the protocol: it holds in every state; and the model does what the real parts do."""

from __future__ import annotations

import random
from itertools import permutations

import anyio
import pytest
from msgspec.structs import replace

from rendezvous_async import Put, RendezvousConnectionError, Timeouts
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.base import Commit as BackendCommit
from rendezvous_async.backends.base import Condition, Delete, Token, Write
from rendezvous_async.backends.memory import MemoryDriver
from rendezvous_async.backends.table.table import Table
from rendezvous_async.core.codec import decode, encode
from rendezvous_async.core.state import (
    COORDINATOR,
    FORMING,
    STATE,
    Head,
    Node,
    Post,
    Seat,
    node_key,
    round_key,
    seat_key,
)
from tests.meeting import PREFIX, Meeting, in_virtual_time
from tests.proof.model import QUICK, THOROUGH, Budget, Config, Protocol, explore
from tests.proof.model import duties as duties_module
from tests.proof.model import moves as moves_module
from tests.proof.model.canonical import Renaming, canonical, compact
from tests.proof.model.moves import Moves
from tests.proof.model.protocol import node_of, seat_of
from tests.proof.model.store import commit as model_commit
from tests.proof.model.store import end_session as model_end_session
from tests.proof.model.values import (
    LINGERING,
    OWN,
    Commit,
    HeadRow,
    State,
    start,
)

# What holds


@pytest.mark.parametrize("config", QUICK, ids=str)
def test_every_guarantee_holds_in_every_state(config: Config) -> None:
    result = explore(config)
    print(result)
    assert result.broken is None, str(result)


@pytest.mark.slow
@pytest.mark.parametrize("config", THOROUGH[len(QUICK) :], ids=str)
def test_every_guarantee_holds_in_every_state_of_larger_configurations(config: Config) -> None:
    result = explore(config)
    print(result)
    assert result.broken is None, str(result)


def test_an_exploration_repeats_exactly() -> None:
    config = QUICK[0]
    first, second = explore(config), explore(config)
    assert (first.states, first.moves, first.depth) == (second.states, second.moves, second.depth)


def test_a_result_says_what_was_explored_and_how_much() -> None:
    result = explore(Config(nodes=2, budget=Budget(leave=1)))
    assert str(result).startswith("2 nodes, 2:2, 2 rounds, one commit, 2 coordinators; 1 leave: ")
    assert f"{result.states:,} states" in str(result)
    assert str(result).endswith("every check holds")


# States that differ only in names are one


def states_on_the_way(config: Config, count: int) -> list[State]:
    """Return states of a random walk; the walk starts over when it comes to an end."""
    rng, moves, first = random.Random(7), Moves(Protocol(config)), start(config.nodes, config.budget)
    found: list[State] = []
    state = first
    while len(found) < count:
        following = [move.state for move in moves.of(state)]
        state = compact(rng.choice(following)) if following else first
        found.append(state)
    return found


def test_the_canonical_form_does_not_depend_on_how_nodes_are_named() -> None:
    config = Config(max_writes=3, doomed=True, budget=Budget(expire=1, late=1, crash=1, leave=1))
    for state in states_on_the_way(config, 400):
        form = canonical(state)
        for order in permutations(range(config.nodes)):
            assert canonical(Renaming(None, None, list(order)).state(state)) == form
        assert canonical(form) == form


# The model's store and the real table


EPOCH = "model"


class Real:
    """A real table that holds what a state of the model says."""

    def __init__(self, state: State, protocol: Protocol) -> None:
        self._state = state
        self._protocol = protocol
        self.table = table = Table(EPOCH)
        self.sessions: dict[tuple[int, int], str] = {}
        for node, row in enumerate(state.nodes):
            for session, is_open in ((OWN, row.open), (LINGERING, row.lingers)):
                if is_open:
                    self.sessions[node, session] = table.open_session(100.0, 0.0)
        markers = [Put(round_key(round), b"") for round, _ in state.markers]
        if state.revision > 0:
            table.commit([Put(STATE, encode(protocol.head_of(state.head))), *markers])
        else:
            table.commit(markers)
            table.commit([Put(STATE, encode(self._head(state.head)))])
        for node, seat in enumerate(state.seats):
            if seat is not None:
                table.commit([Put(seat_key(str(node)), encode(seat_of(seat)))])
        for order, node in sorted((record.order, node) for node, record in enumerate(state.records) if record):
            record = state.records[node]
            assert record is not None and record.order == order
            put = encode(node_of(record, protocol.settings.fingerprint))
            table.commit([Put(node_key(str(node)), put, self.sessions[node, record.session])])
        if state.forming:
            table.commit([Put(FORMING, str(state.forming).encode())])
        if state.post is not None:
            holder = self.sessions[state.post.node, state.post.session]
            table.commit([Put(COORDINATOR, encode(Post(str(state.post.node))), holder)])

    def commit(self, what: Commit) -> bool:
        """Do what a commit of the model does; tell whether it won."""
        current = {STATE: self._state.revision, FORMING: self._state.forming}
        if self._state.post is not None:
            current[COORDINATOR] = self._state.post.revision
        compared = {STATE: what.state, COORDINATOR: what.post, FORMING: what.forming}
        when = [
            Condition(key, self._token(key) if name == current.get(key) else Token(EPOCH, 10**6))
            for key, name in compared.items()
            if name is not None
        ]
        writes: list[Write] = [Put(seat_key(str(node)), encode(seat_of(seat))) for node, seat in what.seats]
        writes += [Delete(seat_key(str(node))) for node in what.drop]
        if what.head is not None:
            writes.append(Put(STATE, encode(self._head(what.head))))
        writes += [Put(FORMING, str(what.begin).encode())] if what.begin else []
        writes += [Delete(FORMING)] if what.end else []
        writes += [Put(round_key(what.mark), b"")] if what.mark else []
        writes += [Delete(round_key(what.unmark))] if what.unmark else []
        writes += [Delete(COORDINATOR)] if what.resign else []
        return self.table.commit(writes, when).won

    def contents(self) -> object:
        """Return what the table holds, in the words of ``contents_of``."""
        table = self.table
        entry = table.get(STATE)
        assert entry is not None
        head = decode(Head, entry.value).stamped((entry.token.epoch, entry.token.revision))
        markers = table.list("rounds/").entries
        records = [table.get(node_key(str(node))) for node in range(len(self._state.nodes))]
        seats = [table.get(seat_key(str(node))) for node in range(len(self._state.nodes))]
        forming, post = table.get(FORMING), table.get(COORDINATOR)
        kinds = {session: kind for kind, session in self.sessions.items()}
        return (
            replace(head, token=None),
            [(marker.key, head.token == (EPOCH, marker.token.revision)) for marker in markers],
            [None if seat is None else decode(Seat, seat.value) for seat in seats],
            [
                None if record is None else (decode(Node, record.value), kinds[record.session or ""])
                for record in records
            ],
            [node for _, node in sorted((r.token.revision, node) for node, r in enumerate(records) if r is not None)],
            None if forming is None else forming.value,
            None if post is None else (decode(Post, post.value).node, kinds[post.session or ""]),
        )

    def _token(self, key: str) -> Token | None:
        entry = self.table.get(key)
        return None if entry is None else entry.token

    def _head(self, row: HeadRow) -> Head:
        """Return the record of a row, with the real token of the round if it has one."""
        head = self._protocol.head_of(row)
        if row.token is None:
            return head
        marker = self.table.get(round_key(row.round))
        assert marker is not None
        return replace(head, token=(EPOCH, marker.token.revision))


def contents_of(state: State, protocol: Protocol) -> object:
    """Return what the model's store holds."""
    head = protocol.stamped(state.head, state.revision)
    records = [
        None if row is None else (node_of(row, protocol.settings.fingerprint), (node, row.session))
        for node, row in enumerate(state.records)
    ]
    return (
        replace(protocol.head_of(head), token=None),
        [(round_key(round), head.token == token) for round, token in state.markers],
        [None if seat is None else seat_of(seat) for seat in state.seats],
        records,
        [node for _, node in sorted((row.order, node) for node, row in enumerate(state.records) if row is not None)],
        str(state.forming).encode() if state.forming else None,
        None if state.post is None else (str(state.post.node), (state.post.node, state.post.session)),
    )


@pytest.mark.parametrize(
    "config",
    [
        Config(nodes=2, max_writes=3, budget=Budget(late=1)),
        Config(nodes=2, budget=Budget(crash=1)),
        Config(nodes=2, doomed=True, budget=Budget(expire=1)),
    ],
    ids=str,
)
def test_the_models_store_does_what_a_real_table_does(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = Protocol(config)
    compared = {"won": 0, "refused": 0, "sessions": 0}

    def commit(state: State, what: Commit) -> State | None:
        after, real = model_commit(state, what), Real(state, protocol)
        assert real.contents() == contents_of(state, protocol)
        assert real.commit(what) == (after is not None)
        assert real.contents() == contents_of(state if after is None else after, protocol)
        compared["refused" if after is None else "won"] += 1
        return after

    def end_session(state: State, node: int, session: int, used: Protocol) -> State:
        after, real = model_end_session(state, node, session, used), Real(state, protocol)
        if (node, session) in real.sessions:
            assert real.table.end_session(real.sessions[node, session])
        assert real.contents() == contents_of(after, protocol)
        compared["sessions"] += 1
        return after

    monkeypatch.setattr(duties_module, "commit", commit)
    monkeypatch.setattr(moves_module, "commit", commit)
    monkeypatch.setattr(moves_module, "end_session", end_session)
    assert explore(config).broken is None
    assert compared["won"] > 100
    assert compared["sessions"] > 100 or not (config.budget.crash or config.budget.expire)
    assert compared["refused"] > 10 or not config.doomed


# What it found


@in_virtual_time
async def test_a_late_head_does_not_count_on_seats_that_were_cleaned_up() -> None:
    """No answer to the head commit, nor to the resignation: in office again, the coordinator cleans up; then it comes.

    The round without seats that this formed once was the first thing that the model found.
    """

    class Late(MemoryDriver):
        late: tuple[tuple[Write, ...], tuple[Condition, ...]] | None = None
        arrived = False

        async def commit(
            self, writes: tuple[Write, ...], when: tuple[Condition, ...], deadline: Deadline | None = None
        ) -> BackendCommit:
            start = len(PREFIX)
            names = [write.key[start:] if isinstance(write, Put) else "-" + write.name[start:] for write in writes]
            if self.late is None and "rounds/1" in names:
                self.late = writes, when
                raise RendezvousConnectionError("no answer")
            if self.late is not None and not self.arrived:
                if "-coordinator" in names:
                    raise RendezvousConnectionError("no answer")
                if "-seats/a" in names:
                    assert (await super().commit(writes, when)).won
                    self.arrived = True
                    return await super().commit(*self.late)
            return await super().commit(writes, when)

    async with Meeting() as meeting:
        backend = Late(meeting.server)
        backend.max_writes = 4
        a = await meeting.enter("a", "3", backend=backend, timeouts=Timeouts(join=60))
        b, c = await meeting.enter_all("bc", "3", timeouts=Timeouts(join=60))
        joins = [meeting.start(a)]
        await anyio.sleep(1)
        joins += [meeting.start(b), meeting.start(c)]
        await anyio.sleep(30)
        assert backend.arrived
        worlds = [joining.world for joining in joins if joining.world is not None]
        assert sorted((world.round, world.rank) for world in worlds) == [(1, 0), (1, 1), (1, 2)]
