"""The client of a cluster: one gRPC channel for each member, one of them in use, and the retries when it is silent.

Every member has its own channel. With a list of members in one gRPC target, names would not be allowed, a frozen member
would be dropped only after 8 s of missed pings, and errors would not name the member.

A call without an answer within 0.15 of ``call_timeout`` (0.3 s by default) is also sent to the next member, and so on,
for ``connect_timeout`` in total. The first answer wins. If the member in use has not answered by then, the one that did
becomes the member in use. A member is asked again even if it still owes an answer: a follower that forwarded a request
to a dead leader holds it for seconds, but answers a new request as soon as there is a new leader. An election takes one
to two seconds, so the timeout doubles only after three silent rounds: more requests do not help a slow cluster. Whether
a write may be sent again is up to the caller (see commits.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
from aetcd import rpc

from rendezvous_async.aio import clock
from rendezvous_async.backends.driver import closed_error
from rendezvous_async.backends.etcd.bridge import Bridge, TlsFiles
from rendezvous_async.backends.etcd.bridge_channel import BridgeChannel
from rendezvous_async.backends.etcd.calls import Calls
from rendezvous_async.backends.etcd.copies import Copies
from rendezvous_async.backends.etcd.faults import (
    EtcdFault,
    EtcdRefusedError,
    describe,
    is_final,
    is_silence,
    judge,
)
from rendezvous_async.backends.etcd.forks import Owner, may_use_grpc
from rendezvous_async.backends.etcd.options import EtcdOptions
from rendezvous_async.backends.etcd.transport import open_channel
from rendezvous_async.backends.outage import Outage
from rendezvous_async.errors import RendezvousConnectionError
from rendezvous_async.settings import Endpoint, format_address

__all__ = ["CallTrail", "ClusterClient", "ClusterMember"]

logger = logging.getLogger("rendezvous_async.etcd")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
MAX_DOUBLINGS = 5
PATIENCE = 0.15
"""The fraction of ``call_timeout`` after which the next member is also asked."""
QUICK_ROUNDS = 3
"""Rounds before members get more time: 2.7 s with three members; an election takes up to 2 s."""
MAX_SLOWDOWN = 3
"""Upper bound on the doublings of that time."""
SHORTEST_PATIENCE = 0.25
"""Lower bound in seconds, so that a busy machine or a slow disk is not asked twice."""
LAST_ANSWERS = 0.2
"""Seconds that pending calls get when the driver is closed; then they are cancelled."""
OLDEST_VERSION = (3, 4)
LOSING_VERSIONS = ((3, 5, 0), (3, 5, 2))
"""The range of versions that may lose data when a member is killed (etcd issue 13766)."""
ORDERLY_VERSION = (3, 5, 8)
"""Since this version, progress on a watch stream is sent after all events that it covers."""

_warned: set[str] = set()
"""The endpoints for which this process has logged a version warning."""


class CallTrail:
    """The record of the attempts at one call.

    Attributes:
        doubt: Whether an attempt went unanswered, so that it may still take effect later.
    """

    doubt = False


class ClusterMember:
    """One member of the cluster and its channel, which is opened on first use."""

    def __init__(self, address: str, tls: TlsFiles | None, bridge: Bridge | None) -> None:
        self.address = address
        self.trouble = ""
        self.hopeless = False
        self._tls = tls
        self._bridge = bridge
        self._channel: Any = None
        self._methods: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<ClusterMember {self.address}{' ' + self.trouble if self.trouble else ''}>"

    def method(self, name: str) -> Any:
        """Return the stub of one of etcd's calls on this member."""
        if self._channel is None:
            target = f"dns:///{self.address}"
            bridge = self._bridge
            self._channel = open_channel(target, self._tls) if bridge is None else BridgeChannel(bridge, target)
            for stub in (rpc.KVStub, rpc.LeaseStub, rpc.WatchStub, rpc.AuthStub, rpc.MaintenanceStub):
                self._methods.update(vars(stub(self._channel)))
        return self._methods[name]

    async def aclose(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
            self._methods.clear()


class ClusterClient:
    """The members of a cluster.

    Args:
        endpoint: The addresses of the members.
        options: Timeouts, user and password.
        tls: For TLS; None without.
        rng: Picks the first member and the jitter of the backoff.
        outage: Where it is reported that no member answers.

    Attributes:
        member: The member in use.
        token: The auth token in use.
        owner: The process that made the client.
        missed_answers: Counts attempts that got no usable answer.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: EtcdOptions,
        tls: TlsFiles | None,
        rng: Random,
        outage: Outage | None = None,
    ) -> None:
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
        self.owner = Owner()
        self._bridge = None if may_use_grpc() else Bridge(tls)
        self._members = [ClusterMember(format_address(*host), tls, self._bridge) for host in endpoint.hosts]
        self.member = rng.choice(self._members)
        self.token: str | None = None
        self._moved: list[Callable[[], None]] = []
        self._renewing = anyio.Lock()

    def __repr__(self) -> str:
        return f"<ClusterClient {self.endpoint} via {self.member.address}>"

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    @property
    def trouble(self) -> str | None:
        """Why no member can be used; None if one can be, as far as known."""
        return "; ".join(self._troubles()) if all(member.trouble for member in self._members) else None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call: fail fast without a leader, and the auth token."""
        leader = ("hasleader", "true")
        return (leader,) if self.token is None else (leader, ("token", self.token))

    @property
    def has_user(self) -> bool:
        return self._user is not None

    def on_move(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever the member in use changes."""
        self._moved.append(callback)

    def leave(self, member: ClusterMember, trouble: str, *, hopeless: bool = False) -> None:
        """Note why a member failed, and switch to the next one if it was in use."""
        self.missed_answers += 1
        member.trouble, member.hopeless = trouble, hopeless
        if member is self.member and not self.closed:
            self._use(self.after(member), trouble)

    def after(self, member: ClusterMember) -> ClusterMember:
        """Return the member to ask after this one."""
        return self._members[(self._members.index(member) + 1) % len(self._members)]

    def patience(self, silences: int) -> float:
        """Return the seconds to wait for a member, after ``silences`` missing answers, before asking another.

        A single member is asked again only at the deadline of its call.
        """
        if len(self._members) == 1:
            return self.connect_timeout
        return self.ask_next_after * self.slowness(silences)

    def slowness(self, silences: int) -> float:
        """Return the factor by which to wait longer after ``silences`` missing answers."""
        return 2.0 ** min(max(0, silences // len(self._members) + 1 - QUICK_ROUNDS), MAX_SLOWDOWN)

    def _use(self, member: ClusterMember, trouble: str) -> None:
        """Switch to this member because of trouble with the one in use."""
        before, self.member = self.member, member
        if member is not before:
            before.trouble = trouble
            text = "etcd member %s: %s; switching to %s"
            logger.info(text, before.address, trouble, member.address, extra=self.outage.fields)
            for callback in self._moved:
                callback()

    async def call(
        self, name: str, request: Any, *, trail: CallTrail | None = None, deadline: float | None = None
    ) -> Any:
        """Make one of etcd's calls, and retry it on other members until one answers.

        Raises:
            EtcdRefusedError: etcd refused it.
            RendezvousConnectionError: No usable answer within ``connect_timeout``, or until ``deadline``.
        """
        self.owner.check()
        started = clock.now()
        if deadline is None:
            deadline = started + self.connect_timeout
        copies = Copies(self.under_way)
        failures = renewals = silences = 0
        pause = FIRST_PAUSE
        member = self.member
        wait = 0.0
        while True:
            wait = min(wait, deadline - clock.now())
            outcome = await copies.first(wait) if wait > 0 else None
            if outcome is None:
                # Ask the next member; those asked before may still answer.
                left = deadline - clock.now()
                if self.closed:
                    raise closed_error("etcd")
                if left <= 0:
                    raise self._unreachable(name, started, copies)
                if copies:
                    silences += wait > 0
                    self.missed_answers += 1
                    if trail is not None:
                        trail.doubt = True
                    if wait > 0 and silences % len(self._members) == 0:
                        self.outage.failed(f"no member has answered for {clock.now() - started:.1f} s")
                seconds = self.call_timeout * 2 ** min(silences // len(self._members), MAX_DOUBLINGS)
                self.calls += 1
                call = member.method(name)(request, timeout=min(seconds, left), metadata=self.metadata)
                copies.send(member, self.token, call)
                member, wait = self.after(member), self.patience(silences)
                continue
            if outcome.error is None:
                outcome.member.trouble, outcome.member.hopeless = "", False
                if copies.waits_for(self.member):
                    self._use(outcome.member, "no answer in time")
                self.outage.ended()
                return outcome.response
            fault, text = judge(outcome.error, has_user=self.has_user), describe(outcome.error)
            match fault:
                case EtcdFault.RENEW if renewals < 3 and name != "Authenticate":
                    renewals += 1
                    await self.renew(outcome.token, deadline)
                    member, wait = outcome.member, 0.0
                case EtcdFault.ELSEWHERE | EtcdFault.HOPELESS:
                    silences += is_silence(outcome.error)
                    if trail is not None:
                        trail.doubt = True
                    self.leave(outcome.member, text, hopeless=fault is EtcdFault.HOPELESS)
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
        """Get a new auth token, unless another task has already replaced the stale one."""
        if self._user is None:
            return
        async with self._renewing:
            if self.token != stale:
                return
            self.token = None
            request = rpc.AuthenticateRequest(name=self._user, password=self._password)
            try:
                answer = await self.call("Authenticate", request, deadline=deadline)
            except EtcdRefusedError as error:
                if "authentication is not enabled" in str(error):
                    return
                raise
            self.token = answer.token

    async def start(self, deadline: float) -> None:
        """Log in and check the server's version."""
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
                f"etcd at {self.member.address} is version {status.version or 'unknown'}; {oldest} or newer is needed",
                final=True,
            )
        first, last = LOSING_VERSIONS
        if first <= version <= last and str(self.endpoint) not in _warned:
            _warned.add(str(self.endpoint))
            logger.warning(
                "etcd at %s is version %s, which may lose data when a member is killed (etcd issue 13766): "
                "upgrade the members of %s to 3.5.3 or newer",
                self.member.address,
                status.version,
                self.endpoint,
                extra=self.outage.fields,
            )

    async def aclose(self) -> None:
        """Close every channel; pending calls fail with RendezvousConnectionError after a short wait."""
        self.closed = True
        if not self.owner.is_here:
            return
        try:
            await self.under_way.drain(LAST_ANSWERS)
        finally:
            if self._bridge is not None:
                await self._bridge.aclose()
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
