"""The way to the cluster: one gRPC channel for each member, one of them in use, and what to do when it does not answer.

A list of members in one gRPC target would do the same with less say: names could not be in it, a frozen member would be
left only after 8 s of missed pings, and errors would not tell which member they are of. So every member has a channel
of its own. A call that gets no answer within ``call_timeout`` is sent again to the next member, for ``connect_timeout``
in all; the streams move along. When no member has answered, all get twice the time: a cluster that is slow is not
helped by being asked again and again. Whether a write that is sent again is safe is the caller's business (see
commits.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import grpc
from aetcd import rpc

from rendezvous_async import clock
from rendezvous_async.backends.base import closed_error
from rendezvous_async.backends.etcd.calls import Calls
from rendezvous_async.backends.etcd.faults import (
    ConnectionTornError,
    EtcdRefusedError,
    Fault,
    describe,
    is_final,
    is_silence,
    judge,
)
from rendezvous_async.backends.etcd.options import Options
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import Endpoint, format_address

__all__ = ["Cluster", "Member", "Tally"]

logger = logging.getLogger("rendezvous_async.etcd")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
MAX_DOUBLINGS = 5
LAST_ANSWERS = 0.2
"""Seconds for what is still under way when the backend is closed; what gets no answer by then is cancelled."""
OLDEST_VERSION = (3, 4)
ORDERLY_VERSION = (3, 5, 8)
"""From here on a watch stream's progress is sent after everything that it covers."""
CHANNEL_OPTIONS = (
    # Pings find a dead connection under a stream; etcd hangs up on clients that ping more often, or without a stream.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A proxy of the environment is for the web, not for the cluster next door.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Each backend has connections of its own: closing or breaking one is nobody else's business.
    ("grpc.use_local_subchannel_pool", 1),
)


class Tally:
    """How the attempts at one call went.

    Attributes:
        doubt: Whether an attempt was left unanswered, so that what it asked for may happen, even later.
    """

    doubt = False


class Member:
    """One member of the cluster and the channel to it, opened when it is first needed."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.trouble = ""
        self.hopeless = False
        self._credentials = credentials
        self._channel: Any = None
        self._methods: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Member {self.address}{' ' + self.trouble if self.trouble else ''}>"

    def method(self, name: str) -> Any:
        """Return one of etcd's calls on this member."""
        if self._channel is None:
            target = f"dns:///{self.address}"
            self._channel = (
                rpc.insecure_channel(target, options=CHANNEL_OPTIONS)
                if self._credentials is None
                else rpc.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)
            )
            for stub in (rpc.KVStub, rpc.LeaseStub, rpc.WatchStub, rpc.AuthStub, rpc.MaintenanceStub):
                self._methods.update(vars(stub(self._channel)))
        return self._methods[name]

    async def aclose(self) -> None:
        if self._channel is not None:
            await self._channel.close()


class Cluster:
    """All members, with the one in use, and the auth token.

    Args:
        endpoint: Where the members are.
        options: Timeouts, user and password, certificates.
        rng: Which member to begin with, and how long to pause between attempts.
    """

    def __init__(self, endpoint: Endpoint, options: Options, rng: Random) -> None:
        self.endpoint = endpoint
        self.call_timeout = options.call_timeout
        self.connect_timeout = options.connect_timeout
        self.calls = 0
        self.under_way = Calls()
        self.missed_answers = 0
        self.orderly_progress = False
        self.closed = False
        self._user = options.user
        self._password = options.password
        self._rng = rng
        self._members = [Member(format_address(*host), options.credentials) for host in endpoint.hosts]
        self._member = rng.choice(self._members)
        self._moved: list[Callable[[], None]] = []
        self._token: str | None = None
        self._renewing = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Cluster {self.endpoint} by way of {self._member.address}>"

    @property
    def member(self) -> Member:
        """The member in use."""
        return self._member

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._members)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call: a member that knows no leader shall say so at once, and who we are."""
        leader = ("hasleader", "true")
        return (leader,) if self._token is None else (leader, ("token", self._token))

    @property
    def token(self) -> str | None:
        """The auth token in use."""
        return self._token

    @property
    def has_user(self) -> bool:
        return self._user is not None

    def on_move(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called whenever another member is in use."""
        self._moved.append(callback)

    def leave(self, member: Member, trouble: str, *, hopeless: bool = False) -> None:
        """Use another member from now on, if this one is in use and there is another."""
        self.missed_answers += 1
        member.trouble, member.hopeless = trouble, hopeless
        if member is not self._member or len(self._members) == 1 or self.closed:
            return
        self._member = self._members[(self._members.index(member) + 1) % len(self._members)]
        logger.info("etcd member %s: %s; going on with %s", member.address, trouble, self._member.address)
        for callback in self._moved:
            callback()

    async def call(self, name: str, request: Any, *, tally: Tally | None = None, deadline: float | None = None) -> Any:
        """Make one of etcd's calls, on another member if one does not answer.

        Raises:
            EtcdRefusedError: The answer is no.
            RendezvousConnectionError: Nobody has answered within ``connect_timeout``, or until ``deadline``.
        """
        started = clock.now()
        if deadline is None:
            deadline = started + self.connect_timeout
        failures = renewals = silences = 0
        pause = FIRST_PAUSE
        while True:
            if self.closed:
                raise closed_error("etcd")
            member, token = self._member, self._token
            left = deadline - clock.now()
            if left <= 0:
                raise self._unreachable(name, clock.now() - started)
            patience = self.call_timeout * 2 ** min(silences // len(self._members), MAX_DOUBLINGS)
            try:
                self.calls += 1
                response = await self.under_way.answer(
                    member.method(name)(request, timeout=min(patience, left), metadata=self.metadata)
                )
            except (rpc.AioRpcError, ConnectionTornError) as error:
                fault, text = judge(error, has_user=self.has_user), describe(error)
                final = is_final(error, fault)
                silences += is_silence(error)
            else:
                member.trouble, member.hopeless = "", False
                return response
            match fault:
                case Fault.RENEW if renewals < 3 and name != "Authenticate":
                    renewals += 1
                    await self.renew(token, deadline)
                case Fault.ELSEWHERE | Fault.HOPELESS:
                    if tally is not None:
                        tally.doubt = True
                    self.leave(member, text, hopeless=fault is Fault.HOPELESS)
                    failures += 1
                    if all(each.hopeless for each in self._members):
                        raise self._unreachable(name, clock.now() - started)
                    if failures % len(self._members) == 0:
                        left = deadline - clock.now()
                        await anyio.sleep(max(0.0, min(left, pause * self._rng.uniform(0.5, 1.0))))
                        pause = min(2 * pause, LONGEST_PAUSE)
                case _:
                    raise EtcdRefusedError(f"etcd at {member.address} refused {name}: {text}", fault, final=final)

    async def renew(self, stale: str | None, deadline: float | None = None) -> None:
        """Get an auth token, unless somebody has replaced the stale one already."""
        if self._user is None:
            return
        async with self._renewing:
            if self._token != stale:
                return
            self._token = None
            request = rpc.AuthenticateRequest(name=self._user, password=self._password)
            try:
                answer = await self.call("Authenticate", request, deadline=deadline)
            except EtcdRefusedError as error:
                if "authentication is not enabled" in str(error):
                    return
                raise
            self._token = answer.token

    async def start(self, deadline: float) -> None:
        """Log in and make sure that the server is one that we can work with."""
        await self.renew(None, deadline)
        try:
            status = await self.call("Status", rpc.StatusRequest(), deadline=deadline)
        except EtcdRefusedError as error:
            if "permission denied" in str(error):
                return
            raise
        version = tuple(int(part) for part in status.version.split("-")[0].split(".") if part.isdigit())
        self.orderly_progress = version >= ORDERLY_VERSION
        if version < OLDEST_VERSION:
            oldest = ".".join(map(str, OLDEST_VERSION))
            raise RendezvousConnectionError(
                f"etcd at {self._member.address} is version {status.version or 'unknown'}; {oldest} or newer is needed",
                final=True,
            )

    async def aclose(self) -> None:
        """Close every channel; calls that get no answer in time end with RendezvousConnectionError."""
        self.closed = True
        try:
            await self.under_way.drain(LAST_ANSWERS)
        finally:
            for member in self._members:
                await member.aclose()
        await self.under_way.aclose(LAST_ANSWERS)

    def _unreachable(self, name: str, seconds: float) -> RendezvousConnectionError:
        tried = [f"{member.address}: {member.trouble or 'not asked'}" for member in self._members]
        final = all(member.hopeless for member in self._members)
        return RendezvousConnectionError(
            f"no usable answer from {self.endpoint} to {name} in {seconds:.1f} s", tried, final=final
        )
