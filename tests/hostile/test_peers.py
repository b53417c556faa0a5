"""Hostile peers on real sockets and hostile names in real directories, and what each of them gets.

More of this: wrong secrets, replayed and reflected handshakes in ``tests/backends/tcp/test_auth.py``; limits, silent
peers and floods in ``test_limits.py``; slow readers in ``test_server.py``; links and foreign directories in
``tests/backends/file/test_failures.py``; HTTP in ``tests/cli/test_serve.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends.base import Put
from rendezvous_async.backends.tcp import Limits, restrict, serve, wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce, prove
from rendezvous_async.backends.tcp.server.server import CLAIM
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.core.state import node_key
from rendezvous_async.errors import RendezvousConnectionError
from tests.backends.tcp.support import RawClient, answering, connected, eventually, through_proxy
from tests.hostile.port import no_callback_fails

MANY = 1000
ODD_NAMES = (
    "..", ".", "../../outside", "/absolute", "a/b", "a//b", "a%2Fb", "%2e%2e", "é\u202e", "x" * 200, "a b", "a\\b",
    "-rf", "~", "$HOME", "`id`", "{}", "nul", "a:b", "a@b", "@epoch", "@commits/1",
)  # fmt: skip


async def refusal(peer: RawClient) -> wire.Refused:
    while not isinstance(answer := await peer.read(), wire.Refused):
        pass
    await peer.read_end()
    return answer


async def test_text_that_is_no_utf8_is_refused_with_a_reason() -> None:
    """It raised in the server's ``data_received``: a traceback in its log, and no word to the peer."""
    hello = msgspec.msgpack.encode([0, [1], msgspec.Raw(b"\xa3\xff\xfe\xfd"), 1, 0, b"nonce"])
    with no_callback_fails() as failures:
        async with serve(port=0) as server, RawClient.connect(server.endpoint) as peer:
            peer.writer.write(len(hello).to_bytes(4, "big") + hello)
            assert (await refusal(peer)).code == wire.REFUSED_PROTOCOL
    assert failures == []


@pytest.mark.parametrize(
    ("versions", "code"),
    [
        ([], wire.REFUSED_VERSION),
        ([0], wire.REFUSED_VERSION),
        ([PROTOCOLS[-1] + 1], wire.REFUSED_VERSION),
        ([0, 255], wire.REFUSED_VERSION),
        ([-1], wire.REFUSED_PROTOCOL),
        ([256], wire.REFUSED_PROTOCOL),
        (list(range(17)), wire.REFUSED_PROTOCOL),
        (PROTOCOLS[-1], wire.REFUSED_PROTOCOL),
    ],
)
async def test_no_other_version_is_spoken_not_even_an_old_one(versions: object, code: str) -> None:
    hello = msgspec.msgpack.encode([0, versions, "client", 1, 0, new_nonce()])
    async with serve(port=0, secret="secret") as server, RawClient.connect(server.endpoint) as peer:
        peer.writer.write(len(hello).to_bytes(4, "big") + hello)
        assert (await refusal(peer)).code == code


async def test_a_client_does_not_follow_a_server_down_to_an_old_version() -> None:
    async with fake_server(wire.Welcome(PROTOCOLS[0] - 1, "epoch", 1)) as endpoint:
        with pytest.raises(RendezvousConnectionError, match="picked version 0 of the protocol, not one of: 1"):
            async with connected(endpoint, connect_timeout=5.0):
                pass


async def test_a_server_that_skips_the_proof_is_not_believed() -> None:
    """A client that has a secret wants the server's proof, too: who took the server's address learns nothing."""
    async with fake_server(wire.Welcome(PROTOCOLS[-1], "epoch", 1)) as endpoint:
        with pytest.raises(RendezvousConnectionError, match="does not know the secret"):
            async with connected(endpoint, secret="secret", connect_timeout=5.0):
                pass


async def test_who_changes_the_greeting_on_its_way_breaks_the_proof() -> None:
    """A restricted secret cannot be widened by whoever stands between: the scope is part of what is proved."""
    limited = Secret.parse(restrict("master", "team-a-"))
    async with serve(port=0, secret="master") as server, RawClient.connect(server.endpoint) as peer:
        said = wire.frame(wire.Hello(PROTOCOLS, "client", 1, 0, b"n" * 32, limited.scope))[4:]
        peer.send(wire.Hello(PROTOCOLS, "client", 1, 0, b"n" * 32, ""))
        challenge = await peer.read_body()
        peer.send(wire.Proof(prove(limited.key, "client", said, challenge)))
        assert (await refusal(peer)).code == wire.REFUSED_SECRET


async def say_hello(endpoint: str, secret: str, client: str, connection: int, revision: int) -> wire.FromServer:
    """Greet with a secret and the claim to have seen this revision; return how that ended."""
    parsed = Secret.parse(secret)
    async with RawClient.connect(endpoint) as peer:
        hello = wire.frame(wire.Hello(PROTOCOLS, client, connection, revision, new_nonce(), parsed.scope))
        peer.writer.write(hello)
        challenge = await peer.read_body()
        if isinstance(refused := wire.decode_answer(challenge), wire.Refused):
            return refused
        peer.send(wire.Proof(prove(parsed.key, "client", hello[4:], challenge)))
        return await peer.read()


@pytest.mark.parametrize("liar", ["master", restrict("master", "team-a-")], ids=["trusted", "restricted"])
@pytest.mark.parametrize("claim", [2**48, 2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("lies", [1, 5])
async def test_no_revision_that_a_hello_claims_keeps_others_out(liar: str, claim: int, lies: int) -> None:
    """One with a restricted secret lifted the counter to the highest revision that a hello may name, once for all."""
    async with serve(port=0, secret="master") as server, connected(server.endpoint, secret="master") as honest:
        for number in range(lies):
            assert isinstance(await say_hello(server.endpoint, liar, "liar", number, claim), wire.Welcome)
        seen = (await honest.commit(Put("key", b""))).token.revision
        for secret in ("master", restrict("master", "team-b-")):
            assert isinstance(await say_hello(server.endpoint, secret, "honest", 1, seen), wire.Welcome)
        assert (await honest.commit(Put("key", b""))).token.revision == seen + 1
    # The next server lets them in too; and whoever has the whole secret tells it where to go on, whatever others say.
    async with serve(port=0, secret="master") as again:
        for secret in (restrict("master", "team-b-"), "master"):
            assert isinstance(await say_hello(again.endpoint, secret, f"honest with {secret}", 1, seen), wire.Welcome)
        assert again.table.revision == (seen if liar != "master" else min(seen, CLAIM))


@pytest.mark.parametrize("secret", ["master", restrict("master", "team-a-")], ids=["whole", "restricted"])
async def test_what_a_client_can_have_seen_is_believed(secret: str) -> None:
    seen = 10**14  # a hundred thousand commits a second for thirty years
    async with serve(port=0, secret="master") as server:
        welcome = await say_hello(server.endpoint, secret, "honest", 1, seen)
        assert isinstance(welcome, wire.Welcome)
        assert welcome.revision == seen


@pytest.mark.parametrize("revision", [-1, 2**63, 2**64 - 1])
async def test_a_revision_that_nobody_can_have_seen_is_refused(revision: int) -> None:
    async with serve(port=0, secret="master") as server:
        refused = await say_hello(server.endpoint, "master", "liar", 1, revision)
        assert isinstance(refused, wire.Refused)
        assert refused.code == wire.REFUSED_PROTOCOL
        assert server.table.revision == 0


async def test_a_server_with_a_log_believes_no_claim(tmp_path: Path) -> None:
    async with serve(port=0, secret="master", data_dir=tmp_path) as server:
        welcome = await say_hello(server.endpoint, "master", "liar", 1, 2**40)
        assert isinstance(welcome, wire.Welcome)
        assert welcome.revision == 0


async def test_a_greeting_that_trickles_in_is_cut_off_in_time() -> None:
    """Slow loris: each byte comes before anybody could call the peer silent, and the handshake has its end."""
    hello = wire.frame(wire.Hello(PROTOCOLS, "client", 1, 0, b"n" * 2000))
    async with serve(port=0, limits=Limits(handshake=0.3)) as server, connected(server.endpoint) as other:
        async with RawClient.connect(server.endpoint) as peer:
            refused: list[wire.Refused] = []

            async def listen() -> None:
                refused.append(await refusal(peer))
                group.cancel_scope.cancel()

            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    group.start_soon(listen)
                    for byte in hello:
                        peer.writer.write(bytes([byte]))
                        await anyio.sleep(0.02)
            assert refused[0].code == wire.REFUSED_LATE
        assert (await other.commit(Put("key", b"still served"))).won


async def test_thousands_of_silent_connections_keep_nobody_out_for_long() -> None:
    """They are let in up to the limit and cut off after the handshake's time; a client's other calls go on."""
    limits = Limits(connections=MANY + 1, handshake=1.5)
    async with serve(port=0, limits=limits) as server, connected(server.endpoint) as early, AsyncExitStack() as stack:
        for _ in range(MANY):
            await stack.enter_async_context(RawClient.connect(server.endpoint))
        assert (await early.commit(Put("key", b"served among them"))).won
        await eventually(lambda: server.connections == 1, 60)
        async with connected(server.endpoint) as late:
            assert await late.get("key") is not None


@pytest.mark.parametrize("kind", ["memory", "tcp", "file"])
async def test_odd_ids_and_keys_stay_in_their_run(kind: str, tmp_path: Path) -> None:
    """Whatever a run is called, it has a subtree of its own, and nothing is written elsewhere."""
    async with AsyncExitStack() as stack:
        if kind == "tcp":
            endpoint = (await stack.enter_async_context(serve(port=0))).endpoint
        else:
            endpoint = f"memory://{tmp_path.name}" if kind == "memory" else f"file://{tmp_path / 'place'}?fsync=false"
        backends = {}
        for name in ODD_NAMES:
            backends[name] = await stack.enter_async_context(rdzv.open_backend(endpoint, run_id=name))
            assert (await backends[name].commit(Put(node_key(name), name.encode()))).won
        for name, backend in backends.items():
            assert [entry.value for entry in (await backend.list("")).entries] == [name.encode()]
        for bad in ("/etc/passwd", "a//b", "../../x/", "a\n", "a\0b", "\u202e"):
            with pytest.raises(ValueError, match="a key "):
                await backends[".."].commit(Put(bad, b""))
        assert (await backends[".."].commit(Put("../../../outside", b"a key like any other"))).won
        assert len((await backends[".."].list("")).entries) == 2
    made = [path.name async for path in anyio.Path(tmp_path).iterdir()]
    assert made == (["place"] if kind == "file" else [])


async def test_a_member_with_a_restricted_secret_cannot_trick_its_way_into_another_run() -> None:
    """Names are compared as they are: no dots are resolved, nothing is decoded a second time."""
    async with serve(port=0, secret="master") as server:
        limited = Secret.parse(restrict("master", "team-a-"))
        async with connected(server.endpoint, "team-b-1", secret="master") as victim:
            await victim.commit(Put("key", b"kept"))
            async with RawClient.connect(server.endpoint) as peer:
                hello = wire.frame(wire.Hello(PROTOCOLS, "client", 1, 0, b"n" * 32, limited.scope))
                peer.writer.write(hello)
                challenge = await peer.read_body()
                peer.send(wire.Proof(prove(limited.key, "client", hello[4:], challenge)))
                assert isinstance(await peer.read(), wire.Welcome)
                for number, name in enumerate(
                    (
                        "rendezvous_async/team-b-1/key",
                        "rendezvous_async/",
                        "rendezvous_async/team-a",
                        "rendezvous_async/team-a%2D/../team-b-1/key",
                        "rendezvous_async/./team-a-/key",
                        "rendezvous_async/TEAM-A-1/key",
                    )
                ):
                    peer.send(
                        wire.Get(number, name),
                        wire.Transact(100 + number, number + 1, number, (Put(name.rstrip("/"), b"!"),), ()),
                    )
                    for _ in range(2):
                        failed = await peer.read()
                        assert isinstance(failed, wire.Failed)
                        assert failed.code == wire.FAILED_DENIED
                # This one starts as it may, and is a key of no run at all.
                trick = "rendezvous_async/team-a-/../team-b-1/key"
                peer.send(wire.Transact(200, 50, 49, (Put(trick, b"!"),), ()))
                assert isinstance(await peer.read(), wire.Transacted)
            entry = await victim.get("key")
            assert entry is not None
            assert entry.value == b"kept"


async def test_what_is_recorded_of_a_connection_opens_no_other() -> None:
    """Everything a client sent, sent again: the server's challenge is another, and nothing is done."""
    recorded = bytearray()
    async with serve(port=0, secret="secret") as server, through_proxy(server) as proxy:
        proxy.listen_in = lambda direction, data: recorded.extend(data) if direction == "to_server" else None
        async with connected(f"tcp://127.0.0.1:{proxy.port}", secret="secret") as backend:
            await backend.commit(Put("key", b"once"))
        async with connected(server.endpoint, secret="secret") as backend:
            before = await backend.get("key")
            async with RawClient.connect(server.endpoint) as thief:
                thief.writer.write(bytes(recorded))
                assert (await refusal(thief)).code in (wire.REFUSED_SECRET, wire.REFUSED_PROTOCOL)
            assert await backend.get("key") == before


@asynccontextmanager
async def fake_server(answer: wire.AnyMessage) -> AsyncIterator[str]:
    """A server that answers every hello with this, whatever it was."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(wire.frame(answer))
        await reader.read()
        writer.close()

    async with answering(talk) as endpoint:
        yield endpoint
