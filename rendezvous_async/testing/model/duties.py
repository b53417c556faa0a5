"""What a coordinator does, move by move, in the order of ``coordinator._Duty``.

::

    begin ─► read the head ─► read the seats ─► clean up ─► read the roster ─► work ─┬─► rewrite the head ─► work
                                                                                    └─► form, commit by commit,
                                                                                        clear ─► work

Each read and each commit is a move of its own, so anything can happen in between. A coordinator hears of each record on
its own and in its own time. One that lost its post goes on as if it had not, until a commit is refused or it hears of
it. A commit may stay without an answer: then its author ends its duty and gives the post back, and both commits are on
the way, to be applied at any later moment or never; if the post is still this node's, it may begin anew meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from rendezvous_async.testing.model.canonical import attempts_of
from rendezvous_async.testing.model.protocol import WHAT, Protocol
from rendezvous_async.testing.model.store import commit
from rendezvous_async.testing.model.values import OWN, PAST, Commit, Duty, HeadRow, RecordRow, State, replaced

__all__ = ["Duties"]

READ_SEATS, CLEAN, READ_ROSTER, WORK, FORM, CLEAR = range(6)


class Duties:
    """The coordinators' moves of one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._rounds = protocol.config.rounds

    def describe(self, what: Commit) -> str:
        """Say in words what a commit does."""
        seats = ", ".join(f"n{node} rank {seat.rank} in round {seat.round}" for node, seat in what.seats)
        head = "" if what.head is None else f" (round {what.head.round}, size {what.head.size})"
        return f"a coordinator {WHAT[what.what]}{head}{': ' if seats else ''}{seats}"

    def begin(self, state: State, node: int) -> State:
        """Begin with the head; the post is this node's."""
        assert state.post is not None
        head = self._protocol.stamped(state.head, state.revision)
        none = (None,) * len(state.nodes)
        return _with(state, node, Duty(READ_SEATS, state.post.revision, state.revision, head, none))

    def of(self, state: State, node: int, duty: Duty) -> Iterator[tuple[str, bool, State]]:
        """Yield what the coordinator at ``node`` may do: what, whether it is free, and the state after it."""
        if duty.post == PAST and duty.stage != FORM:
            yield "hears that it has lost the post", True, _with(state, node, None)
        if duty.stage == READ_SEATS:
            yield "reads the seats", True, _with(state, node, self.read_seats(state, duty))
        elif duty.stage == READ_ROSTER:
            yield "reads the roster", True, _with(state, node, self.read_roster(state, duty))
        elif duty.stage in (CLEAN, CLEAR):
            after = replace(duty, stage=READ_ROSTER if duty.stage == CLEAN else WORK, extra=())
            yield from self._commit(state, node, duty, self._protocol.clean_up(duty), after, after)
        elif duty.stage == WORK:
            yield from self._work(state, node, duty)
        else:
            yield from self._form(state, node, duty)

    def read_seats(self, state: State, duty: Duty) -> Duty:
        """Return the duty once it has read the seats, after the head."""
        counted = self._protocol.counted(duty.head, state.seats)
        extra = tuple(
            node
            for node, (there, counts) in enumerate(zip(state.seats, counted, strict=True))
            if there is not None and counts is None
        )
        stage = CLEAN if extra or duty.head.round > 1 else READ_ROSTER
        return replace(duty, stage=stage, seats=counted, extra=extra)

    def read_roster(self, state: State, duty: Duty) -> Duty:
        """Return the duty once it has read the roster, after the seats."""
        return replace(duty, stage=WORK, roster=tuple(map(_as_heard, state.records)))

    def _work(self, state: State, node: int, duty: Duty) -> Iterator[tuple[str, bool, State]]:
        for other, (known, record) in enumerate(zip(duty.roster, state.records, strict=True)):
            if known != (there := _as_heard(record)):
                heard = replace(duty, roster=replaced(duty.roster, other, there))
                yield f"hears of n{other}", True, _with(state, node, heard)
        if duty.state != state.revision:
            yield "hears of another head", True, _with(state, node, self._follow(state, duty))
        decision = self._protocol.decide(duty.head, duty.seats, duty.roster)
        if decision is None:
            return
        if isinstance(decision, HeadRow):
            after = replace(duty, head=decision)
            lost = self._follow(state, duty)
            yield from self._commit(state, node, duty, self._protocol.rewrite(duty, decision), after, lost)
        elif decision.head.round <= self._rounds:
            attempt = max(attempts_of(state), default=0) + 1
            yield from self._form(state, node, replace(duty, stage=FORM, plan=decision.plan(attempt)))

    def _follow(self, state: State, duty: Duty) -> Duty | None:
        """Adopt a head that others have written; None if all must be read again."""
        head = self._protocol.stamped(state.head, state.revision)
        if duty.post == PAST or head.attempt != duty.head.attempt:
            return None
        return replace(duty, head=head, state=state.revision)

    def _form(self, state: State, node: int, duty: Duty) -> Iterator[tuple[str, bool, State]]:
        plan = duty.plan
        assert plan is not None
        script = self._protocol.script(duty, plan)
        after = replace(duty, plan=replace(plan, done=plan.done + 1))
        if plan.done + 1 == len(script):
            head = self._protocol.stamped(plan.head, plan.head.attempt)
            extra = tuple(
                member
                for member, (before, now) in enumerate(zip(duty.seats, plan.seats, strict=True))
                if before is not None and now is None
            )
            after = replace(
                duty,
                stage=CLEAR if extra or duty.head.round else WORK,
                head=head,
                seats=plan.seats,
                extra=extra,
                plan=None,
            )
        yield from self._commit(state, node, duty, script[plan.done], after, None)

    def _commit(
        self, state: State, node: int, duty: Duty, what: Commit, after: Duty, lost: Duty | None
    ) -> Iterator[tuple[str, bool, State]]:
        """Yield the move that sends a commit and gets an answer, and the one that gets none."""
        words = WHAT[what.what]
        done = commit(state, what)
        if done is None:
            if duty.post == PAST:
                lost = None
            yield f"{words}: refused", True, _with(state, node, lost)
            return
        if what.head is not None:
            after = replace(after, state=done.revision)
        yield words, True, _with(done, node, after)
        if state.budget.late:
            budget = replace(state.budget, late=state.budget.late - 1)
            late = (*state.late, what, self._protocol.resign(duty))
            sent = replace(state, budget=budget, late=late)
            yield f"{words}, gets no answer, and gives up", False, _with(sent, node, None)


def _as_heard(record: RecordRow | None) -> RecordRow | None:
    return None if record is None else replace(record, session=OWN)


def _with(state: State, node: int, duty: Duty | None) -> State:
    return replace(state, duties=replaced(state.duties, node, duty))
