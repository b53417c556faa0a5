"""Users, passwords, roles, and tokens that expire."""

from __future__ import annotations

import base64
import urllib.error
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import rendezvous_async as rdzv
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Delete, Put
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.testing.conformance.check import WatchReader
from rendezvous_async.testing.etcd import EtcdCluster, start_etcd

TOKEN_TTL = 1
USER = {"user": "node", "password": "secret"}


@pytest.fixture(scope="module")
def secured() -> Iterator[EtcdCluster]:
    """An etcd with authentication, whose tokens live for a second, and a user with the least privilege."""
    with EtcdCluster(arguments=["--auth-token-ttl", str(TOKEN_TTL)]) as cluster:
        secure(cluster)
        yield cluster


def secure(cluster: EtcdCluster) -> None:
    cluster.enable_auth(
        root_password="root",
        users={"node": ("secret", "/rendezvous_async/"), "guest": ("guest", "/elsewhere/")},
    )


def login(cluster: EtcdCluster, user: str, password: str) -> str:
    token: str = cluster.members[0].ask("/v3/auth/authenticate", {"name": user, "password": password})["token"]
    return token


async def expire_tokens(cluster: EtcdCluster) -> None:
    """Wait until a token that was issued now, and so every older one that is not used, is refused."""
    token = login(cluster, user="guest", password="guest")
    key = base64.b64encode(b"/elsewhere/a").decode()
    with anyio.fail_after(30):
        while True:
            await anyio.sleep(TOKEN_TTL + 0.5)  # asking for it would keep it alive
            try:
                cluster.members[0].ask("/v3/kv/range", {"key": key}, token=token)
            except urllib.error.HTTPError:
                return


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"user": "node", "password": "wrong"}, "refused Authenticate: .*invalid user ID or password"),
        ({"user": "nobody", "password": "secret"}, "refused Authenticate: .*invalid user ID or password"),
        ({}, "etcd requires a user and a password"),
        ({"user": "guest", "password": "guest"}, "refused Txn: .*permission denied"),
        (USER | {"namespace": "elsewhere"}, "refused Txn: .*permission denied"),
    ],
    ids=["wrong password", "unknown user", "no user", "no permission", "another prefix"],
)
async def test_who_may_not_is_told_so(secured: EtcdCluster, options: dict[str, Any], says: str) -> None:
    with anyio.fail_after(10), pytest.raises(RendezvousConnectionError, match=says) as caught:
        async with open_backend(secured.endpoint, run_id="run", **options):
            pass
    assert secured.members[0].address in str(caught.value)
    async with rdzv.connect(secured.endpoint, run_id="run", nodes=1, **options) as rendezvous:
        with anyio.fail_after(10), pytest.raises(RendezvousConnectionError, match=says):
            await rendezvous.join()


async def test_the_least_privilege_is_enough_for_everything(secured: EtcdCluster) -> None:
    async with (
        open_backend(f"{secured.endpoint}?user=node&password=secret", run_id="run") as backend,
        backend.watch("a", "b") as watch,
    ):
        session = await backend.open_session(2)
        await backend.commit(Put("a", b"1", session.id))
        reader = WatchReader(watch, "a", "b")
        await reader.until_value("a", b"1")
        await session.keep_alive()
        await session.aclose()
        await reader.until("the end of the session", lambda view: not view)


async def test_a_user_is_no_harm_where_nobody_asks(etcd: EtcdCluster) -> None:
    async with open_backend(etcd.endpoint, run_id="run", **USER) as backend:
        assert await backend.get("a") is None


async def test_tokens_that_have_expired_are_renewed(secured: EtcdCluster) -> None:
    async with open_backend(secured.endpoint, run_id="expired", **USER) as backend, backend.watch("a") as watch:
        reader = WatchReader(watch, "a")
        await reader.read()
        await expire_tokens(secured)
        with anyio.fail_after(20):
            assert (await backend.commit(Put("a", b"1"))).won
        await reader.until_value("a", b"1")


async def test_a_watch_that_is_refused_for_an_expired_token_is_started_anew(secured: EtcdCluster) -> None:
    """The stream still has the token that it was opened with, and etcd says no more than "permission denied"."""
    async with open_backend(secured.endpoint, run_id="stream", **USER) as backend, backend.watch("a") as first:
        await anext(first)
        backend.driver._feeds._check_every = 60  # type: ignore[attr-defined]  # or it would keep the token in use
        await expire_tokens(secured)
        with anyio.fail_after(20):
            async with backend.watch("b") as second:
                assert (await anext(second)).complete
                await backend.commit(Put("a", b"1"), Put("b", b"1"))
                await WatchReader(first, "a").until_value("a", b"1")
                await WatchReader(second, "b").until_value("b", b"1")
                await backend.commit(Delete(""))


@pytest.mark.slow
async def test_a_restart_forgets_all_tokens() -> None:
    async with start_etcd() as cluster:
        secure(cluster)
        async with open_backend(cluster.endpoint, run_id="restart", **USER) as backend, backend.watch("a") as watch:
            reader = WatchReader(watch, "a")
            await reader.read()
            session = await backend.open_session(5)
            cluster.members[0].kill()
            cluster.members[0].start()
            with anyio.fail_after(10):
                assert (await backend.commit(Put("a", b"1", session.id))).won
                await reader.until_value("a", b"1")
                await session.keep_alive()


async def test_a_permission_that_is_taken_away() -> None:
    async with start_etcd() as cluster:
        secure(cluster)
        async with (
            open_backend(cluster.endpoint, run_id="revoked", **USER) as backend,
            backend.watch("a") as before,
            backend.watch("b") as after,
        ):
            await anext(before)
            key, end = (base64.b64encode(text).decode() for text in (b"/rendezvous_async/", b"/rendezvous_async0"))
            request = {"role": "node", "key": key, "range_end": end}
            cluster.members[0].ask("/v3/auth/role/revoke", request, token=login(cluster, "root", "root"))
            with anyio.fail_after(20):
                with pytest.raises(RendezvousConnectionError, match="permission denied"):
                    await backend.get("a")
                with pytest.raises(RendezvousConnectionError, match="permission denied"):
                    await backend.commit(Put("a", b"1"))
                with pytest.raises(RendezvousConnectionError, match="permission denied"):
                    await anext(after)
                assert not (await backend.open_session(2)).lost.is_set()
