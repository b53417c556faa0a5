"""Checks of the classic contract: one state behind a token, as PyTorch's RendezvousBackend has it."""

from __future__ import annotations

from functools import partial

import anyio

from rendezvous_async.backends.base import Backend, Put, Token
from rendezvous_async.errors import RendezvousStateError
from rendezvous_async.testing.conformance.check import WAIT, Check, Trial, expect, expect_error, expect_same


@Check
async def no_state_is_none(run: Trial) -> None:
    """get_state() without a state is None, and so is set_state() with a token that cannot be current."""
    async with run.client() as backend:
        expect_same(await backend.get_state(), None, "get_state() without a state")
        for token in (Token("epoch", 1), "token", b"token", 1, object()):
            expect_same(
                await backend.set_state(b"x", token), None, f"set_state() with {token!r} where there is no state"
            )
        expect_same(await backend.get_state(), None, "get_state() afterwards")


@Check
async def set_state_needs_the_current_token(run: Trial) -> None:
    """set_state() creates without a token, replaces with the current one, and else returns what stands and False."""
    async with run.client() as backend, run.client() as other:
        created = await backend.set_state(b"one")
        assert created is not None, "set_state() without a token created nothing"
        state, old, written = created
        expect_same((state, written), (b"one", True), "set_state() where there is no state")
        expect_same(await other.get_state(), (b"one", old), "get_state()")
        replaced = await other.set_state(b"two", old)
        assert replaced is not None, "set_state() with the current token found no state"
        state, token, written = replaced
        expect_same((state, written), (b"two", True), "set_state() with the current token")
        expect(token != old, "the token is the same after the state was replaced")
        stale = [
            old,
            None,
            Token("another epoch", token.revision),
            "invalid",
            b"invalid",
            7,
            -1.5,
            (),
            object(),
            str(token),
        ]
        for wrong in stale:
            answer = await backend.set_state(b"wrong", wrong)
            expect_same(answer, (b"two", token, False), f"set_state() with {wrong!r}, which is not current")
        expect_same(await backend.get_state(), (b"two", token), "get_state() after writes that lost")
        for state in (b"", bytes(range(256)), b"x" * 100_000):
            current = await backend.get_state()
            assert current is not None, "get_state() lost the state"
            await backend.set_state(state, current[1])
            read = await other.get_state()
            expect_same(read and read[0], state, "a state read back")


@Check
async def a_damaged_state_is_an_error(run: Trial) -> None:
    """A state that set_state() did not write, or that was damaged, raises RendezvousStateError."""
    async with run.client() as backend:
        await backend.set_state(b"a good state")
        entry = await backend.get("classic")
        assert entry is not None and entry.value is not None, "set_state() did not write the key `classic`"
        good = entry.value
        for bad in (b"", b"corrupt", good[:-1], good + b"x", b"x" + good, good[:-1] + bytes([good[-1] ^ 1]), good[:3]):
            await backend.commit(Put("classic", bad))
            await expect_error(RendezvousStateError, backend.get_state, f"get_state() of {bad!r}")
            for token in (None, "invalid", entry.token):
                what = f"set_state() over {bad!r} with {token!r}"
                await expect_error(RendezvousStateError, partial(backend.set_state, b"new", token), what)
        await backend.commit(Put("classic", good))
        state = await backend.get_state()
        expect_same(state and state[0], b"a good state", "get_state() once it is whole again")


@Check
async def one_of_many_set_states_wins(run: Trial) -> None:
    """Of many set_state() calls with one token exactly one wins, and all return the state of the one that did."""
    async with run.client() as first, run.client() as second:
        token: Token | None = None
        for turn in range(3):
            answers: list[tuple[bytes, Token, bool] | None] = []

            async def write(
                backend: Backend, state: bytes, token: Token | None, answers: list[tuple[bytes, Token, bool] | None]
            ) -> None:
                answers.append(await backend.set_state(state, token))

            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:
                    for number in range(8):
                        backend = (first, second)[number % 2]
                        group.start_soon(write, backend, b"%d.%d" % (turn, number), token, answers)
            winners = [answer for answer in answers if answer is not None and answer[2]]
            expect_same(len(winners), 1, "the number of set_state() calls that won")
            state, token, _ = winners[0]
            expect_same({answer and answer[:2] for answer in answers}, {(state, token)}, "what all calls returned")
            expect_same(await second.get_state(), (state, token), "get_state()")
