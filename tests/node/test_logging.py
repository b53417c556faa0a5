"""What a person reads in the log, and in the error of a join that fails: what happens, and why nothing does."""

from __future__ import annotations

import logging

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async import RendezvousTimeoutError, Timeouts
from rendezvous_async.backends.outage import Outage
from rendezvous_async.testing import run
from tests.meeting import Meeting, in_virtual_time, together

NOWHERE = "no-such-host.invalid"


def lines(caplog: pytest.LogCaptureFixture, level: int, logger: str = "rendezvous_async") -> list[str]:
    """Return the messages of exactly this level, of a logger and those below it."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and (record.name == logger or record.name.startswith(f"{logger}."))
    ]


def test_an_outage_is_told_at_once_then_every_30_seconds_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_for_a_while() -> None:
        outage = Outage("run 'job': node a", "tcp://head:29400")
        for _ in range(130):
            outage.failed("connection refused")
            await anyio.sleep(0.5)
        assert outage.cause == "connection refused"
        outage.ended()
        outage.ended()
        assert outage.cause == ""
        outage.failed("connection reset")  # A new outage is told at once.

    caplog.set_level(logging.DEBUG, "rendezvous_async.connection")
    run(fail_for_a_while)
    assert lines(caplog, logging.WARNING) == [
        "run 'job': node a: cannot reach tcp://head:29400: connection refused; still trying",
        "run 'job': node a: cannot reach tcp://head:29400 for 30 s: connection refused; still trying",
        "run 'job': node a: cannot reach tcp://head:29400 for 60 s: connection refused; still trying",
        "run 'job': node a: cannot reach tcp://head:29400: connection reset; still trying",
    ]
    assert lines(caplog, logging.INFO) == ["run 'job': node a: tcp://head:29400 answers again after 65.0 s"]
    assert len(lines(caplog, logging.DEBUG)) == 127, "every failure is there for whoever looks closer"


async def test_a_join_to_an_unknown_host_warns_at_once_and_its_error_names_the_cause_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    where = f"tcp://{NOWHERE}:29400"
    async with rdzv.connect(where, run_id="job", nodes=1, node="a", timeouts=Timeouts(join=0.5)) as rendezvous:
        with pytest.raises(RendezvousTimeoutError) as raised:
            await rendezvous.join()
    (warning,) = lines(caplog, logging.WARNING)
    assert warning.startswith(f"run 'job': node a: cannot reach {where}: cannot look up {NOWHERE}: ")
    first, second = str(raised.value).splitlines()
    assert first == "run 'job': no round with node a formed within 0.5 s"
    assert second.startswith(f"  cannot reach {where}: cannot look up {NOWHERE}: ")
    assert "did not answer within" not in str(raised.value), "the deadline of an inner step is not the cause"


async def test_a_join_to_a_port_that_nobody_serves_names_the_cause_once(caplog: pytest.LogCaptureFixture) -> None:
    where = "tcp://127.0.0.1:1"
    timeouts = Timeouts(join=0.5)
    async with rdzv.connect(where, is_host=False, run_id="job", nodes=1, node="a", timeouts=timeouts) as rendezvous:
        with pytest.raises(RendezvousTimeoutError) as raised:
            await rendezvous.join()
    assert str(raised.value).splitlines()[1:] == [f"  cannot reach {where}: 127.0.0.1:1: connection refused"]
    assert len(lines(caplog, logging.WARNING)) == 1


async def test_a_join_to_an_etcd_that_nobody_serves_names_the_cause_once(caplog: pytest.LogCaptureFixture) -> None:
    where = "etcd://127.0.0.1:1"
    async with rdzv.connect(where, run_id="job", nodes=1, node="a", timeouts=Timeouts(join=1)) as rendezvous:
        with pytest.raises(RendezvousTimeoutError) as raised:
            await rendezvous.join()
    (cause,) = str(raised.value).splitlines()[1:]
    assert cause.startswith(f"  cannot reach {where}")
    assert "refused" in cause.lower()  # How it ends is for the version of grpc to say.
    assert len(lines(caplog, logging.WARNING)) == 1


async def test_a_server_that_comes_back_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rendezvous_async")
    async with rdzv.serve(port=0) as server:
        endpoint = server.endpoint
        port = int(endpoint.rpartition(":")[2])
        async with rdzv.connect(endpoint, is_host=False, run_id="job", nodes=1, node="a") as rendezvous:
            world = await rendezvous.join()
            await server.aclose()
            await world.changed()  # Out, by its own clock: nobody answers.
            async with rdzv.serve(port=port):
                await rendezvous.join()
    assert any("answers again after" in line for line in lines(caplog, logging.INFO))
    assert [line for line in lines(caplog, logging.WARNING) if "cannot reach" in line]
    reconnections = lines(caplog, logging.DEBUG, "rendezvous_async.connection")
    assert any(line.startswith(f"lost the connection to 127.0.0.1:{port}: ") for line in reconnections)
    assert sum(line.startswith(f"connected to 127.0.0.1:{port}") for line in reconnections) == 2


def test_a_nodes_life_is_told(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def live() -> None:
        caplog.clear()
        async with Meeting() as meeting:
            a, b = await meeting.enter_all("ab", "1:2")
            worlds = dict(zip("ab", await together(a, b), strict=True))
            await b.leave()
            await worlds["a"].changed()
            await a.join()
            await a.close("enough")
        told = lines(caplog, logging.INFO, "rendezvous_async.node")
        ranks = {node: world.rank for node, world in worlds.items()}
        for line in (
            "run 'job': node a is joining",
            f"run 'job': node a: joined round 1: rank {ranks['a']} of 2",
            f"run 'job': node b: joined round 1: rank {ranks['b']} of 2",
            "run 'job': node b: left the run",
            "run 'job': node a: round 1 has lost a member",
            "run 'job': node a: joined round 2: rank 0 of 1",
            "run 'job': node a: closing the run: enough",
            "run 'job': node a: the run is closed",
        ):
            assert told.count(line) == (2 if line.endswith("is joining") else 1), (line, told)
        assert any(line.endswith(": coordinating the run") for line in told)
        sessions = [line for line in lines(caplog, logging.DEBUG, "rendezvous_async.node") if "opened session" in line]
        assert len(sessions) == 2

    caplog.set_level(logging.DEBUG, "rendezvous_async")
    live()


FIELDS = ("rdzv_run", "rdzv_node", "rdzv_round")


def fields_of(caplog: pytest.LogCaptureFixture) -> list[tuple[tuple[object, ...], str]]:
    """Return what each record says of the run, the node and the round, with its message."""
    records = [record for record in caplog.records if record.name.startswith("rendezvous_async")]
    return [(tuple(getattr(record, name, None) for name in FIELDS), record.getMessage()) for record in records]


def test_every_record_of_a_nodes_life_has_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A join, a loss, a rejoin and a close, with all loggers open."""

    @in_virtual_time
    async def live() -> None:
        caplog.clear()
        async with Meeting() as meeting:
            line = meeting.line()
            a, b = await meeting.enter("a", "1:2"), await meeting.enter("b", "1:2", backend=line)
            worlds = await together(a, b)
            line.cut()
            await worlds[0].changed()
            await a.join()
            await anyio.sleep(10)
            line.mend()
            await together(a, b)
            await a.close("enough")
            with pytest.raises(rdzv.RendezvousClosedError):
                await b.join()
        told = fields_of(caplog)
        for (run_id, node, round), text in told:
            assert run_id == "job", text
            assert node in ("a", "b"), text
            assert f"node {'b' if node == 'a' else 'a'}" not in text
            assert isinstance(round, int), text
        for fields, text in (
            (("job", "a", 0), "run 'job': node a is joining"),
            (("job", "b", 1), f"run 'job': node b: joined round 1: rank {worlds[1].rank} of 2"),
            (("job", "a", 1), "run 'job': node a: round 1 has lost a member"),
            (("job", "a", 2), "run 'job': round 2 formed with 1 node"),
            (("job", "b", 1), "run 'job': node b: this node is out of round 1"),
            (("job", "b", 3), "run 'job': node b: joined round 3: rank 1 of 2"),
            (("job", "a", 3), "run 'job': node a: the run is closed"),
        ):
            assert (fields, text) in told, "\n".join(map(str, told))
        assert any("out in" in text for _, text in told)

    caplog.set_level(logging.DEBUG, "rendezvous_async")
    live()


async def test_every_record_of_a_connection_has_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    """The host and the client of a node say whose they are, too; only the server itself is nobody's."""
    caplog.set_level(logging.DEBUG, "rendezvous_async")
    async with rdzv.connect("tcp://127.0.0.1:0", run_id="job", nodes=1, node="a") as rendezvous:
        await rendezvous.join()
    told = fields_of(caplog)
    assert {fields[:2] for fields, _ in told} == {("job", "a")}
    for start in ("hosting the server at", "connected to"):
        assert any(text.startswith(start) for _, text in told), told


async def test_what_is_of_a_run_alone_has_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(rdzv.RendezvousConnectionError):
        async with rdzv.open_backend("tcp://127.0.0.1:1", run_id="job", is_host=False, connect_timeout=0.2):
            raise AssertionError("nobody serves there")
    assert {fields for fields, _ in fields_of(caplog)} == {("job", None, None)}


def test_a_host_that_is_not_a_name_is_refused_when_it_is_given() -> None:
    for host in ("a..b", "x" * 64):
        with pytest.raises(ValueError, match="not a valid name"):
            rdzv.connect(f"tcp://{host}:29400", run_id="job", nodes=1)
