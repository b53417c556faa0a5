"""The secret: proofs without sockets, then handshakes over real ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.base import OWN, Delete, Opening, Put
from rendezvous_async.backends.tcp import restrict, serve, wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce, prove, verify
from rendezvous_async.backends.tcp.versions import PROTOCOLS
from rendezvous_async.errors import RendezvousConnectionError, RendezvousError
from rendezvous_async.testing.conformance.check import Pushed
from tests.backends.tcp.support import RawClient, connected, through_proxy

KEY = Secret.parse("secret").key


def test_what_cannot_be_encoded_is_no_secret() -> None:
    for make in (lambda: Secret.parse("\ud800"), lambda: restrict("secret", "\ud800")):
        with pytest.raises(ValueError, match="must be a string that UTF-8 can encode"):
            make()
    assert Secret.parse("\udc80") == Secret.parse(b"\x80")


@given(st.binary(), st.binary())
def test_a_proof_is_good_for_its_role_key_and_handshake_only(hello: bytes, challenge: bytes) -> None:
    proof = prove(KEY, "client", hello, challenge)
    assert verify(KEY, "client", hello, challenge, proof)
    assert not verify(KEY, "server", hello, challenge, proof)
    assert not verify(Secret.parse("other").key, "client", hello, challenge, proof)
    assert not verify(KEY, "client", hello + b"x", challenge, proof)
    assert not verify(KEY, "client", hello, challenge + b"x", proof)
    assert not verify(KEY, "client", hello, challenge, proof[:-1])
    assert not verify(KEY, "client", hello, challenge, b"")
    if hello or challenge:  # nothing can be moved from one part into the other
        assert not verify(KEY, "client", hello + challenge, b"", proof) or not challenge
        assert not verify(KEY, "client", b"", hello + challenge, proof) or not hello


def test_a_restricted_secret_is_derived_from_the_master() -> None:
    text = restrict("master", "team-a/x")
    secret = Secret.parse(text)
    assert secret.scope == "rendezvous_async/team-a%2Fx"
    assert Secret.parse("master").key_for(secret.scope) == secret.key
    assert Secret.parse("another").key_for(secret.scope) != secret.key
    assert secret.key_for("") is None
    assert secret.key_for("rendezvous_async/team-b") is None
    assert "master" not in text
    assert secret.key.hex() not in repr(secret)
    with pytest.raises(ValueError, match="restricted already"):
        restrict(text, "more")
    with pytest.raises(ValueError, match="damaged"):
        Secret.parse(text + "x")
    with pytest.raises(ValueError, match="empty"):
        Secret.parse("")


async def test_both_sides_must_know_the_secret() -> None:
    async with serve(port=0, secret="right") as server:
        async with connected(server.endpoint, secret="right") as backend:
            await backend.commit(Put("key", b"value"))
        with pytest.raises(RendezvousConnectionError, match="does not know the server's secret") as wrong:
            async with connected(server.endpoint, secret="wrong"):
                pass
        assert len(wrong.value.attempts) == 1
        assert wrong.value.final
        with pytest.raises(RendezvousConnectionError, match="wants a secret; set secret="):
            async with connected(server.endpoint):
                pass
    async with serve(port=0) as open_server:
        with pytest.raises(RendezvousConnectionError, match="the server does not know the secret"):
            async with connected(open_server.endpoint, secret="right"):
                pass


async def test_the_secret_never_crosses_the_wire() -> None:
    seen = bytearray()
    async with serve(port=0, secret="a very long secret") as server, through_proxy(server) as proxy:
        proxy.listen_in = lambda _, data: seen.extend(data)
        async with connected(f"tcp://127.0.0.1:{proxy.port}", secret="a very long secret") as backend:
            await backend.commit(Put("key", b"value"))
    assert b"value" in seen
    assert b"a very long secret" not in seen
    assert Secret.parse("a very long secret").key not in seen


async def test_a_recorded_handshake_is_of_no_use() -> None:
    """Whoever replays a client's hello and proof meets another challenge."""
    async with serve(port=0, secret="secret") as server:
        hello = wire.frame(wire.Hello(PROTOCOLS, "client", 1, 0, new_nonce()))
        async with RawClient.connect(server.endpoint) as first:
            first.writer.write(hello)
            challenge = await first.read_body()
            proof = wire.frame(wire.Proof(prove(KEY, "client", hello[4:], challenge)))
            first.writer.write(proof)
            welcome = await first.read()
            assert isinstance(welcome, wire.Welcome)
            assert verify(KEY, "server", hello[4:], challenge, welcome.proof)
        async with RawClient.connect(server.endpoint) as second:
            second.writer.write(hello + proof)
            assert isinstance(await second.read(), wire.Challenge)
            refused = await second.read()
            assert isinstance(refused, wire.Refused)
            assert refused.code == wire.REFUSED_SECRET
        async with RawClient.connect(server.endpoint) as third:  # the server's own proof, reflected
            third.writer.write(hello)
            challenge = await third.read_body()
            third.send(wire.Proof(prove(KEY, "server", hello[4:], challenge)))
            assert isinstance(await third.read(), wire.Refused)


async def test_nothing_is_answered_before_the_proof() -> None:
    async with serve(port=0, secret="secret") as server, RawClient.connect(server.endpoint) as peer:
        peer.send(wire.Hello(PROTOCOLS, "client", 1, 0, new_nonce()), wire.Get(1, "rendezvous_async/run/key"))
        assert isinstance(await peer.read(), wire.Challenge)
        refused = await peer.read()
        assert isinstance(refused, wire.Refused)
        assert refused.code == wire.REFUSED_PROTOCOL
        await peer.read_end()


async def test_a_restricted_secret_opens_its_runs_alone() -> None:
    async with serve(port=0, secret="master") as server:
        limited = restrict("master", "team-a-")
        async with (
            connected(server.endpoint, "team-a-1", secret=limited) as own,
            connected(server.endpoint, "team-b-1", secret=limited) as foreign,
            connected(server.endpoint, "team-b-1", secret="master") as master,
        ):
            session = await own.open_session(10)
            assert (await own.commit(Put("key", b"value", session.id))).won
            await session.keep_alive()
            begun, commit, _ = await own.open(Opening(10, (Put("mine", b"", OWN),)))
            assert commit is not None
            assert commit.won
            await begun.aclose()
            assert await own.get("mine") is None
            other = await master.open_session(10)
            await master.commit(Put("key", b"kept", other.id))
            for call in (
                lambda: foreign.get("key"),
                lambda: foreign.list(""),
                lambda: foreign.commit(Put("key", b"")),
                lambda: foreign.commit(Delete("")),
                lambda: foreign.open(Opening(10, (Put("key", b"", OWN),))),
                lambda: foreign.open(Opening(10, names=("key",), sink=Pushed())),
                lambda: own.commit(Put("key", b"", other.id)),
                lambda: own.end_session(other.id),
                lambda: anext(foreign.watch("key")),
            ):
                with pytest.raises(RendezvousError, match="refused by the server"):
                    await call()
            entry = await master.get("key")
            assert entry is not None
            assert entry.value == b"kept"
            await other.keep_alive()
            await master.end_session(session.id)  # the master may do everything
            assert await own.get("key") is None


async def test_a_restricted_secret_does_not_open_a_server_of_another() -> None:
    async with serve(port=0, secret="master") as server:
        with pytest.raises(RendezvousConnectionError, match="does not know"):
            async with connected(server.endpoint, "team-a-1", secret=restrict("another", "team-a-")):
                pass
