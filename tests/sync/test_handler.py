"""The blocking handler in the classic's terms: join, rejoin, late comers, spares, closed, timeouts, shutdown."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from threading import Event

import pytest

from rendezvous_async.sync import (
    DynamicRendezvousHandler,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rendezvous_async.sync.carrier import at_endpoint
from rendezvous_async.sync.handler import Round
from tests.blocking import PATIENCE, count_nodes, damage, in_thread, join_all, make_handler, serve_apart, wait_until
from tests.ports import free_port

_names = itertools.count()


@pytest.fixture(params=["memory", "tcp"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Where nodes meet; with tcp the first of them hosts the server."""
    return f"memory://sync-{next(_names)}" if request.param == "memory" else f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def handlers(endpoint: str) -> Iterator[list[DynamicRendezvousHandler]]:
    """Four handlers of one run of two to three nodes; all are shut down at the end."""
    made = [make_handler(endpoint, (2, 3)) for _ in range(4)]
    yield made
    for end in [in_thread(fail_and_shut_down, handler) for handler in made]:
        end.result(PATIENCE)


def fail_and_shut_down(handler: DynamicRendezvousHandler) -> bool:
    """Shut down as a launcher does whose workers have failed."""
    try:
        raise RuntimeError("the workers failed")
    except RuntimeError:
        return handler.shutdown()


def test_nodes_meet_and_share_a_store(handlers: list[DynamicRendezvousHandler]) -> None:
    infos = join_all(*handlers[:2])
    assert sorted(info.rank for info in infos) == [0, 1]
    assert [info.world_size for info in infos] == [2, 2]
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    addresses = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
    assert len(addresses) == 1
    assert addresses.pop()[0] == "127.0.0.1"
    assert [handler.num_nodes_waiting() for handler in handlers[:2]] == [0, 0]
    assert not any(handler.is_closed() for handler in handlers)
    assert handlers[0].get_run_id() == "run"
    assert handlers[0].get_backend() == "test"
    assert not handlers[0].use_agent_store


def test_members_that_come_back_keep_their_ranks(handlers: list[DynamicRendezvousHandler]) -> None:
    before = join_all(*handlers[:3])
    before[0].store.set("key", "old")
    after = join_all(*handlers[:3])
    assert [info.rank for info in after] == [info.rank for info in before]
    assert not after[0].store.check(["key"])


def test_a_late_comer_is_counted_and_let_in(handlers: list[DynamicRendezvousHandler]) -> None:
    join_all(*handlers[:2])
    late = in_thread(handlers[2].next_rendezvous)
    wait_until(lambda: [handler.num_nodes_waiting() for handler in handlers[:2]] == [1, 1])
    infos = [*join_all(*handlers[:2]), late.result(PATIENCE)]
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert [handler.num_nodes_waiting() for handler in handlers[:3]] == [0, 0, 0]


def test_a_spare_is_not_counted_and_takes_a_place_that_frees(handlers: list[DynamicRendezvousHandler]) -> None:
    join_all(*handlers[:3])
    spare = in_thread(handlers[3].next_rendezvous)
    wait_until(lambda: count_nodes(handlers[0]) == 4)
    assert [handler.num_nodes_waiting() for handler in handlers[:3]] == [0, 0, 0]
    assert fail_and_shut_down(handlers[2])
    wait_until(lambda: all(handler.num_nodes_waiting() > 0 for handler in handlers[:2]))
    infos = [*join_all(*handlers[:2]), spare.result(PATIENCE)]
    assert sorted(info.rank for info in infos) == [0, 1, 2]


def test_a_spare_of_a_closed_run_exits_gracefully(handlers: list[DynamicRendezvousHandler]) -> None:
    join_all(*handlers[:3])
    spare = in_thread(handlers[3].next_rendezvous)
    wait_until(lambda: count_nodes(handlers[0]) == 4)
    handlers[0].set_closed()
    with pytest.raises(RendezvousGracefulExitError):
        spare.result(PATIENCE)


def test_a_member_that_failed_leaves_and_the_others_go_on(handlers: list[DynamicRendezvousHandler]) -> None:
    join_all(*handlers[:3])
    assert fail_and_shut_down(handlers[0])
    wait_until(lambda: [handler.num_nodes_waiting() for handler in handlers[1:3]] == [1, 1])
    assert not handlers[1].is_closed()
    infos = join_all(*handlers[1:3])
    assert sorted(info.rank for info in infos) == [0, 1]


def test_a_round_that_loses_a_member_while_it_is_set_up_is_left_for_the_next(
    handlers: list[DynamicRendezvousHandler],
) -> None:
    """Whoever waits for the lost one is told, and sets up the next round instead."""
    seen: list[int] = []

    def set_up(round: Round) -> int:
        seen.append(round.size)
        if round.size == 3:
            if len(seen) == 1:
                assert fail_and_shut_down(handlers[2])
            round.setup.get("what the lost member would have set")
        return round.size

    joins = [in_thread(handler.next_round, set_up) for handler in handlers[:2]]
    third = in_thread(handlers[2].next_round, lambda round: round.size)
    assert third.result(PATIENCE) == 3
    assert [join.result(PATIENCE) for join in joins] == [2, 2]


def test_a_late_comer_does_not_end_the_set_up_of_a_round(handlers: list[DynamicRendezvousHandler]) -> None:
    """It is taken for no lost member: who is in sets the round up, and the late comer waits for the next one."""
    seen: list[int] = []

    def set_up(round: Round) -> int:
        seen.append(round.number)
        if round.number == 1:
            if round.rank == 0:
                in_thread(handlers[2].next_rendezvous)
            wait_until(lambda: [handler.num_nodes_waiting() for handler in handlers[:2]] == [1, 1])
        round.check()
        return round.number

    joins = [in_thread(handler.next_round, set_up) for handler in handlers[:2]]
    assert [join.result(PATIENCE) for join in joins] == [1, 1]
    assert seen == [1, 1]


def test_a_member_that_goes_back_to_the_barrier_ends_the_set_up_of_a_round(
    handlers: list[DynamicRendezvousHandler],
) -> None:
    def set_up(round: Round) -> int:
        if round.number == 1:
            round.setup.get("what the other would have set")
        return round.number

    first = in_thread(handlers[0].next_round, set_up)
    assert handlers[1].next_round(lambda round: round.number) == 1
    assert handlers[1].next_round(set_up) == 2
    assert first.result(PATIENCE) == 2


def test_shutdown_by_one_node_closes_for_all(handlers: list[DynamicRendezvousHandler]) -> None:
    join_all(*handlers[:2])
    ended = in_thread(handlers[0].shutdown)  # a host stays until the others have seen it
    wait_until(handlers[1].is_closed)
    assert handlers[1].num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError):
        handlers[1].next_rendezvous()
    assert handlers[1].shutdown()
    assert ended.result(PATIENCE)
    assert handlers[0].is_closed()
    assert handlers[0].num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError):
        handlers[0].next_rendezvous()
    assert handlers[0].shutdown()


def test_set_closed_is_seen_by_those_who_never_joined(endpoint: str) -> None:
    one, other = make_handler(endpoint), make_handler(endpoint)
    assert not one.is_closed()
    assert other.num_nodes_waiting() == 0
    one.set_closed()
    assert one.is_closed()
    assert other.is_closed()
    with pytest.raises(RendezvousClosedError):
        other.next_rendezvous()
    ended = in_thread(one.shutdown)
    assert other.shutdown()
    assert ended.result(PATIENCE)


def test_a_join_that_is_not_met_times_out(endpoint: str) -> None:
    handler = make_handler(endpoint, join=0.3)
    with pytest.raises(RendezvousTimeoutError) as caught:
        handler.next_rendezvous()
    assert isinstance(caught.value, TimeoutError)
    assert handler.num_nodes_waiting() == 0
    assert not handler.is_closed()
    assert handler.shutdown()


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    carrier = at_endpoint(f"tcp://127.0.0.1:{free_port()}", is_host=False, connect_timeout=0.3)
    handler = DynamicRendezvousHandler("tcp", carrier, make_handler("memory://x").settings)
    with pytest.raises(RendezvousConnectionError):
        handler.next_rendezvous()
    assert fail_and_shut_down(handler)
    assert not handler.shutdown()


def test_a_damaged_state_is_an_error_until_the_run_is_closed(endpoint: str) -> None:
    """Closing is how one gets rid of it."""
    handler = make_handler(endpoint)
    assert not handler.is_closed()
    damage(handler)
    for call in (handler.next_rendezvous, handler.is_closed, handler.num_nodes_waiting):
        with pytest.raises(RendezvousStateError, match="state"):
            call()
    assert handler.shutdown()
    assert handler.is_closed()


def test_a_damaged_state_does_not_leave_members_in_the_dark(endpoint: str) -> None:
    one, other = make_handler(endpoint), make_handler(endpoint)
    join_all(one, other)
    damage(one)
    wait_until(lambda: one.num_nodes_waiting() > 0 and other.num_nodes_waiting() > 0)
    ends = [in_thread(handler.next_rendezvous) for handler in (one, other)]
    for end in ends:
        assert isinstance(end.exception(PATIENCE), RendezvousStateError)
    last = [in_thread(fail_and_shut_down, handler) for handler in (one, other)]
    assert all(end.result(PATIENCE) for end in last)


def test_calls_of_many_threads_end_when_one_of_them_shuts_down(endpoint: str) -> None:
    handlers = [make_handler(endpoint) for _ in range(2)]
    stores = [info.store for info in join_all(*handlers)]
    ready = [Event() for _ in range(8)]

    def work(number: int) -> None:
        while True:  # until the handler says that it was shut down
            handlers[number % 2].num_nodes_waiting()
            stores[number % 2].add("count", 1)
            ready[number].set()

    threads = [in_thread(work, number) for number in range(8)]
    assert all(event.wait(PATIENCE) for event in ready)
    ends = [in_thread(handler.shutdown) for handler in (*handlers, *handlers)]
    assert all(end.result(PATIENCE) for end in ends)
    assert all(isinstance(thread.exception(PATIENCE), RendezvousError) for thread in threads)


def test_what_was_pushed_is_read_without_the_backend() -> None:
    with serve_apart() as (endpoint, server):
        members = [make_handler(endpoint) for _ in range(2)]
        join_all(*members)
        server.send_signal(signal.SIGSTOP)
        try:
            for _ in range(1000):
                assert not members[0].is_closed()
                assert members[0].num_nodes_waiting() == 0
        finally:
            server.send_signal(signal.SIGCONT)
        for member in members:
            assert member.shutdown()


def test_a_node_that_is_cut_off_knows_that_it_is_out() -> None:
    with serve_apart() as (endpoint, server):
        members = [make_handler(endpoint) for _ in range(2)]
        join_all(*members)
        server.send_signal(signal.SIGSTOP)
        wait_until(lambda: all(member.num_nodes_waiting() > 0 for member in members))
        server.send_signal(signal.SIGCONT)
        assert sorted(info.rank for info in join_all(*members)) == [0, 1]
        for member in members:
            assert member.shutdown()


def test_many_threads_use_one_handler(endpoint: str) -> None:
    handlers = [make_handler(endpoint) for _ in range(2)]
    store = join_all(*handlers)[0].store

    def work(_: int) -> int:
        for _ in range(20):
            handlers[0].num_nodes_waiting()
            store.add("count", 1)
        return int(store.num_keys())

    for thread in [in_thread(work, number) for number in range(16)]:
        thread.result(PATIENCE)
    assert store.get("count") == b"320"
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(RendezvousTimeoutError):
        store.get("nothing")
    ends = [in_thread(handler.shutdown) for handler in handlers]
    assert all(end.result(PATIENCE) for end in ends)


def test_shutdown_ends_a_join_in_another_thread(endpoint: str) -> None:
    handler = make_handler(endpoint)
    joining = in_thread(handler.next_rendezvous)
    wait_until(lambda: handler._lease is not None)
    fail_and_shut_down(handler)
    assert joining.exception(PATIENCE) is not None


def test_exc_info_is_what_tells_failure(endpoint: str) -> None:
    handler = make_handler(endpoint, (1, 1))
    try:
        handler.next_rendezvous()
    finally:
        assert sys.exc_info() == (None, None, None)
        assert handler.shutdown()
    assert handler.is_closed()


def test_a_run_that_its_host_closed_stays_closed_while_somebody_remembers(endpoint: str) -> None:
    """The server went with its host: nobody else can tell, and a new one knows nothing."""
    host = make_handler(endpoint, (1, 1))
    looked = make_handler(endpoint, (1, 1))
    host.next_rendezvous()
    assert not looked.is_closed()
    assert host.shutdown()
    later = make_handler(endpoint, (1, 1))
    for other in (looked, later):
        assert other.is_closed()
        assert other.num_nodes_waiting() == 0
        with pytest.raises(RendezvousClosedError, match=f"run 'run' was closed by {host.node}"):
            other.next_rendezvous()
    del host
    other_run = make_handler(endpoint, (1, 1), run_id="another")
    assert not other_run.is_closed()
    assert other_run.shutdown()
    gc.collect()
    assert later.is_closed(), "it has heard of it while the host's handler was there"
    for other in (looked, later):
        assert other.shutdown()


def test_a_member_that_saw_a_run_closed_remembers_it_for_others() -> None:
    with serve_apart() as (endpoint, server):
        member, closer = make_handler(endpoint), make_handler(endpoint)
        join_all(member, closer)
        closer.set_closed()
        wait_until(member.is_closed)
        fail_and_shut_down(closer)
        del closer
        server.kill()
        server.wait()
        gc.collect()
        other = make_handler(endpoint)
        assert other.is_closed()
        with pytest.raises(RendezvousClosedError, match="set_closed"):
            other.next_rendezvous()
        assert other.shutdown()
        assert member.shutdown()


def test_a_closed_run_is_forgotten_with_the_last_who_knew() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    handler = make_handler(endpoint, (1, 1))
    handler.next_rendezvous()
    assert handler.shutdown()
    del handler
    gc.collect()
    again = make_handler(endpoint, (1, 1))
    assert not again.is_closed()
    assert again.next_rendezvous().world_size == 1
    assert again.shutdown()
