"""The simulated network carries bytes as TCP does, and breaks as TCP does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import TcpDriver, serve
from rendezvous_async.testing import Faults, run
from rendezvous_async.testing.wire import PROBED, Wire

PORT = 29400


class Reader(asyncio.Protocol):
    """Keeps what comes, and how it ends."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended: list[Exception | None] = []
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.append(error)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True

    @property
    def text(self) -> bytes:
        return b"".join(self.got)


class Pair:
    """Two machines with a process each, and a connection between them."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.wire = Wire(random.Random(seed), faults)
        self.near, self.far = Reader(), Reader()

    async def connect(self) -> Pair:
        listening = anyio.Event()

        async def listen() -> None:
            from rendezvous_async.backends.tcp.addresses import listen_on, resolve

            (sock,) = listen_on(await resolve("far", PORT))
            accepted = anyio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(sock, accepted.set)
            listening.set()
            await accepted.wait()
            await loop.connect_accepted_socket(lambda: self.far, sock.accept()[0])
            await anyio.sleep_forever()

        async def dial() -> None:
            await asyncio.get_running_loop().create_connection(lambda: self.near, "10.0.0.1", PORT)

        self.wire.machine("far").start("listens", listen)
        await listening.wait()
        await self.wire.machine("near").start("dials", dial)
        await anyio.sleep(1)
        return self


def play(test: Callable[[Pair], Coroutine[Any, Any, None]], faults: Faults | None = None, seed: int = 7) -> None:
    async def scenario() -> None:
        await test(await Pair(seed, faults or Faults(delay=0.01)).connect())

    run(scenario, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_bytes_come_whole_and_in_order_and_are_cut_anywhere(seed: int) -> None:
    async def test(pair: Pair) -> None:
        sent = [random.Random(seed).randbytes(number) for number in range(1, 200)]
        for number, data in enumerate(sent):
            pair.near.transport.write(data)
            pair.far.transport.write(data)
            if number % 10 == 0:
                await anyio.sleep(0.005)
        await anyio.sleep(60)
        assert pair.far.text == pair.near.text == b"".join(sent)
        assert [len(data) for data in pair.far.got] != list(range(1, 200))  # some were cut, or came together

    play(test, Faults(delay=0.05, late=0.1), seed)


def test_a_connection_is_as_slow_as_its_bandwidth() -> None:
    async def test(pair: Pair) -> None:
        pair.near.transport.write(bytes(10_000))
        await anyio.sleep(9)
        assert not pair.far.text
        await anyio.sleep(2)
        assert len(pair.far.text) == 10_000

    play(test, Faults(delay=0, bandwidth=1000), seed=1)


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    async def test(pair: Pair) -> None:
        pair.far.transport.pause_reading()
        sent = 0
        while pair.near.writable:
            pair.near.transport.write(bytes(10_000))
            sent += 10_000
            assert sent < 1_000_000
        await anyio.sleep(10)
        assert not pair.near.writable
        assert not pair.far.got
        pair.far.transport.resume_reading()
        await anyio.sleep(10)
        assert pair.near.writable
        assert len(pair.far.text) == sent

    play(test)


def test_a_frozen_process_reads_nothing_until_it_goes_on() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.loop.freeze("listens")
        pair.near.transport.write(b"hello")
        await anyio.sleep(100)
        assert not pair.far.got
        pair.wire.loop.thaw("listens")
        await anyio.sleep(0.1)
        assert pair.far.text == b"hello"

    play(test)


def test_a_close_is_seen_after_everything_that_was_written() -> None:
    async def test(pair: Pair) -> None:
        pair.near.transport.write(b"last words")
        pair.near.transport.close()
        await anyio.sleep(1)
        assert pair.far.text == b"last words"
        assert pair.far.ended == pair.near.ended == [None]

    play(test)


def test_a_close_with_bytes_unread_is_a_reset() -> None:
    async def test(pair: Pair) -> None:
        pair.near.transport.pause_reading()
        pair.far.transport.write(b"never read")
        await anyio.sleep(1)
        pair.near.transport.close()
        await anyio.sleep(1)
        assert [type(error) for error in pair.far.ended] == [ConnectionResetError]

    play(test)


def test_what_is_written_to_an_end_that_is_gone_is_answered_with_a_reset() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.cut("far", "near")
        pair.far.transport.abort()
        await anyio.sleep(1)
        assert not pair.near.ended  # half open
        pair.near.transport.write(b"anybody there?")
        pair.wire.heal()
        await anyio.sleep(1)
        assert len(pair.near.ended) == 1

    play(test)


def test_a_dropped_request_cuts_the_connection_in_the_middle() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.faults = Faults(drop_request=1)
        pair.far.transport.write(b"a reply passes")
        await anyio.sleep(1)
        assert pair.near.text == b"a reply passes"
        pair.near.transport.write(b"a request does not")
        await anyio.sleep(1)
        assert b"a request does not".startswith(pair.far.text)
        assert len(pair.far.text) < len(b"a request does not")
        assert isinstance(pair.near.ended[0], ConnectionResetError)
        assert isinstance(pair.far.ended[0], ConnectionResetError)

    play(test)


def test_a_partition_has_a_direction_and_holds_up_what_comes() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.cut("near", "far")
        pair.near.transport.write(b"one ")
        pair.near.transport.write(b"two")
        pair.far.transport.write(b"back")
        await anyio.sleep(5)
        assert (pair.far.text, pair.near.text) == (b"", b"back")
        pair.wire.heal("far")
        await anyio.sleep(1)
        assert pair.far.text == b"one two"

    play(test)


def test_a_killed_process_closes_its_connections() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.machine("far").kill("listens")
        await anyio.sleep(1)
        assert (pair.near.ended, pair.far.ended) == ([None], [])

    play(test)


def test_a_machine_without_power_tells_nobody() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.machine("far").cut_power()
        await anyio.sleep(PROBED - 1)
        assert not pair.near.ended
        await anyio.sleep(2)
        assert [type(error) for error in pair.near.ended] == [TimeoutError]

    play(test)


def test_a_machine_that_is_back_resets_what_it_does_not_know() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.machine("far").cut_power()
        pair.near.transport.write(b"hello")
        await anyio.sleep(1)
        pair.wire.machine("far").boot()
        await anyio.sleep(1)
        assert [type(error) for error in pair.near.ended] == [ConnectionResetError]

    play(test)


def test_what_a_machine_has_sent_arrives_without_its_power() -> None:
    async def test(pair: Pair) -> None:
        pair.far.transport.write(b"acknowledged")
        pair.wire.machine("far").cut_power()
        await anyio.sleep(1)
        assert pair.near.text == b"acknowledged"

    play(test)


def test_nobody_repeats_what_a_machine_without_power_has_sent() -> None:
    async def test(pair: Pair) -> None:
        pair.wire.cut("far", "near")
        pair.far.transport.write(b"acknowledged")
        pair.wire.machine("far").cut_power()
        await anyio.sleep(1)
        pair.wire.machine("far").boot()
        pair.wire.heal()
        await anyio.sleep(1)
        assert pair.near.text == b""

    play(test)


def test_names_ports_and_addresses() -> None:
    async def scenario() -> None:
        wire = Wire(random.Random(1))

        async def serve_twice() -> None:
            async with serve("head", 0, secret="s") as first:
                port = int(first.endpoint.rpartition(":")[2])
                with pytest.raises(rdzv.RendezvousConnectionError, match="in use"):
                    async with serve("head", port, secret="s"):
                        pass
                with pytest.raises(rdzv.RendezvousConnectionError, match="assign"):
                    async with serve("other", 0, secret="s"):
                        pass
                async with serve("localhost", port):
                    pass

        wire.machine("other")
        await wire.machine("head").start("server", serve_twice)

    run(scenario, seed=1)


def test_nobody_outside_of_the_simulation_has_a_network() -> None:
    async def scenario() -> None:
        Wire(random.Random(1))
        with pytest.raises(RuntimeError, match="only processes of the simulation"):
            async with rdzv.open_backend("tcp://10.0.0.1:29400", run_id="run"):
                pass

    run(scenario)


def test_what_a_process_cannot_have_here_does_not_reach_the_real_network() -> None:
    async def serve_it() -> None:
        with pytest.raises(NotImplementedError, match="start_server"):
            await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        with pytest.raises(NotImplementedError, match="UDP"):
            await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))

    async def scenario() -> None:
        await Wire(random.Random(1)).machine("head").start("server", serve_it)

    run(scenario)


def test_a_process_takes_the_server_over_from_the_one_that_ends() -> None:
    """The host is killed: another process of its machine serves, in a new epoch, and the run goes on."""

    async def scenario() -> None:
        wire = Wire(random.Random(3), Faults(delay=0.01))
        hosts: list[tuple[str, int]] = []
        backends: dict[str, Any] = {}

        async def node(name: str) -> None:
            async with rdzv.connect(
                f"tcp://head:{PORT}", run_id="run", nodes="2:3", node=name, secret="s", rng=random.Random(name)
            ) as rendezvous:
                while True:
                    world = await rendezvous.join()
                    backends[name] = rendezvous._supervisor.backend.driver  # type: ignore[union-attr]
                    hosts.extend((each, world.round) for each in backends if is_host(each))
                    await world.changed()

        def is_host(name: str) -> bool:
            driver = backends[name]
            assert isinstance(driver, TcpDriver)
            return driver.is_hosting

        for name in ("a", "b", "c"):
            wire.machine("head").start(name, node, name)
        await anyio.sleep(30)
        ((first, _),) = set(hosts)
        wire.machine("head").kill(first)
        del backends[first]
        hosts.clear()
        await anyio.sleep(30)
        ((second, round),) = set(hosts)
        assert second != first
        assert round > 1

    run(scenario, seed=3)
