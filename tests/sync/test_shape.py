"""Sizes, domains and scaling through the blocking interface: what launchers that poll it are told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from rendezvous_async.sync import DynamicRendezvousHandler, RendezvousParameters
from rendezvous_async.sync.registry import make_handler
from tests.blocking import PATIENCE, count_nodes, in_thread, join_all, let_in, scale, wait_until

_names = itertools.count()


class Crew:
    """Handlers of one run."""

    def __init__(self, endpoint: str) -> None:
        self.handlers: list[DynamicRendezvousHandler] = []
        self._endpoint = endpoint

    def hire(self, low: int, high: int, **options: Any) -> DynamicRendezvousHandler:
        """Make a handler that does not wait long."""
        options = {"last_call_timeout": 1, "regroup_timeout": 0.1, **options}
        handler = make_handler(RendezvousParameters("memory", self._endpoint, "run", low, high, **options))
        self.handlers.append(handler)
        return handler


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew(f"shape-{next(_names)}")
    yield crew
    crew.handlers[0].set_closed()
    for handler in crew.handlers:
        handler.shutdown()


def sizes(*handlers: DynamicRendezvousHandler) -> list[int]:
    return [info.world_size for info in join_all(*handlers)]


def test_leftovers_are_not_counted_until_they_make_the_next_size(crew: Crew) -> None:
    a, b, c, d = (crew.hire(1, 4, sizes="2:4:2") for _ in range(4))
    assert sizes(a, b) == [2, 2]
    late = in_thread(c.next_rendezvous)
    wait_until(lambda: count_nodes(a) == 3)
    assert (a.num_nodes_waiting(), d.num_nodes_waiting()) == (0, 0)
    more = in_thread(d.next_rendezvous)
    wait_until(lambda: a.num_nodes_waiting() == 2)
    assert sizes(a, b) == [4, 4]
    assert late.result(PATIENCE).world_size == more.result(PATIENCE).world_size == 4


def test_a_round_that_is_too_large_now_is_waited_for_and_its_last_rank_is_a_spare(crew: Crew) -> None:
    a, b, c = (crew.hire(2, 3) for _ in range(3))
    assert sizes(a, b, c) == [3, 3, 3]
    assert scale(a, "2:2").nodes == "2:2"
    wait_until(lambda: all(handler.num_nodes_waiting() == 1 for handler in (a, b, c)))
    joins = [in_thread(handler.next_rendezvous) for handler in (a, b, c)]
    wait_until(lambda: sum(join.done() for join in joins) == 2)
    infos = [join.result(0) for join in joins if join.done()]
    assert [info.world_size for info in infos] == [2, 2]
    members = [handler for handler, join in zip((a, b, c), joins, strict=True) if join.done()]
    assert [member.num_nodes_waiting() for member in members] == [0, 0], "a spare is no reason to restart"
    scale(a, "2:3")
    wait_until(lambda: all(member.num_nodes_waiting() == 1 for member in members))
    assert sizes(*members) == [3, 3]
    assert sorted(join.result(PATIENCE).world_size for join in joins) == [2, 2, 3], "only the spare was still waiting"


def test_newcomers_that_are_held_back_are_not_counted(crew: Crew) -> None:
    a, b, c = (crew.hire(1, 4, grow_timeout="inf") for _ in range(3))
    assert sizes(a) == [1]
    late = [in_thread(handler.next_rendezvous) for handler in (b, c)]
    wait_until(lambda: (head := a._read_head()) is not None and head.held_back == 2)
    assert a.num_nodes_waiting() == 0
    let_in(a)
    wait_until(lambda: a.num_nodes_waiting() == 2)
    assert sizes(a) == [3]
    assert [join.result(PATIENCE).world_size for join in late] == [3, 3]


def test_domains_are_whole(crew: Crew) -> None:
    whole = {"sizes": "2/4", "domain": "rack", "per_domain": 2}
    a, b, c = (crew.hire(1, 4, **whole, label_rack=rack) for rack in ("r1", "r1", "r2"))
    lone = in_thread(c.next_rendezvous)
    assert sizes(a, b) == [2, 2]
    assert a.num_nodes_waiting() == 0, "the other rack is not whole"
    d = crew.hire(1, 4, **whole, label_rack="r2")
    more = in_thread(d.next_rendezvous)
    wait_until(lambda: a.num_nodes_waiting() == 2)
    ranks = [info.rank for info in join_all(a, b)]
    assert sorted(ranks) == [0, 1], "a rack's ranks are contiguous"
    assert sorted([lone.result(PATIENCE).rank, more.result(PATIENCE).rank]) == [2, 3]
