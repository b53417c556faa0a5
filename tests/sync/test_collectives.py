"""``barrier``, ``synchronize`` and ``get_all``: over our stores, and over one that has little more than it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Condition
from typing import Any

import pytest

from rendezvous_async.sync import (
    BlockingStore,
    RendezvousTimeoutError,
    barrier,
    create_store,
    get_all,
    store_timeout,
    synchronize,
)
from rendezvous_async.sync.prefix import PrefixedStore
from tests.blocking import PATIENCE, in_thread
from tests.ports import free_port


class SmallStore:
    """A store in this process with set, get, add and wait, and nothing else."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.changed = Condition()

    def set(self, key: str, value: Any) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> Any:
        self.wait([key])
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            self.set(key, self.values.get(key, 0) + amount)
            return int(self.values[key])

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=1)) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.values.keys() >= set(keys), timeout.total_seconds()):
                raise LookupError(f"none of {keys} came")


@pytest.fixture(params=["own", "prefixed", "small"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Return what connects to one store, once for each member."""
    if request.param == "small":
        small = SmallStore()
        yield lambda: small
        return
    port = free_port()
    with create_store(True, "127.0.0.1", port) as own:
        opened = []

        def connect_one() -> Any:
            opened.append(create_store(False, "127.0.0.1", port, 9, wait_for_workers=False))
            return PrefixedStore("a/b", opened[-1]) if request.param == "prefixed" else opened[-1]

        yield connect_one
        for store in opened:
            store.close()
        assert own.timeout == timedelta(seconds=600)


def test_members_tell_each_other(connect: Callable[[], Any]) -> None:
    members = [in_thread(synchronize, connect(), b"data %d" % rank, rank, 3, "told/") for rank in range(3)]
    assert [member.result(PATIENCE) for member in members] == [[b"data 0", b"data 1", b"data 2"]] * 3


def test_get_all_waits_for_what_others_set(connect: Callable[[], Any]) -> None:
    """Rank 0, whose store it may be, returns last."""
    zero, one = connect(), connect()
    first = in_thread(get_all, zero, 0, "data", 2)
    zero.set("data0", b"a")
    one.set("data1", b"b")
    with pytest.raises(TimeoutError):
        first.result(0.1)
    assert get_all(one, 1, "data", 2) == [b"a", b"b"]
    assert first.result(PATIENCE) == [b"a", b"b"]


def test_a_barrier_is_passed_when_all_are_there(connect: Callable[[], Any]) -> None:
    early = [in_thread(barrier, connect(), 3, "all") for _ in range(2)]
    with pytest.raises(TimeoutError):
        early[0].result(0.1)
    barrier(connect(), 3, "all", rank=2)
    for member in early:
        member.result(PATIENCE)


def test_a_barrier_that_not_all_come_to_names_those_that_did_not(connect: Callable[[], Any]) -> None:
    """On rank 0, which looks; the others say whom to ask, by the names that they were given."""
    name = "host-{}".format
    third = in_thread(barrier, connect(), 5, "few", 0.3, 3, name, 2)
    connect().wait(["few/num_members"])
    zero = str(in_thread(barrier, connect(), 5, "few", 0.3, 0, name, 2).exception(PATIENCE))
    three = str(third.exception(PATIENCE))
    assert "missing_ranks=[host-1, host-2, host-4]" in zero
    assert "barrier 'few' of 5" in zero
    assert "rank 3 waited 0.3 s" in three
    assert "check rank 0 (host-0) for missing rank info" in three


def test_a_barrier_without_rank_0_or_without_ranks_only_times_out(connect: Callable[[], Any]) -> None:
    wanted = (RendezvousTimeoutError, LookupError)
    for rank in (None, 1):
        with pytest.raises(wanted) as caught:
            barrier(connect(), 2, f"without {rank}", 0.2, rank, trace_timeout=0.1)
        assert "missing" not in str(caught.value)


def test_no_more_than_a_few_missing_ranks_are_named(connect: Callable[[], Any]) -> None:
    with pytest.raises((RendezvousTimeoutError, LookupError), match=r"missing_ranks=\[1, 2, .*, 16\]"):
        barrier(connect(), 100, "large", 0.1, 0, trace_timeout=0.05)


def test_names_of_ranks_need_a_rank() -> None:
    with pytest.raises(ValueError, match="rank"):
        barrier(SmallStore(), 1, "x", rank_tracing_decoder=str)


def test_a_timeout_holds_for_a_block() -> None:
    with create_store(True, "127.0.0.1", timeout=7) as store:
        assert isinstance(store, BlockingStore)
        with pytest.raises(RendezvousTimeoutError), store_timeout(store, 0.05):
            assert store.timeout == timedelta(seconds=0.05)
            store.get("nothing")
        assert store.timeout == timedelta(seconds=7)
        prefixed = PrefixedStore("prefix", store)
        with store_timeout(prefixed, 3):
            assert prefixed.timeout == store.timeout == timedelta(seconds=3)
    with store_timeout(SmallStore(), 1):
        pass


def test_a_prefixed_store_is_the_store_inside() -> None:
    with create_store(True, "127.0.0.1") as store:
        prefixed = PrefixedStore("prefix", store)
        assert prefixed.underlying_store is store
        prefixed.set("key", "value")
        assert prefixed.get("key") == store.get("prefix/key") == b"value"
        assert prefixed.add("count", 2) == 2
        prefixed.wait(["key", "count"])
        prefixed.wait(["key"], timedelta(seconds=1))
        with pytest.raises(RendezvousTimeoutError):
            prefixed.wait(["nothing"], timedelta(seconds=0.05))
        assert prefixed.check(["key", "count"])
        assert not prefixed.check(["prefix/key"])
        assert prefixed.compare_set("key", "value", "other") == b"other"
        prefixed.multi_set(["a", "b"], ["1", b"2"])
        assert prefixed.multi_get(["b", "a"]) == [b"2", b"1"]
        prefixed.append("a", "1")
        assert store.get("prefix/a") == b"11"
        assert prefixed.delete_key("a")
        assert not prefixed.delete_key("a")
        assert prefixed.num_keys() == store.num_keys()
