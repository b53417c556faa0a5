"""The round's own key-value store, through which the members of a world exchange data.

Every write is fenced: the backend compares the round's token and refuses it once the round is over. A node of an old
round gets ``RendezvousFencedError`` and has changed nothing. Waits end with the round. A node that is out by its own
clock is refused before anything is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import anyio
import msgspec

from rendezvous_async.aio.deadline import Deadline, answer_within
from rendezvous_async.aio.signal import Notice
from rendezvous_async.backends.base import Backend, Commit, Condition, Delete, Entry, Listing, Put, Token, Write
from rendezvous_async.core.state import round_key
from rendezvous_async.errors import RendezvousFencedError, RendezvousTimeoutError
from rendezvous_async.settings import check_seconds, encode_segment
from rendezvous_async.texts import quoted

__all__ = ["Store"]

DEFAULT_TIMEOUT = 300.0
MAX_TOLD = 64
"""How many passed barriers a member reports at once."""
MAX_GATHERED = 1024 * 1024
"""Bytes that a gather may have in all: every member gets all of them."""
GATHER = "=gather"
"""The barrier of a gather; an encoded name has no such sign in it."""


class Store:
    """Keys and values that live as long as one round.

    Args:
        backend: The run's.
        round: The round's number.
        token: The round's fencing token.
        rank: This member's rank, for barriers.
        size: The size of the world, for barriers.
        check: Raises if this node is out.
        news: Fires when that may have changed, so that a wait can end.
        call_timeout: For one call to the backend; a node that waits longer is out anyway.
    """

    def __init__(
        self,
        backend: Backend,
        round: int,
        token: Token,
        rank: int,
        size: int,
        check: Callable[[], None],
        news: Notice,
        call_timeout: float,
    ) -> None:
        self._backend = backend
        self._round = round
        self._fence = Condition(round_key(round), token)
        self._rank = rank
        self._size = size
        self._check = check
        self._news = news
        self._call_timeout = call_timeout
        self._keys = f"{round_key(round)}/kv/"
        self._barrier_key = f"{round_key(round)}/barriers/"
        self._barriers: Counter[str] = Counter()
        self._passed: dict[str, None] = {}
        """Barriers that this member has passed and not yet reported to rank 0."""
        self._telling: dict[str, set[str]] = {}
        """For rank 0: by barrier whose last key still exists, the members that reported to have passed it."""

    def __repr__(self) -> str:
        return f"<Store run={self._backend.run_id!r} round={self._round} rank={self._rank}>"

    async def set(self, key: str, value: bytes | str) -> None:
        """Write a value."""
        await self._write(Put(self._key(key), _bytes(value)))

    async def multi_set(self, values: Mapping[str, bytes | str]) -> None:
        """Write several values, in one commit if the backend's limit allows it, else in several."""
        puts = [Put(self._key(key), _bytes(value)) for key, value in values.items()]
        for start in range(0, len(puts), self._backend.max_writes):
            await self._write(*puts[start : start + self._backend.max_writes])

    async def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        """Return the value at ``key``, waiting until it is there.

        Raises:
            RendezvousTimeoutError: It did not come in time.
            RendezvousFencedError: The round is over.
        """
        return (await self.wait([key], timeout))[0]

    async def wait(self, keys: Iterable[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        """Wait until all ``keys`` are there, and return their values in order; raises as ``get`` does."""
        check_seconds("timeout", timeout)
        wanted = list(keys)
        names = {key: self._key(key) for key in wanted}
        values: dict[str, bytes] = {}
        with anyio.move_on_after(timeout) as scope:
            for name in names.values():
                entry = await self._read(name)
                if entry is not None and entry.value is not None:
                    values[name] = entry.value
            if len(values) < len(names):
                await self._watch(list(names.values()), values, len(names))
        if scope.cancelled_caught:
            absent = sorted(key for key, name in names.items() if name not in values)
            raise RendezvousTimeoutError(f"{self!r}: nobody has set {absent} within {timeout:g} s")
        return [values[names[key]] for key in wanted]

    async def check(self, keys: Iterable[str]) -> bool:
        """Return whether all ``keys`` exist now."""
        for key in keys:
            if await self._read(self._key(key)) is None:
                await self._confirm()
                return False
        return True

    async def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Write ``desired`` if the value is ``expected``, or if there is none and ``expected`` is empty.

        Returns:
            The value that now stands; if there is none, ``expected``.
        """
        name, wanted, value = self._key(key), _bytes(expected), _bytes(desired)
        entry = await self._read(name)
        while True:
            value_now = b"" if entry is None else entry.value or b""
            if value_now != wanted:
                await self._confirm()
                return wanted if entry is None else value_now
            commit = await self._write(Put(name, value), when=_unchanged(name, entry))
            if commit.won:
                return value
            entry = commit.entry(name)

    async def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        name = self._key(key)
        entry = await self._read(name)
        while True:
            try:
                total = int(entry.value or b"0") + amount if entry is not None else amount
            except ValueError:
                raise ValueError(f"the value at {key!r} is not a number: {entry and entry.value!r}") from None
            commit = await self._write(Put(name, str(total).encode()), when=_unchanged(name, entry))
            if commit.won:
                return total
            entry = commit.entry(name)

    async def append(self, key: str, value: bytes | str) -> None:
        """Add to the end of a value, which starts empty."""
        name = self._key(key)
        entry = await self._read(name)
        while True:
            before = b"" if entry is None else entry.value or b""
            commit = await self._write(Put(name, before + _bytes(value)), when=_unchanged(name, entry))
            if commit.won:
                return
            entry = commit.entry(name)

    async def delete(self, key: str) -> bool:
        """Delete a key; False if there was none."""
        name = self._key(key)
        entry = await self._read(name)
        while entry is not None:
            commit = await self._write(Delete(name), when=_unchanged(name, entry))
            if commit.won:
                return True
            entry = commit.entry(name)
        await self._confirm()
        return False

    async def num_keys(self) -> int:
        """Count the keys."""
        self._check()
        with answer_within(self._call_timeout, "count keys"):
            count = len((await self._backend.list(self._keys)).entries)
        await self._confirm()
        return count

    async def barrier(self, name: str = "barrier", timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until every member has called this, as often as this one has with this name; failed calls do not count.

        Each member writes one key and waits for one: rank 0 counts them and writes the key that lets all pass. Then it
        deletes the keys of the members, and its own once all members have reported, at a later barrier, that they
        passed this one. A call that failed leaves its key until it is tried again or the round ends.

        Raises:
            RendezvousTimeoutError: Some did not come; the text names their ranks.
            RendezvousFencedError: The round is over.
        """
        await self._meet_within(timeout, encode_segment(name), f"barrier {name!r}")

    async def gather(self, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        """Return the values of all members by rank, once every member has called this as often as this one has.

        A barrier that carries a small value: each member writes one key and waits for one, in which rank 0 puts all.
        Failed calls do not count, as with ``barrier``. The values stay in the backend until a later barrier or
        gather, or until the round ends.

        All values together have at most 1 MiB, or a quarter of what the backend takes in one commit if that is less:
        256 KiB with etcd, 128 KiB with a classic backend or ``over_state``.

        A member that is lost does not end the call: it waits until the timeout, and the error names the ranks that did
        not come. Call it inside ``world.until_changed()`` or ``world.while_whole()`` to learn of a loss at once.

        Raises:
            ValueError: The value is too large for a world of this size.
            RendezvousTimeoutError: Some did not come; the text names their ranks.
            RendezvousFencedError: The round is over.
        """
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"a value to gather must be bytes, not {quoted(value)}")
        value = bytes(value)
        most = min(MAX_GATHERED, self._backend.max_bytes // 4) // self._size
        if len(value) > most:
            raise ValueError(
                f"in a world of {self._size}, a value to gather has at most {most} bytes, not {len(value)}: put it "
                "into the store or onto a shared disk, and gather where it is"
            )
        gathered = await self._meet_within(timeout, GATHER, "gather()", value)
        values: list[bytes] = msgspec.msgpack.decode(gathered, type=list[bytes])
        return values

    async def _meet_within(self, timeout: float, name: str, what: str, value: bytes | None = None) -> bytes:
        """Meet all other members at the next barrier of a name; return the values of all, packed, if it is a gather."""
        check_seconds("timeout", timeout)
        self._barriers[name] += 1
        number = self._barriers[name]
        barrier = f"{name}-{number}"
        passed = False
        try:
            with anyio.move_on_after(timeout):
                gathered = await self._meet(barrier, value)
                passed = True
                return gathered
            place = self._barrier_key + barrier
            if why := await self._explain(what, place, timeout):
                raise RendezvousTimeoutError(why)
            gathered = await self._result_at(place)
            passed = True
            return gathered
        finally:
            if passed:
                self._passed[barrier] = None
            elif self._barriers[name] == number:
                self._barriers[name] -= 1  # Let the next call try this one again.

    async def _meet(self, barrier: str, value: bytes | None) -> bytes:
        place = self._barrier_key + barrier
        told = list(self._passed)[:MAX_TOLD]
        report = "/".join(told).encode()
        arrival = Put(f"{place}/{self._rank}", report if value is None else report + b"\n" + value)
        if not (await self._write(arrival, when=Condition(place, None))).won:
            return await self._result_at(place)  # All were here already; an earlier call of this member had failed.
        result: dict[str, bytes] = {}
        if self._rank == 0:
            here: dict[str, bytes] = {}
            await self._watch([f"{place}/"], here, self._size)
            over = self._over(here)
            self._telling.setdefault(barrier, set())
            if value is not None:
                values = [here[f"{place}/{rank}"].partition(b"\n")[2] for rank in range(self._size)]
                result[place] = msgspec.msgpack.encode(values)
            put = Put(place, result.get(place, b""))
            await self._write(put, *[Delete(self._barrier_key + each) for each in (f"{barrier}/", *over)])
            for each in over:
                self._telling.pop(each, None)
        else:
            await self._watch([place], result, 1)
        for each in told:
            self._passed.pop(each, None)
        return result.get(place, b"")

    async def _result_at(self, place: str) -> bytes:
        """Return what rank 0 wrote at a barrier that all have reached; it stays until this member has reported it."""
        entry = await self._read(place)
        if entry is None or entry.value is None:
            raise RendezvousFencedError(f"{self!r}: round {self._round} is over; join() again for the next one")
        return entry.value

    def _over(self, here: Mapping[str, bytes]) -> list[str]:
        """Return the barriers that all members have reported as passed, with the reports in ``here``."""
        for key, told in here.items():
            for barrier in told.partition(b"\n")[0].decode("ascii", "replace").split("/"):
                if barrier in self._telling:
                    self._telling[barrier].add(key.rpartition("/")[2])
        return [barrier for barrier, ranks in self._telling.items() if len(ranks) == self._size][:MAX_TOLD]

    async def _explain(self, what: str, place: str, timeout: float) -> str | None:
        """Return who did not come to a barrier in time; None if all did."""
        with answer_within(self._call_timeout, "see who is at the barrier"):
            there = {entry.key.rpartition("/")[2] for entry in (await self._backend.list(f"{place}/")).entries}
            if not there and await self._backend.get(place) is not None:
                return None
        absent = [rank for rank in range(self._size) if str(rank) not in there]
        return f"{self!r}: {what} waited {timeout:g} s; ranks that did not come: {absent}"

    def _key(self, key: str) -> str:
        return self._keys + encode_segment(key)

    async def _read(self, name: str) -> Entry | None:
        self._check()
        with answer_within(self._call_timeout, "read"):
            return await self._backend.get(name)

    async def _write(self, *writes: Write, when: Condition | None = None) -> Commit:
        """Write while the round is current and ``when`` holds. Only a loss because of ``when`` is returned."""
        self._check()
        conditions = [self._fence] if when is None else [self._fence, when]
        commit = await self._backend.commit(
            *writes, when=conditions, deadline=Deadline.after(self._call_timeout, "write")
        )
        if not commit.won:
            self._check_fence(commit.entry(self._fence.key))
        return commit

    async def _watch(self, names: list[str], values: dict[str, bytes], count: int) -> None:
        """Collect values under ``names`` until there are ``count``, for as long as the round is current."""
        scope = anyio.CancelScope()

        def stop_if_out() -> None:
            try:
                self._check()
            except RendezvousFencedError:
                scope.cancel()

        with scope, self._news.calling(stop_if_out):
            stop_if_out()
            async with self._backend.watch(*names, self._fence.key) as watch:
                values.clear()  # The first listing is complete; what was read before may be gone.
                listing = await anext(watch)
                if all(entry.key != self._fence.key for entry in listing.entries):
                    self._check_fence(None)
                while self._take(listing, values) < count:
                    listing = await anext(watch)
                return
        self._check()

    def _take(self, listing: Listing, values: dict[str, bytes]) -> int:
        """Take a watch's listing into ``values``, and return how many there are."""
        for entry in listing.entries:
            if entry.key == self._fence.key:
                self._check_fence(entry)
            elif entry.value is None:
                values.pop(entry.key, None)
            else:
                values[entry.key] = entry.value
        return len(values)

    async def _confirm(self) -> None:
        """Raise if the round is over: a call that found nothing to write must not answer for an old round."""
        self._check_fence(await self._read(self._fence.key))

    def _check_fence(self, marker: Entry | None) -> None:
        if marker is None or marker.value is None or marker.token != self._fence.token:
            raise RendezvousFencedError(f"{self!r}: round {self._round} is over; join() again for the next one")


def _unchanged(name: str, entry: Entry | None) -> Condition:
    return Condition(name, None if entry is None else entry.token)


def _bytes(value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a value must be bytes or a string, not {quoted(value)}")
    return bytes(value)
