"""What there is room for, at the very bounds: the table is filled to one key or byte below them, and to them."""

from __future__ import annotations

import logging

import anyio
import pytest

from rendezvous_async.aio import clock
from rendezvous_async.backends.table.table import Table
from rendezvous_async.backends.table.usage import ANSWER_COST, CLIENT_COST, SESSION_COST, Account, cost_of
from rendezvous_async.backends.tcp import Limits
from rendezvous_async.backends.tcp.server.quota import LOG_AGAIN, LOOK_AGAIN, SESSION_NAME, Quota
from rendezvous_async.backends.values import Delete, Put
from rendezvous_async.testing import run

CLIENT = "a client"
ANSWER = ANSWER_COST + CLIENT_COST + len(CLIENT)
MUCH = 10**9
LETTER = "\N{GREEK SMALL LETTER ALPHA}"  # two bytes


def data(number: int, run: str = "ns/a", size: int = 0) -> Put:
    return Put(f"{run}/rounds/1/{number}", b"x" * size)


def record(number: int, run: str = "ns/a", size: int = 0) -> Put:
    return Put(f"{run}/nodes/{number}", b"x" * size)


class Filled:
    """A table and its quota; what is put past the quota is there, whatever it says."""

    def __init__(self, **limits: float) -> None:
        self.limits = Limits(**{"keys": MUCH, "bytes": MUCH, **limits})  # type: ignore[arg-type]
        self.table = Table("epoch")
        self.quota = Quota(self.table, self.limits, "tcp://here")

    def put(self, *puts: Put) -> Filled:
        self.table.commit(puts)
        return self

    def why(self, *puts: Put, scope: str = "") -> str | None:
        """Return why a commit is refused."""
        why: list[str | None] = []

        async def ask() -> None:
            why.append(self.quota.refuse_commit(scope, CLIENT, puts))

        run(ask)
        return why[0]


# Keys. Of 16 the last 4 are for records alone; a run has 8 of them, 6 with data, and 2 of the last 4.

KEYS = {"keys": 16, "reserve": 0.25, "run_share": 0.5}


def test_a_runs_data_and_records_have_their_share_of_the_keys() -> None:
    filled = Filled(**KEYS)
    filled.put(*map(data, range(5)))
    assert filled.why(data(5)) is None
    assert filled.why(data(5), data(6)) is not None
    filled.put(data(5))
    assert filled.why(data(6)) == (
        "no more room for run ns/a, with 6 keys and "
        f"{filled.table.usage.of('ns/a').bytes} bytes of at most 6 and {int(0.5 * (MUCH - MUCH // 4))} "
        "(limit run_share=0.5). Delete some, or raise it"
    )
    assert filled.why(record(0), record(1)) is None
    assert "of at most 8 and" in (filled.why(record(0), record(1), record(2)) or "")
    assert filled.why(record(0), data(6)) is not None, "a commit with data is data"
    assert filled.why(data(5, size=99)) is None, "no key more"
    assert filled.why(data(0, "ns/b")) is None


def test_the_last_part_of_the_keys_is_for_records_and_nobody_has_more_than_a_share_of_it() -> None:
    filled = Filled(**KEYS)
    for name in ("ns/a", "ns/b"):
        filled.put(*(data(number, name) for number in range(5)))
    assert filled.why(data(0, "ns/c"), data(1, "ns/c")) is None, "up to twelve"
    assert "the server is full" in (filled.why(*(data(number, "ns/c") for number in range(3))) or "")
    filled.put(data(0, "ns/c"), data(1, "ns/c"))
    assert "the server is full" in (filled.why(data(2, "ns/c")) or "")
    assert filled.why(record(0, "ns/c"), record(1, "ns/c")) is None
    assert "the server is full" in (filled.why(*(record(number, "ns/c") for number in range(3))) or "")
    filled.put(record(0, "ns/c"), record(1, "ns/c"), record(0, "ns/d"))
    assert filled.why(record(1, "ns/d")) is None
    assert "the server is full" in (filled.why(record(1, "ns/d"), record(2, "ns/d")) or "")
    filled.put(record(1, "ns/d"))
    assert "the server is full" in (filled.why(record(0, "ns/e")) or "")
    assert filled.why(record(1, "ns/d", 99), data(0, "ns/c")) is None, "what has no new key has room"
    assert filled.why(data(0, "ns/c", 1)) is not None, "but data may not grow now"


def test_where_keys_are_free_again_there_is_room_again() -> None:
    filled = Filled(**KEYS)
    filled.put(*map(data, range(6)))
    assert filled.why(data(6)) is not None
    filled.table.commit([Delete("ns/a/rounds/1/3")])
    assert filled.why(data(6)) is None


# Bytes.


def test_what_a_commit_costs_counts_to_the_byte() -> None:
    put = record(0)
    needed = cost_of(put) + ANSWER
    for room, fits in ((needed, True), (needed - 1, False)):
        filled = Filled(bytes=room, run_share=1, reserve=1e-9)
        assert (filled.why(put) is None) is fits
    assert filled.why() is None, "deletions make room"


def test_the_answer_costs_the_bytes_of_its_clients_name() -> None:
    put = record(0)
    room = cost_of(put) + ANSWER_COST + CLIENT_COST + 2 * 10

    def refused(client: str) -> bool:
        quota = Quota(Table("epoch"), Limits(bytes=room, run_share=1, reserve=1e-9))
        refusals: list[str | None] = []

        async def ask() -> None:
            refusals.append(quota.refuse_commit("", client, [put]))

        run(ask)
        return refusals != [None]

    assert [refused(LETTER * 10), refused(LETTER * 10 + "x"), refused("x" * 20)] == [False, True, False]


def test_what_takes_the_place_of_something_costs_what_it_is_larger() -> None:
    old, answer = record(0, size=1000), ANSWER
    filled = Filled(bytes=3000, run_share=1, reserve=1e-9).put(old)
    room = 3000 - filled.table.size - answer
    assert filled.why(record(0, size=1000 + room)) is None
    assert filled.why(record(0, size=1000 + room + 1)) is not None
    assert filled.why(record(0, size=10), record(1, size=room - cost_of(record(1)))) is None
    assert filled.why(record(0, size=10), record(1, size=room - cost_of(record(1)) + 1)) is not None, (
        "what would become free is not given away before it is"
    )


BYTES = {"bytes": 100_000, "reserve": 0.25, "run_share": 0.5}


def test_a_run_with_much_data_has_its_share_of_the_last_part_for_records() -> None:
    filled = Filled(**BYTES).put(data(0, "ns/a", 36_000), data(0, "ns/b", 36_000), record(0, "ns/c", 5000))
    assert "the server is full" in (filled.why(data(1, "ns/c", 10)) or "")
    assert filled.why(record(0, "ns/a", 5000)) is None
    assert filled.why(record(0, "ns/a", 11_000)) is None
    assert filled.why(record(1, "ns/c", 5000)) is None
    assert "the server is full" in (filled.why(record(1, "ns/c", 7000)) or "")


def test_what_is_kept_for_all_clients_is_nobodys_in_particular() -> None:
    filled = Filled(**BYTES).put(data(0, "ns/a", 30_000), data(0, "ns/b", 30_000))
    filled.table.usage.add_answers("everybody", 14_000)
    assert filled.why(record(0, "ns/c", 100)) is None
    filled.table.usage.add_answers("ns/|somebody", 14_000)
    assert filled.why(record(0, "ns/c", 100), scope="ns/") is not None


@pytest.mark.parametrize("limits", [{"bytes": 20_000}, {"keys": 4}], ids=str)
def test_who_has_more_than_its_share_may_change_what_does_not_grow(limits: dict[str, float]) -> None:
    """The limits may have been lowered since."""
    filled = Filled(**limits, run_share=0.5, reserve=1e-9).put(*(record(number, size=4000) for number in range(3)))
    assert filled.why(record(0, size=4000), record(1, size=10)) is None
    grown = filled.why(record(0, size=4001), record(3))
    assert grown is not None
    assert "no more room for run ns/a" in grown


def test_a_full_server_says_what_it_has_who_has_most_of_it_and_what_was_wanted() -> None:
    filled = Filled(keys=2, run_share=1, reserve=0.3).put(record(0, "ns/big", 500), record(0, "ns/small"))
    has, most = filled.table.usage, filled.table.usage.of("ns/big").bytes
    needs = cost_of(record(1)) + ANSWER
    assert filled.why(record(1)) == (
        f"the server is full: 2 keys and {has.all.bytes} bytes, of at most 2 and {MUCH} with 30% for the records of "
        f"runs alone; this needs 1 and {needs} more. Most of it is run ns/big: 1 keys and {most} bytes"
    )
    assert (filled.why(record(1), scope="ns/s") or "").endswith(f"and {needs} more. Most of it is not ns/s*")
    assert (filled.why(record(1), scope="ns/b") or "").endswith(
        f"run ns/big: 1 keys and {has.of('ns/big').bytes} bytes"
    )


@pytest.mark.parametrize(("scope", "whose"), [("ns/x", "clients of ns/x*"), ("x", "clients of x*"), ("", "clients")])
def test_sessions_are_somebodys_too(scope: str, whose: str) -> None:
    filled = Filled(keys=1, run_share=1, reserve=0.3).put(record(0))
    for _ in range(5):
        filled.table.open_session(5, 0, scope)
    assert f"Most of it is {whose}: 0 keys and" in (filled.why(record(1), scope=scope) or "")


# Scopes.


def test_all_runs_of_a_scope_have_one_share_together() -> None:
    filled = Filled(keys=16, reserve=0.25, run_share=0.5)
    filled.put(*(record(number, f"ns/{name}") for name in "ab" for number in range(3)))
    more = [record(number, "ns/c") for number in range(3)]
    assert filled.why(*more[:2], scope="ns/") is None
    assert "no more room for runs ns/*, with 6 keys and" in (filled.why(*more, scope="ns/") or "")
    assert filled.why(*more, scope="ns/c") is None
    assert filled.why(*more) is None


# Sessions.


def sessions_refused(quota: Quota, scope: str = "", *puts: Put) -> str | None:
    refusals: list[str | None] = []

    async def ask() -> None:
        refusals.append(quota.refuse_session(scope, puts))

    run(ask)
    return refusals[0]


def test_there_are_as_many_sessions_as_the_limit_says_and_a_scope_has_its_share() -> None:
    table = Table("epoch")
    quota = Quota(table, Limits(sessions=4, run_share=0.5))
    for scope in ("ns/x", "ns/x", ""):
        assert sessions_refused(quota, scope) is None
        table.open_session(5, 0, scope)
    assert sessions_refused(quota, "ns/x") == "the runs of ns/x* have their share of the server's 4 sessions"
    assert sessions_refused(quota, "ns/y") is None
    table.open_session(5, 0)
    assert sessions_refused(quota) == sessions_refused(quota, "ns/y") == "the server has its 4 sessions"


@pytest.mark.parametrize("scope", ["", LETTER * 30])
@pytest.mark.parametrize("puts", [(), (record(0), record(1))])
def test_a_session_and_the_keys_under_it_cost_its_name(scope: str, puts: tuple[Put, ...]) -> None:
    name = SESSION_NAME + len(scope.encode())
    needed = SESSION_COST + name + sum(cost_of(put) + name for put in puts)
    for room, fits in ((needed, True), (needed - 1, False)):
        quota = Quota(Table("epoch"), Limits(bytes=room, run_share=1, reserve=1e-9))
        assert (sessions_refused(quota, scope, *puts) is None) is fits


def test_what_is_counted_for_a_session_is_never_less_than_what_is_kept() -> None:
    table = Table("0123456789abcdef")
    table._opened = 10**15
    before = table.size
    session = table.open_session(5, 0, LETTER * 30)
    assert table.size - before <= SESSION_COST + SESSION_NAME + 60
    assert len(session.encode()) <= SESSION_NAME + 60


# The log.


def test_one_line_a_minute_says_that_there_is_no_room(caplog: pytest.LogCaptureFixture) -> None:
    filled = Filled(sessions=1)
    filled.table.open_session(5, 0)
    lines: list[tuple[float, str]] = []

    async def ask_for_long() -> None:

        for second in range(int(2 * LOG_AGAIN) + 1):
            filled.quota.refuse_session("", ())
            lines.extend((float(second), each) for each in caplog.messages)
            caplog.clear()
            await anyio.sleep(1)

    with caplog.at_level(logging.WARNING, "rendezvous_async.server"):
        run(ask_for_long)
    line = "the server at tcp://here refuses a write: the server has its 1 sessions"
    assert lines == [(0, line), (LOG_AGAIN, line), (2 * LOG_AGAIN, line)]


def test_the_log_names_who_fills_the_server_also_when_the_client_may_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filled = Filled(keys=1, run_share=1, reserve=0.3).put(record(0, "ns/big"))
    assert "ns/big" not in (filled.why(record(0, "ns/small"), scope="ns/s") or "")
    [line] = caplog.messages
    assert line.startswith("the server at tcp://here refuses a write: the server is full: 1 keys")
    assert "Most of it is run ns/big: 1 keys and" in line


def test_who_has_most_is_looked_for_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a look at all accounts, and a client that is refused may ask again at once."""
    filled = Filled(keys=1, run_share=1, reserve=0.3).put(record(0))
    looks: list[float] = []
    largest = filled.table.usage.largest

    async def ask_for_long() -> None:

        began = clock.now()

        def look() -> tuple[str, Account]:
            looks.append(clock.now() - began)
            return largest()

        monkeypatch.setattr(filled.table.usage, "largest", look)
        for _ in range(9):
            assert filled.quota.refuse_commit("", CLIENT, [record(1)]) is not None
            await anyio.sleep(LOOK_AGAIN / 4)

    run(ask_for_long)
    assert looks == [0, LOOK_AGAIN, 2 * LOOK_AGAIN]
