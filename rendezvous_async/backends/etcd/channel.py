"""The way to the cluster: one gRPC channel for each member, one of them in use, and what to do when it does not answer.

A list of members in one gRPC target would do the same with less say: names could not be in it, a frozen member would be
left only after 8 s of missed pings, and errors would not tell which member they are of. So every member has a channel
of its own.

A call that gets no answer within 0.15 of ``call_timeout`` (0.3 s by default) is also sent to the next member, and so
on, for ``connect_timeout`` in all. The first answer counts; if the member in use has not answered by then, the one that
has is used from then on. A member is asked again while it still owes an answer: a follower that has handed a request to
a leader that died keeps it for seconds, and answers the next one as soon as there is a new leader. An election takes
one to two seconds, so only after three rounds of silence they get twice the time: a cluster that is slow is not helped
by being asked again and again. Whether a write that is sent again is safe is the caller's business (see commits.py).
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
from rendezvous_async.backends.etcd.copies import Copies
from rendezvous_async.backends.etcd.faults import (
    EtcdRefusedError,
    Fault,
    describe,
    is_final,
    is_silence,
    judge,
)
from rendezvous_async.backends.etcd.forks import check_process, in_child
from rendezvous_async.backends.etcd.options import Options
from rendezvous_async.backends.outage import Outage
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import Endpoint, format_address

__all__ = ["Cluster", "Member", "Tally"]

logger = logging.getLogger("rendezvous_async.etcd")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
MAX_DOUBLINGS = 5
PATIENCE = 0.15
"""The part of ``call_timeout`` after which the next member is asked, too."""
QUICK_ROUNDS = 3
"""How many times all members are asked until they get more time: of three, for 2.7 s, and an election takes up to 2."""
MAX_SLOWDOWN = 3
"""How often that time is doubled, at most."""
SHORTEST_PATIENCE = 0.25
"""Seconds; a busy machine or a slow disk is not asked twice for less."""
LAST_ANSWERS = 0.2
"""Seconds for what is still under way when the backend is closed; what gets no answer by then is cancelled."""
OLDEST_VERSION = (3, 4)
LOSING_VERSIONS = ((3, 5, 0), (3, 5, 2))
"""The first and the last of the versions that may lose data when a member is killed (etcd issue 13766)."""
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

_warned: set[str] = set()
"""The endpoints that this process has been warned of."""


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
        check_process()
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
        outage: Told when no member answers.
    """

    def __init__(self, endpoint: Endpoint, options: Options, rng: Random, outage: Outage | None = None) -> None:
        self.endpoint = endpoint
        self.outage = outage or Outage("a client", endpoint)
        self.call_timeout = options.call_timeout
        self.connect_timeout = options.connect_timeout
        self.ask_next_after = min(self.call_timeout, max(SHORTEST_PATIENCE, PATIENCE * self.call_timeout))
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
    def trouble(self) -> str | None:
        """Why no member can be used, as far as is known."""
        troubles = [f"{member.address}: {member.trouble}" for member in self._members if member.trouble]
        return "; ".join(troubles) if len(troubles) == len(self._members) else None

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
        if member is self._member and not self.closed:
            self._use(self.after(member), trouble)

    def after(self, member: Member) -> Member:
        """Return the member to ask after this one."""
        return self._members[(self._members.index(member) + 1) % len(self._members)]

    def patience(self, silences: int) -> float:
        """Return the seconds to wait for a member's answer, after so many that did not come, until another is asked.

        Where there is no other, that is only asked again when its time is over.
        """
        if len(self._members) == 1:
            return self.connect_timeout
        return self.ask_next_after * self.slowness(silences)

    def slowness(self, silences: int) -> float:
        """Return how many times longer than usual to wait, after so many answers that did not come."""
        return 2.0 ** min(max(0, silences // len(self._members) + 1 - QUICK_ROUNDS), MAX_SLOWDOWN)

    def _use(self, member: Member, trouble: str) -> None:
        """Use this member from now on, since the one in use is in trouble."""
        before, self._member = self._member, member
        if member is not before:
            before.trouble = trouble
            logger.info("etcd member %s: %s; going on with %s", before.address, trouble, member.address)
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
        copies = Copies(self.under_way)
        failures = renewals = silences = 0
        pause = FIRST_PAUSE
        member = self._member
        wait = 0.0
        while True:
            wait = min(wait, deadline - clock.now())
            outcome = await copies.first(wait) if wait > 0 else None
            if outcome is None:
                # The next member is asked; those that have not answered yet may still do so.
                left = deadline - clock.now()
                if self.closed:
                    raise closed_error("etcd")
                if left <= 0:
                    raise self._unreachable(name, started, copies)
                if copies:
                    silences += wait > 0
                    self.missed_answers += 1
                    if tally is not None:
                        tally.doubt = True
                    if wait > 0 and silences % len(self._members) == 0:
                        self.outage.failed(f"no member has answered for {clock.now() - started:.1f} s")
                seconds = self.call_timeout * 2 ** min(silences // len(self._members), MAX_DOUBLINGS)
                self.calls += 1
                call = member.method(name)(request, timeout=min(seconds, left), metadata=self.metadata)
                copies.send(member, self._token, call)
                member, wait = self.after(member), self.patience(silences)
                continue
            if outcome.error is None:
                outcome.member.trouble, outcome.member.hopeless = "", False
                if copies.waits_for(self._member):
                    self._use(outcome.member, "no answer in time")
                self.outage.ended()
                return outcome.response
            fault, text = judge(outcome.error, has_user=self.has_user), describe(outcome.error)
            match fault:
                case Fault.RENEW if renewals < 3 and name != "Authenticate":
                    renewals += 1
                    await self.renew(outcome.token, deadline)
                    member, wait = outcome.member, 0.0
                case Fault.ELSEWHERE | Fault.HOPELESS:
                    silences += is_silence(outcome.error)
                    if tally is not None:
                        tally.doubt = True
                    self.leave(outcome.member, text, hopeless=fault is Fault.HOPELESS)
                    failures += 1
                    if all(each.hopeless for each in self._members):
                        raise self._unreachable(name, started, copies)
                    wait = 0.0
                    if failures % len(self._members) == 0:
                        self.outage.failed("; ".join(self._troubles()))
                        wait = pause * self._rng.uniform(0.5, 1.0)
                        pause = min(2 * pause, LONGEST_PAUSE)
                case _:
                    raise EtcdRefusedError(
                        f"etcd at {outcome.member.address} refused {name}: {text}",
                        fault,
                        final=is_final(outcome.error, fault),
                    )

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
        first, last = LOSING_VERSIONS
        if first <= version <= last and str(self.endpoint) not in _warned:
            _warned.add(str(self.endpoint))
            logger.warning(
                "etcd at %s is version %s, which may lose data when a member is killed (etcd issue 13766): "
                "upgrade the members of %s to 3.5.3 or newer",
                self._member.address,
                status.version,
                self.endpoint,
            )

    async def aclose(self) -> None:
        """Close every channel; calls that get no answer in time end with RendezvousConnectionError."""
        self.closed = True
        if in_child():
            return
        try:
            await self.under_way.drain(LAST_ANSWERS)
        finally:
            for member in self._members:
                await member.aclose()
        await self.under_way.aclose(LAST_ANSWERS)

    def _troubles(self) -> list[str]:
        return [f"{member.address}: {member.trouble or 'not asked'}" for member in self._members]

    def _unreachable(self, name: str, started: float, copies: Copies) -> RendezvousConnectionError:
        for member in self._members:
            if copies.waits_for(member):
                member.trouble = "no answer in time"
        tried = self._troubles()
        final = all(member.hopeless for member in self._members)
        seconds = clock.now() - started
        return RendezvousConnectionError(
            f"no usable answer from {self.endpoint} to {name} in {seconds:.1f} s", tried, final=final
        )
