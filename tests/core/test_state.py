"""The records: their keys, and the token that a round's head carries."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.core import codec, diagnosis, ranks, rules, state
from rendezvous_async.core.state import Head, Last, Node, Phase, Seat, node_key, node_of, round_key, seat_key
from tests.core.make import STAMP, TWO_TO_FOUR, formed


def test_the_forming_commit_is_its_own_token() -> None:
    head = Head(settings=TWO_TO_FOUR, round=1, phase=Phase.FORMED, attempt="first", size=2)
    assert head.token is None
    assert head.stamped(("epoch", 12)) == msgspec.structs.replace(head, token=("epoch", 12))


def test_a_rewritten_head_keeps_the_token_of_its_round() -> None:
    head, _ = formed("ab", waiting=1)
    assert head.stamped(("epoch", 99)).token == STAMP


def test_before_the_first_round_there_is_no_token() -> None:
    assert Head(settings=TWO_TO_FOUR).stamped(("epoch", 3)).token is None


@given(st.text(min_size=1, max_size=80).filter(lambda text: text.isascii() or text.encode("utf-8", "ignore") != b""))
def test_any_node_id_has_keys_of_its_own(node: str) -> None:
    try:
        node.encode()
    except UnicodeEncodeError:
        return
    for key in (node_key(node), seat_key(node)):
        assert key.count("/") == 1
        assert key.isprintable()
        assert node_of(key) == node


def test_keys_are_as_the_design_has_them() -> None:
    assert node_key("host/1") == "nodes/host%2F1"
    assert seat_key("..") == "seats/%2E%2E"
    assert round_key(7) == "rounds/7"


@pytest.mark.parametrize(
    "value",
    [
        Head(settings=TWO_TO_FOUR),
        Last(1, 0),
        Node(arrival="a", fingerprint=""),
        Seat(round=1, attempt="", arrival="", rank=0),
    ],
)
def test_records_are_frozen(value: msgspec.Struct) -> None:
    field = value.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(value, field, None)


def test_every_value_of_the_core_is_frozen() -> None:
    """Rules hand values on; nobody changes one that somebody else holds."""
    for module in (codec, diagnosis, ranks, rules, state):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, msgspec.Struct):
                assert value.__struct_config__.frozen, f"{module.__name__}.{name}"


def test_a_status_is_made_by_keywords_alone() -> None:
    assert diagnosis.Status(run_id="job").missing == 0
    with pytest.raises(TypeError):
        diagnosis.Status("job")  # type: ignore[call-arg]


def test_a_head_is_made_by_keywords_alone_and_is_of_nobody_at_first() -> None:
    assert Head(settings=TWO_TO_FOUR) == Head(settings=TWO_TO_FOUR, round=0, size=0, waiting=0, lost=0)
    with pytest.raises(TypeError):
        Head(TWO_TO_FOUR)  # type: ignore[call-arg]


def test_an_arrival_tells_the_life_that_it_belongs_to_by_its_first_characters() -> None:
    assert state.LIFE_LENGTH == 8, "nodes of other versions compare as many"


def test_records_are_made_by_keywords_and_small() -> None:
    by_keywords: tuple[type[msgspec.Struct], ...] = (Head, Node, Seat)
    for record in by_keywords:
        with pytest.raises(TypeError, match="positional"):
            record(*record.__struct_fields__)
    assert b"labels" not in msgspec.msgpack.encode(Node(arrival="a1", fingerprint="")), (
        "each node has one: keep it small"
    )
