"""Peers of different versions of the protocol: they agree on one, or both sides say what to upgrade."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import serve, versions, wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce, prove, verify
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.support import RawClient, ServerProcess, answering, connected

SECRET = "secret"
KEY = Secret.parse(SECRET).key
CLIENT_TOO_OLD = (
    "the client speaks version 1 of the protocol, the server versions 2, 3; upgrade rendezvous_async on the "
)


class NewerServer(ServerProcess):
    """A server of a later version, which no longer speaks this one."""

    CODE = (
        "from rendezvous_async.backends.tcp import versions\nversions.PROTOCOLS = (2, 3)\n" + ServerProcess.CODE
    )  # fmt: skip


@pytest.fixture
def two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process speak two versions, which are the same but for their number."""
    monkeypatch.setattr(versions, "PROTOCOLS", (1, 2))


def hello(*versions: int) -> wire.Hello:
    return wire.Hello(versions, "client", 1, 0, b"n" * 32)


async def shake_hands(peer: RawClient, said: wire.Hello, sent: wire.Hello, seen: int | None = None) -> wire.FromServer:
    """Greet a server that has a secret, through somebody who changes what is said; return how that ended.

    Args:
        peer: The connection.
        said: By the client, and proved.
        sent: What reaches the server instead.
        seen: The version that the client is shown in the challenge, if it is not the server's.
    """
    peer.send(sent)
    challenge = await peer.read_body()
    picked = wire.decode_answer(challenge)
    assert isinstance(picked, wire.Challenge)
    shown = challenge if seen is None else wire.frame(msgspec.structs.replace(picked, version=seen))[4:]
    body = wire.frame(said)[4:]
    peer.send(wire.Proof(prove(KEY, "client", body, shown)))
    answer = await peer.read()
    if isinstance(answer, wire.Welcome):
        assert verify(KEY, "server", body, shown, answer.proof)
        assert answer.version == picked.version
    return answer


@pytest.mark.parametrize(("offered", "picked"), [((1,), 1), ((1, 2), 2), ((2, 1, 3), 2), ((0, 1, 255), 1)])
@pytest.mark.usefixtures("two_versions")
async def test_the_server_picks_and_says_so(offered: tuple[int, ...], picked: int) -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        peer.send(hello(*offered))
        welcome = await peer.read()
        assert isinstance(welcome, wire.Welcome)
        assert welcome.version == picked
        peer.send(wire.Ping(1))
        assert await peer.read() == wire.Done(1)
    async with serve(port=0, secret=SECRET) as server, RawClient.connect(server.endpoint) as peer:
        welcome = await shake_hands(peer, hello(*offered), hello(*offered))
        assert isinstance(welcome, wire.Welcome)
        assert welcome.version == picked


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.usefixtures("two_versions")
async def test_a_client_of_two_versions_works_with_a_server_of_two(secret: str | None) -> None:
    async with serve(port=0, secret=secret) as server, connected(server.endpoint, secret=secret) as backend:
        assert (await backend.commit(Put("key", b"value"))).won


@pytest.mark.usefixtures("two_versions")
async def test_nobody_between_them_talks_them_down_to_an_old_version_unnoticed() -> None:
    """Both proofs cover what was offered and what was picked, as each side has seen it."""
    async with serve(port=0, secret=SECRET) as server:
        for sent, seen in ((hello(1), None), (hello(1, 2), 1), (hello(1), 2)):
            async with RawClient.connect(server.endpoint) as peer:
                refused = await shake_hands(peer, hello(1, 2), sent, seen)
                assert isinstance(refused, wire.Refused)
                assert refused.code == wire.REFUSED_SECRET
        async with RawClient.connect(server.endpoint) as peer:
            assert isinstance(await shake_hands(peer, hello(1, 2), hello(1, 2)), wire.Welcome)


@asynccontextmanager
async def knowing_server(challenge: int, welcome: int, *more: wire.AnyMessage) -> AsyncIterator[str]:
    """A server that knows the secret, and names these versions in its challenge and in its welcome."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def read() -> bytes:
            return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

        try:
            said = await read()
            asked = wire.frame(wire.Challenge(new_nonce(), challenge))
            writer.write(asked)
            await read()
            proof = prove(KEY, "server", said, asked[4:])
            for message in (wire.Welcome(welcome, "epoch", 1, proof), *more):
                writer.write(wire.frame(message))
            await reader.read()
        except asyncio.IncompleteReadError:
            pass  # It was left.
        finally:
            writer.close()

    async with answering(talk) as endpoint:
        yield endpoint


@pytest.mark.usefixtures("two_versions")
@pytest.mark.parametrize(
    ("challenge", "welcome", "told"),
    [
        (2, 1, "picked version 1 of the protocol, not one of: 2"),
        (1, 2, "picked version 2 of the protocol, not one of: 1"),
        (3, 3, "picked version 3 of the protocol, not one of: 1, 2"),
        (0, 0, "picked version 0 of the protocol, not one of: 1, 2"),
    ],
)
async def test_a_client_holds_the_server_to_what_was_proved(challenge: int, welcome: int, told: str) -> None:
    """The welcome is not proved: its version must be the one of the challenge."""
    async with knowing_server(challenge, welcome) as endpoint:
        with pytest.raises(RendezvousConnectionError, match=told) as refused:
            async with connected(endpoint, secret=SECRET, connect_timeout=5.0):
                pass
        assert refused.value.final


@pytest.mark.usefixtures("two_versions")
async def test_a_second_welcome_does_not_mend_the_first() -> None:
    async with knowing_server(2, 1, wire.Welcome(2, "epoch", 1)) as endpoint:
        with pytest.raises(RendezvousConnectionError, match="picked version 1"):
            async with connected(endpoint, secret=SECRET, connect_timeout=5.0):
                pass


async def test_a_client_that_is_too_old_is_told_both_versions_and_what_to_upgrade() -> None:
    server = NewerServer()
    await server.start()
    try:
        with pytest.raises(RendezvousConnectionError, match=f"{CLIENT_TOO_OLD}client's side") as refused:
            async with connected(server.endpoint, connect_timeout=10.0):
                pass
        assert refused.value.final, "to try again does not help"
    finally:
        await server.kill()


async def test_a_server_says_in_its_log_which_versions_did_not_fit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for many: a client that cannot get in may come every second."""
    monkeypatch.setattr(versions, "PROTOCOLS", (2, 3))
    caplog.set_level(logging.WARNING, "rendezvous_async.server")
    async with serve(port=0) as server:
        for number in range(3):
            async with RawClient.connect(server.endpoint) as peer:
                peer.send(wire.Hello((1,), f"client {number}", 1, 0, new_nonce()))
                refused = await peer.read()
                assert isinstance(refused, wire.Refused)
                assert refused.code == wire.REFUSED_VERSION
                assert refused.message == f"{CLIENT_TOO_OLD}client's side"
                await peer.read_end()
        assert [record.message for record in caplog.records] == [
            f"the server at {server.endpoint} has refused a client of another version: {CLIENT_TOO_OLD}client's side"
        ]
        caplog.clear()
    assert "and 2 more" in caplog.text, "the others are counted"


UNKNOWN: list[Callable[[], bytes]] = [
    lambda: msgspec.msgpack.encode([999, 1, "a kind of a later version"]),
    lambda: msgspec.msgpack.encode([21, 1]),
    lambda: msgspec.msgpack.encode([wire.Done.__struct_config__.tag, 1]),
]


@pytest.mark.parametrize("make", UNKNOWN)
async def test_a_request_that_the_server_does_not_know_is_refused_and_others_are_served_on(
    make: Callable[[], bytes],
) -> None:
    async with serve(port=0) as server, connected(server.endpoint) as other:
        async with RawClient.connect(server.endpoint) as peer:
            await peer.greet()
            body = make()
            peer.writer.write(len(body).to_bytes(4, "big") + body)
            refused = await peer.read()
            assert isinstance(refused, wire.Refused)
            assert refused.code == wire.REFUSED_PROTOCOL
            assert "not a request of this version of the protocol" in refused.message
            await peer.read_end()
        assert (await other.commit(Put("key", b"value"))).won


async def test_later_fields_of_a_request_are_passed_over_by_a_server() -> None:
    async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
        await peer.greet()
        for fields in ([18, 1, "later"], [10, 2, "rendezvous_async/run/key", {"later": [1]}]):
            body = msgspec.msgpack.encode(fields)
            peer.writer.write(len(body).to_bytes(4, "big") + body)
        assert await peer.read() == wire.Done(1)
        assert await peer.read() == wire.Found(2, None)
