"""By which address a node of the blocking facade is reached: found after connecting, checked against the others."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from rendezvous_async.backends import start_backend
from rendezvous_async.node.addresses import address_toward, find_local_address, is_elsewhere, known_address
from rendezvous_async.settings import parse_endpoint
from rendezvous_async.sync import (
    DynamicRendezvousHandler,
    RendezvousConnectionError,
    RendezvousSettings,
    RendezvousTimeout,
)
from rendezvous_async.sync.carrier import at_endpoint
from rendezvous_async.testing import Proxy
from tests.blocking import PATIENCE, count_nodes, in_thread, linked, wait_until
from tests.ports import free_port
from tests.proof.campaign.namespaces import Link

ELSEWHERE = "192.0.2.7"
"""An address that is kept for documentation: no machine has it."""

_NODE = """
import logging, socket, sys
from rendezvous_async.sync import RendezvousError
from tests.sync.test_addresses import make_handler

logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stdout)
endpoint, head, local_addr = sys.argv[1:]
look_up, failures = socket.getaddrinfo, ["the first time", "the second", "the third"]

def late(host, *args, **options):
    if host == "head.late" and failures:
        raise socket.gaierror(socket.EAI_AGAIN, f"cannot be looked up {failures.pop(0)}")
    return look_up(head if host == "head.late" else host, *args, **options)

socket.getaddrinfo = late
handler = make_handler(endpoint, local_addr)
try:
    print("address", handler.next_round(lambda round: round.address), flush=True)
except RendezvousError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
sys.stdin.read()
try:
    raise RuntimeError("leave, and do not close")
except RuntimeError:
    handler.shutdown()
"""


def make_handler(endpoint: str, local_addr: str = "") -> DynamicRendezvousHandler:
    seconds = [timedelta(seconds=value) for value in (PATIENCE, 0.1, 5, 5)]
    settings = RendezvousSettings("run", 2, 2, RendezvousTimeout(*seconds))
    carrier = at_endpoint(endpoint, connect_timeout=PATIENCE)
    return DynamicRendezvousHandler("tcp", carrier, settings, local_addr=local_addr or None)


@pytest.fixture
def link() -> Iterator[Link]:
    """Another machine, as far as its network goes."""
    yield from linked(6)


@pytest.fixture
def second_link() -> Iterator[Link]:
    yield from linked(7)


@contextmanager
def start_inside(link: Link, endpoint: str, head: str = "", local_addr: str = "") -> Iterator[subprocess.Popen[str]]:
    """Have a node in there; it says what it got, and leaves when its standard input ends."""
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        [*link.prefix, sys.executable, "-c", _NODE, endpoint, head, local_addr],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    ) as process:
        try:
            yield process
        finally:
            try:
                process.communicate(timeout=PATIENCE)
            finally:
                process.kill()


def say(process: subprocess.Popen[str], begin: str) -> str:
    """Return the next line with this beginning; whatever else is logged before it does not matter."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1]:
        lines.append(in_thread(process.stdout.readline).result(PATIENCE))
        if lines[-1].startswith(begin):
            return lines[-1].strip()
    raise AssertionError(f"it ended, and said {lines}")


def leave(handler: DynamicRendezvousHandler) -> bool:
    try:
        raise RuntimeError("leave, and do not close")
    except RuntimeError:
        return handler.shutdown()


def test_a_name_that_resolves_late_leads_to_the_address_of_the_connection(link: Link) -> None:
    port = free_port()
    here = make_handler(f"tcp://{link.here}:{port}?insecure=true")
    joined = in_thread(here.next_round, lambda round: round.address)
    with start_inside(link, f"tcp://head.late:{port}?is_host=false", link.here) as there:
        assert say(there, "address") == f"address {link.there}"
        assert joined.result(PATIENCE) == link.here
    assert leave(here)


def test_loopback_is_refused_when_a_member_is_on_another_machine(link: Link) -> None:
    port = free_port()
    here = make_handler(f"tcp://{link.here}:{port}?insecure=true")
    joined = in_thread(here.next_round, lambda round: round.address)
    with start_inside(link, f"tcp://{link.here}:{port}?is_host=false", local_addr="127.0.0.1") as there:
        said = say(there, "RendezvousConnectionError: run 'run': node ")
        assert f"has the address 127.0.0.1, which only its own machine can reach, but node {here.node}" in said
        assert f"at {link.here}" in said
        assert "--local-addr" in said
        assert joined.result(PATIENCE) == link.here
        wait_until(lambda: here.num_nodes_waiting() > 0)
        assert count_nodes(here) == 1, "a node that is refused leaves"
    assert leave(here)


async def test_an_address_behind_nat_is_warned_of(link: Link, second_link: Link) -> None:
    """A proxy does to addresses what NAT does: the server sees the proxy's, not the node's."""
    port = free_port()
    async with Proxy(second_link.there, port, listen=link.here) as proxy:

        def meet() -> tuple[str, str]:
            host = start_inside(second_link, f"tcp://{second_link.there}:{port}?insecure=true")
            with host as far, start_inside(link, f"tcp://{link.here}:{proxy.port}?is_host=false") as near:
                warning = say(near, "WARNING: run 'run': node ")
                assert say(near, "address") == f"address {link.there}"
                return warning, say(far, "address")

        warning, address = await anyio.to_thread.run_sync(meet)
    assert address == f"address {second_link.there}"
    assert f"has the address {link.there}, but the server sees it at {second_link.here}" in warning
    assert f"at {second_link.there}" in warning
    assert "--local-addr" in warning


def test_loopback_is_refused_when_a_member_is_elsewhere() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    near, far = make_handler(endpoint), make_handler(endpoint, ELSEWHERE)
    joins = [in_thread(handler.next_round, lambda round: round.address) for handler in (near, far)]
    with pytest.raises(
        RendezvousConnectionError, match=rf"127\.0\.0\.1, which only .* on another machine, at {ELSEWHERE}"
    ):
        joins[0].result(PATIENCE)
    assert joins[1].result(PATIENCE) == ELSEWHERE
    wait_until(lambda: far.num_nodes_waiting() > 0)
    assert leave(near)
    assert leave(far)


@pytest.mark.parametrize("other", ["127.0.0.1", "localhost", "::1", "no-such-host.invalid"])
def test_loopback_is_fine_among_nodes_of_one_machine(other: str, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    handlers = make_handler(endpoint), make_handler(endpoint, other)
    joins = [in_thread(handler.next_round, lambda round: round.address) for handler in handlers]
    assert [join.result(PATIENCE) for join in joins] == ["127.0.0.1", other]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(leave(handler) for handler in handlers)


async def test_client_and_server_tell_both_ends_of_their_connection() -> None:
    backend = await start_backend(f"tcp://127.0.0.1:{free_port()}", "run")
    assert (backend.local_address, backend.seen_address) == ("127.0.0.1", "127.0.0.1")
    await backend.aclose()
    assert (backend.local_address, backend.seen_address) == ("", "")


@pytest.mark.parametrize(
    ("endpoint", "source", "expected"),
    [
        ("tcp://head", "10.1.2.3", "10.1.2.3"),
        ("tcp://head", "2001:db8::5", "2001:db8::5"),
        ("tcp://head", "fe80::1%eth0", ""),
        ("tcp://head", "127.0.1.1", ""),
        ("tcp://head", "", ""),
        ("tcp://127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("tcp://[::1]", "::1", "::1"),
        ("tcp://localhost", "::1", ""),
        ("etcd://a,b", "", ""),
        ("file:///tmp/meet", "", ""),
        ("memory://here", "", "127.0.0.1"),
    ],
)
def test_what_is_known_without_a_look_up(endpoint: str, source: str, expected: str) -> None:
    assert known_address(parse_endpoint(endpoint), source) == expected


def test_any_host_of_an_etcd_cluster_shows_the_way() -> None:
    """The first may be down, and its name gone with it."""
    out = address_toward(parse_endpoint(f"etcd://no-such-host.invalid,{ELSEWHERE}"))
    assert out == address_toward(parse_endpoint(f"etcd://{ELSEWHERE}"))


def test_elsewhere_is_what_this_machine_has_not() -> None:
    assert is_elsewhere(ELSEWHERE)
    assert is_elsewhere("2001:db8::7")
    for here in ("127.0.0.1", "127.3.2.1", "localhost", "::1", find_local_address(), "no-such-host.invalid"):
        assert not is_elsewhere(here), here
