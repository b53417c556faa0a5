"""How a node arrives: each whole transaction, and what its outcome means. No loop, no backend."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from rendezvous_async import RendezvousClosedError, RendezvousSettingsError
from rendezvous_async.core.arrival import (
    Here,
    Presence,
    ReadOthers,
    Standing,
    arrival,
    next_step,
    ousting,
    standing_at,
    tally_others,
)
from rendezvous_async.core.codec import encode
from rendezvous_async.core.rules import Wait
from rendezvous_async.core.state import Closed, Head, Node, Post
from rendezvous_async.core.transaction import Save, Seen, Transaction
from rendezvous_async.errors import RendezvousDisplacedError, RendezvousSessionError
from rendezvous_async.settings import Settings
from tests.core.make import TWO_TO_FOUR, formed, record, roster_of

OURS, OTHER = TWO_TO_FOUR, Settings(1, 9)
RECORD = record("11111111 first")
PRESENCE = Presence(run_id="job", node="a", settings=OURS, record=RECORD, session="s1")
FOUNDER = replace(PRESENCE, founds=True)
NOTHING = Seen(None, None, None)
STATE, POST, STAMP = ("epoch", 1), ("epoch", 2), ("epoch", 3)
HEAD = Head(settings=OURS)
OPEN = Seen(HEAD, STATE, POST)
FOREIGN = Seen(replace(HEAD, settings=OTHER), STATE, POST)
STANDS = Standing(RECORD, STAMP, "s1")
CLAIM = Save("coordinator", encode(Post("a")), leased=True)


def put(node: Node = RECORD) -> Save:
    return Save("nodes/a", encode(node), leased=True)


# The transaction


def test_who_founds_creates_the_state_and_takes_the_post_with_its_record() -> None:
    writes = (put(), Save("state", encode(HEAD)), CLAIM)
    when = {"nodes/a": None, "state": None, "coordinator": None}
    assert arrival(FOUNDER, RECORD, NOTHING, None) == Transaction("arrive", writes, when)


def test_who_does_not_found_puts_only_its_record() -> None:
    assert arrival(PRESENCE, RECORD, NOTHING, None) == Transaction("arrive", (put(),), {"nodes/a": None})
    assert arrival(PRESENCE, RECORD, OPEN, None) == Transaction("arrive", (put(),), {"nodes/a": None})
    assert arrival(FOUNDER, RECORD, OPEN, None) == Transaction("arrive", (put(),), {"nodes/a": None})


def test_a_founder_takes_a_post_that_is_vacant_in_a_run_of_its_settings() -> None:
    vacant = replace(OPEN, post=None)
    assert arrival(FOUNDER, RECORD, vacant, None) == Transaction(
        "arrive", (put(), CLAIM), {"nodes/a": None, "coordinator": None}
    )
    foreign = replace(FOREIGN, post=None)
    assert arrival(FOUNDER, RECORD, foreign, None) == Transaction("arrive", (put(),), {"nodes/a": None})
    assert arrival(PRESENCE, RECORD, vacant, None) == Transaction("arrive", (put(),), {"nodes/a": None})


def test_who_replaces_settings_rewrites_the_head_that_it_has_seen() -> None:
    head, _ = formed("bc", round=4, settings=OTHER, waiting=1, lost=1)
    writes = (put(), Save("state", encode(head.under(OURS))))
    assert arrival(PRESENCE, RECORD, Seen(head, STATE, POST), None, replaces=True) == Transaction(
        "arrive", writes, {"nodes/a": None, "state": STATE}
    )


@pytest.mark.parametrize(
    ("before", "displaced"),
    [
        (record("22222222 x", address="far:1"), "far:1"),
        (record("22222222 x"), "an unknown address"),
        (replace(record("11111111 x", address="far:1"), displaced="old:2"), "old:2"),
        (record("11111111 x", address="far:1"), ""),
    ],
)
def test_a_record_names_the_live_node_whose_place_it_takes(before: Node, displaced: str) -> None:
    expected = put(replace(RECORD, displaced=displaced))
    standing = Standing(before, STAMP, "s0")
    assert arrival(PRESENCE, RECORD, OPEN, standing) == Transaction("arrive", (expected,), {"nodes/a": STAMP})


def test_a_record_that_cannot_be_read_is_replaced_all_the_same() -> None:
    standing = standing_at("nodes/a", b"?", STAMP, "s0")
    assert standing == Standing(None, STAMP, "s0")
    assert arrival(PRESENCE, RECORD, OPEN, standing) == Transaction("arrive", (put(),), {"nodes/a": STAMP})
    assert standing_at("nodes/a", encode(RECORD), STAMP, "s1") == STANDS


# The way there


@pytest.mark.parametrize(
    "standing",
    [
        None,
        Standing(None, STAMP, "s1"),
        Standing(record("11111111 earlier"), STAMP, "s1"),
        Standing(RECORD, STAMP, "s0"),
        Standing(RECORD, STAMP, None),
    ],
)
@pytest.mark.parametrize("seen", [NOTHING, OPEN])
def test_until_its_record_stands_under_its_session_it_is_put(seen: Seen, standing: Standing | None) -> None:
    assert next_step(PRESENCE, RECORD, seen, standing) == arrival(PRESENCE, RECORD, seen, standing)


def test_a_node_is_here_when_its_record_stands_in_an_open_run_of_its_settings() -> None:
    assert next_step(PRESENCE, RECORD, OPEN, STANDS) == Here(0)
    head, _ = formed("bc", round=4)
    assert next_step(PRESENCE, RECORD, Seen(head, STATE, None), STANDS) == Here(4)


def test_without_a_run_one_who_does_not_found_waits_and_a_founder_founds() -> None:
    assert next_step(PRESENCE, RECORD, NOTHING, STANDS) == Wait()
    assert next_step(FOUNDER, RECORD, NOTHING, STANDS) == arrival(FOUNDER, RECORD, NOTHING, STANDS)


@pytest.mark.parametrize("standing", [None, STANDS])
@pytest.mark.parametrize("settings", [OURS, OTHER])
def test_a_closed_run_takes_nobody(settings: Settings, standing: Standing | None) -> None:
    closed = Head(settings=settings, closed=Closed("done", "b"))
    with pytest.raises(RendezvousClosedError) as info:
        next_step(PRESENCE, RECORD, Seen(closed, STATE, POST), standing)
    assert (info.value.reason, info.value.by) == ("done", "b")
    assert "run 'job'" in str(info.value)


# Other settings


def test_at_odds_with_the_head_it_first_reads_who_else_is_here() -> None:
    assert next_step(PRESENCE, RECORD, FOREIGN, None) == ReadOthers()
    old = tally_others(HEAD, [], [], "a")
    assert next_step(PRESENCE, RECORD, FOREIGN, None, old) == ReadOthers(), "that was of another head"


def test_settings_that_nobody_here_goes_by_are_replaced() -> None:
    assert FOREIGN.head is not None
    nobody = tally_others(FOREIGN.head, [], [("nodes/a", encode(record("x", settings=OTHER)), 1)], "a")
    assert nobody.records == {}, "it does not count itself"
    expected = arrival(PRESENCE, RECORD, FOREIGN, None, replaces=True)
    assert expected.when == {"nodes/a": None, "state": STATE}
    for is_patient in (True, False):
        assert next_step(PRESENCE, RECORD, FOREIGN, None, nobody, is_patient) == expected


def test_among_newcomers_it_puts_its_record_and_waits_for_the_coordinator_to_decide() -> None:
    assert FOREIGN.head is not None
    newcomers = roster_of(FOREIGN.head, {}, {"b": record("b1", settings=OTHER)})
    assert next_step(PRESENCE, RECORD, FOREIGN, None, newcomers) == arrival(PRESENCE, RECORD, FOREIGN, None)
    assert next_step(PRESENCE, RECORD, FOREIGN, STANDS, newcomers) == Wait()


@pytest.mark.parametrize(("names", "count"), [("b", "1 other node"), ("bc", "2 other nodes")])
def test_out_of_patience_it_is_refused(names: str, count: str) -> None:
    assert FOREIGN.head is not None
    newcomers = roster_of(FOREIGN.head, {}, {name: record(f"{name}1", settings=OTHER) for name in names})
    with pytest.raises(RendezvousSettingsError) as info:
        next_step(PRESENCE, RECORD, FOREIGN, STANDS, newcomers, is_patient=False)
    assert str(info.value) == (
        f"run 'job' has the settings '1:9 sticky last_call=30 regroup=3', like {count} here, but node a has "
        "'2:4 sticky last_call=30 regroup=3': use the same nodes, ranks and timeouts on all nodes, or another run id"
    )


def test_where_somebody_has_been_in_a_round_it_is_refused_at_once() -> None:
    head, seats = formed("bc", round=2, settings=OTHER)
    holding = tally_others(
        head,
        [(f"seats/{name}", encode(seat), 1) for name, seat in seats.items()],
        [("nodes/b", encode(record("b1", settings=OTHER)), 2), ("nodes/d", encode(record("d1", settings=OTHER)), 3)],
        "a",
    )
    with pytest.raises(RendezvousSettingsError, match="like 2 other nodes here"):
        next_step(PRESENCE, RECORD, Seen(head, STATE, POST), None, holding)


# Out


def test_who_has_not_been_here_is_not_out() -> None:
    assert ousting(PRESENCE, None) is None
    assert ousting(PRESENCE, Standing(record("22222222 x"), STAMP, "s2")) is None


def test_who_was_put_and_has_no_record_is_out() -> None:
    here = replace(PRESENCE, was_here=True, was_put=True)
    for standing in (None, Standing(None, STAMP, "s2"), Standing(record("11111111 later"), STAMP, "s2")):
        error = ousting(here, standing)
        assert type(error) is RendezvousSessionError
        assert str(error) == "node a: the backend has ended session s1, its record is gone"


def test_who_was_here_gives_way_to_a_newer_node_with_its_id() -> None:
    rival = Standing(record("22222222 x", address="far:1"), STAMP, "s2")
    for was_put in (False, True):
        error = ousting(replace(PRESENCE, was_here=True, was_put=was_put), rival)
        assert type(error) is RendezvousDisplacedError
        assert str(error) == (
            "run 'job': another node with the id 'a' has joined from 'far:1' and has taken the place of this one; give "
            "each node an id of its own, or leave out node="
        )


def test_who_was_here_before_and_finds_nothing_now_is_not_out() -> None:
    assert ousting(replace(PRESENCE, was_here=True), None) is None


@pytest.mark.parametrize("value", [PRESENCE, STANDS, Here(1)], ids=lambda value: type(value).__name__)
def test_what_it_goes_by_does_not_change(value: msgspec.Struct) -> None:
    for name in value.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_answers_can_be_compared_and_counted() -> None:
    assert len({ReadOthers(), ReadOthers(), Here(1), Here(2)}) == 3
    with pytest.raises(TypeError):
        Presence("job", "a", OURS, RECORD, "s1")  # type: ignore[call-arg]
