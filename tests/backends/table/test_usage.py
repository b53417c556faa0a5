"""What a table keeps and for whom: every account is the sum of what is there, after any changes."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.base import Entry, Put, Token
from rendezvous_async.backends.table import usage as module
from rendezvous_async.backends.table.usage import (
    ENTRY_COST,
    SEGMENT_COST,
    SESSION_COST,
    Account,
    Usage,
    cost_of,
    cost_of_key,
)

TOKEN = Token("epoch", 1)
WIDE = "\N{GREEK SMALL LETTER ALPHA}"  # two bytes


def entry(key: str, value: bytes | None = b"", session: str | None = None) -> Entry:
    return Entry(key, value, TOKEN, session)


def test_what_an_entry_costs() -> None:
    assert cost_of_key("key") == ENTRY_COST + SEGMENT_COST + 3
    assert cost_of_key("a/b/key") == ENTRY_COST + 3 * (SEGMENT_COST + 7)
    assert cost_of_key(WIDE) == ENTRY_COST + SEGMENT_COST + 2
    assert cost_of(entry("key", b"12345")) == cost_of_key("key") + 5
    assert cost_of(entry("key", None)) == cost_of_key("key")
    assert cost_of(Put("key", b"12345", f"s@{WIDE}")) == cost_of_key("key") + 5 + 4


def test_an_entry_counts_for_its_run_and_as_data_if_it_is() -> None:
    usage = Usage()
    record, data = entry("ns/a/nodes/x", b"12"), entry("ns/a/rounds/1/key", b"123")
    usage.add_entry(record, None)
    usage.add_entry(data, None)
    usage.add_entry(entry("ns/b/nodes/x"), None)
    assert usage.of("ns/a") == Account(2, cost_of(record) + cost_of(data), 1, cost_of(data))
    assert usage.of("ns/b") == Account(1, cost_of_key("ns/b/nodes/x"))
    assert usage.of("ns/none") == Account()
    assert usage.all == Account(3, usage.of("ns/a").bytes + usage.of("ns/b").bytes, 1, cost_of(data))


def test_a_new_value_counts_in_the_place_of_the_old_one() -> None:
    usage = Usage()
    old, new = entry("ns/a/rounds/1/key", b"123", "s1"), entry("ns/a/rounds/1/key", b"1", "session 2")
    usage.add_entry(old, None)
    usage.add_entry(new, old)
    assert usage.all == Account(1, cost_of(new), 1, cost_of(new))
    usage.add_entry(entry("ns/a/rounds/1/key", b"12", "session 2"), new)
    assert usage.all.bytes == cost_of(new) + 1
    usage.add_entry(new, new)
    assert usage.all.bytes == cost_of(new) + 1, "as large as before"


def test_what_is_dropped_counts_no_longer() -> None:
    usage = Usage()
    entries = [entry(f"ns/{run}/{where}/{number}", b"x" * number) for run in "ab" for where in ("nodes", "rounds/1")
               for number in range(3)]  # fmt: skip
    for each in entries:
        usage.add_entry(each, None)
    usage.drop_entries(entries[:4])
    kept = entries[4:6]
    assert usage.of("ns/a") == Account(2, sum(map(cost_of, kept)), 2, sum(map(cost_of, kept)))
    usage.drop_entries(entries[4:])
    assert usage.all == Account()
    assert usage.largest() == ("", Account())


def test_sessions_and_answers_belong_to_the_clients_of_a_scope() -> None:
    usage = Usage()
    usage.add_session("epoch.1")
    usage.add_session(f"epoch.2@ns/{WIDE}")
    usage.add_session(f"epoch.3@ns/{WIDE}")
    usage.add_answers("client", 100)
    usage.add_answers(f"ns/{WIDE}|client", 10)
    assert usage.of("@") == Account(bytes=SESSION_COST + 7 + 100, sessions=1)
    assert usage.of(f"@ns/{WIDE}") == Account(bytes=2 * (SESSION_COST + 13) + 10, sessions=2)
    assert usage.all.sessions == 3
    usage.add_session("epoch.1", -1)
    usage.add_session(f"epoch.2@ns/{WIDE}", -1)
    assert usage.of("@") == Account(bytes=100)
    assert usage.of(f"@ns/{WIDE}") == Account(bytes=SESSION_COST + 13 + 10, sessions=1)


def test_the_largest_is_who_has_most_bytes() -> None:
    usage = Usage()
    usage.add_answers("a|x", 10)
    usage.add_answers("b|x", 30)
    usage.add_answers("c|x", 20)
    assert usage.largest() == ("@b", Account(bytes=30))


def test_a_scope_is_the_sum_of_what_its_secret_opens_from_now_on_too() -> None:
    usage = Usage()
    before = entry("ns/a-1/rounds/1/key", b"1")
    usage.add_entry(before, None)
    usage.add_session("epoch.1@ns/a-")
    usage.add_entry(entry("ns/b/nodes/x"), None)
    scope = usage.of_scope("ns/a-")
    expected = Account(1, cost_of(before) + SESSION_COST + 13, 1, cost_of(before), 1)
    assert scope == expected
    record, data = entry("ns/a-2/nodes/x", b"12"), entry("ns/a-1/rounds/1/other", b"1")
    usage.add_entry(record, None)  # an account that is new
    usage.add_entry(data, None)  # one that is not
    usage.add_session("epoch.2@ns/a-")
    usage.add_answers("ns/b|client", 99)  # somebody else's
    assert usage.of_scope("ns/a-") is scope
    added = cost_of(record) + cost_of(data) + SESSION_COST + 13
    assert scope == Account(3, expected.bytes + added, 2, cost_of(before) + cost_of(data), 2)
    usage.drop_entries([before, record, data])
    usage.add_session("epoch.1@ns/a-", -1)
    usage.add_session("epoch.2@ns/a-", -1)
    assert scope == Account()


def test_scopes_that_are_asked_for_are_made_again_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCOPES", 2)
    usage = Usage()
    usage.add_entry(entry("ns/a/nodes/x"), None)
    first, second = usage.of_scope("ns/"), usage.of_scope("ns/a")
    assert usage.of_scope("ns/") is first
    usage.of_scope("other/")
    usage.add_entry(entry("ns/a/nodes/y"), None)
    assert (first.keys, second.keys) == (1, 1), "nobody counts for those that are forgotten"
    assert usage.of_scope("ns/").keys == 2
    usage.add_entry(entry("ns/a/nodes/z"), None)
    assert usage.of_scope("ns/").keys == 3
    assert usage.of_scope("ns/a").keys == 3
