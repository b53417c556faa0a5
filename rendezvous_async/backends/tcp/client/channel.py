"""One connection to the server for everything that a client does, replaced whenever it breaks.

Many calls are in flight at a time. Each waits here until it is answered, however often the connection breaks. On a new
connection sessions are resumed first, then watches continue from their positions, then every unanswered call is sent
again. Reads may be repeated; a commit carries a number by which the server recognises a repeat. A caller can limit its
wait with a ``Deadline`` or cancel; its call is dropped, and no other call is affected.

Only definite failures (bad secret, TLS, version, a limit) are raised to callers. The channel keeps trying after them,
and the next call waits for the next attempt.

One task dials. The channel owns it from ``start`` to ``aclose``, outside every caller's cancel scope.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec

from rendezvous_async.aio.clock import Alarm, lease_now
from rendezvous_async.aio.deadline import Deadline
from rendezvous_async.backends.driver import Sink, closed_error
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.session import Session
from rendezvous_async.backends.system import system
from rendezvous_async.backends.tcp import versions, wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce
from rendezvous_async.backends.tcp.client.calls import CommitNumbers, PendingCall
from rendezvous_async.backends.tcp.client.dialing import Backoff, Dialer, DialError
from rendezvous_async.backends.tcp.client.following import Followers, TcpSubscription
from rendezvous_async.backends.tcp.client.link import Link, RefusedError
from rendezvous_async.backends.tcp.client.silence import Silence
from rendezvous_async.backends.values import Token
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Channel"]

_log = logging.getLogger("rendezvous_async.connection")

_LASTED = 0.1


class Channel:
    """Calls, sessions and watches over one connection at a time.

    Args:
        dialer: Makes connections.
        secret: The secret that both sides must prove to know.
        rng: For the jitter of the backoff.
        prepare: Awaited before each round of dialling, so that a host can start the server.
        stall_timeout: Seconds without a byte from the server after which the connection counts as dead.
        outage: Records every failed attempt to connect.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        secret: Secret | None = None,
        rng: random.Random | None = None,
        prepare: Callable[[DialError | None], Awaitable[None]] | None = None,
        stall_timeout: float,
        outage: Outage | None = None,
    ) -> None:
        self.dialer = dialer
        self.link: Link | None = None
        self.current_at = 0.0
        self.closed = False
        self.connections = 0
        self.commits = CommitNumbers()
        self.next_id = itertools.count(1).__next__
        self._secret = secret
        self._backoff = Backoff(rng or random.Random(system().random_bytes(8)))
        self._prepare = prepare
        self.outage = outage or Outage("a client", f"tcp://{dialer}")
        self._silence = Silence(stall_timeout)
        self._loop = asyncio.get_running_loop()
        self._client = system().random_bytes(8).hex()
        self._revision = 0
        self._calls: dict[int, PendingCall] = {}
        # The channel's own requests, on this connection only: when each was sent, and what takes the answer.
        self._errands: dict[int, tuple[float, Callable[[wire.Answer], None]]] = {}
        self._sessions: dict[str, Session] = {}
        self._followers = Followers()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._alarm = Alarm(self._look)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "connected" if self.link is not None else "connecting"
        return f"<Channel to {self.dialer} {state} calls={len(self._calls)} watches={len(self._followers)}>"

    def start(self) -> None:
        """Begin to connect."""
        # The channel's only task: referenced here, awaited by aclose().
        self._task = asyncio.create_task(self._run(), name=f"channel to {self.dialer}")  # noqa: TID251

    async def connected(self) -> None:
        """Wait for a connection.

        Raises:
            RendezvousConnectionError: The server refused this client.
        """
        while self.link is None:
            self._check_open()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]

    async def aclose(self) -> None:
        """Close the connection. Calls in flight and watches fail with RendezvousConnectionError."""
        if self.closed:
            return
        self.closed = True
        link, self.link = self.link, None
        self._fail_all(lambda: closed_error("tcp"))
        self._alarm.cancel()
        with anyio.CancelScope(shield=True):  # short; interrupted, it would leak a task or a socket
            if link is not None:
                await link.say_goodbye()
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait((self._task,))

    # Calls

    async def call(self, id: int, request: wire.Request, deadline: Deadline | None = None) -> wire.Answer:
        """Send a request and return its answer, across reconnects.

        Raises:
            RendezvousConnectionError: The server refused this client, the channel was closed, or the deadline passed.
        """
        self._check_open()
        future: asyncio.Future[wire.Answer] = self._loop.create_future()
        call = self._calls[id] = PendingCall(future, request, self._loop.time(), deadline)
        try:
            if self.link is not None:
                self.link.send(request)
            if self._alarm.at is None or call.until < self._alarm.at:
                self._alarm.set_by(min(call.until, call.sent_at + self._silence.timeout / 4))
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:  # answered in that moment
                self._drop(future.result())
            raise
        finally:
            self._calls.pop(id, None)

    def _drop(self, answer: wire.Answer) -> None:
        """Discard an answer that no caller waits for, and end the session if it opened one.

        If the connection is lost first, the server ends the session on its own.
        """
        if isinstance(answer, wire.SessionOpened) and self.link is not None:
            self._errand(wire.EndSession(self.next_id(), answer.session), lambda _: None)

    def saw(self, token: Token) -> None:
        """Remember the highest revision."""
        if token.revision > self._revision:
            self._revision = token.revision

    # Sessions and watches

    def keep_session(self, session: Session) -> None:
        """Resume this session on every new connection."""
        self._sessions[session.id] = session
        self._look_soon()

    def drop_session(self, session: str) -> None:
        """Stop resuming this session."""
        self._sessions.pop(session, None)

    def follow(self, names: tuple[str, ...], after: Token | None, sink: Sink) -> TcpSubscription:
        """Start a watch, and continue it on every new connection."""
        self._check_open()
        follower = TcpSubscription(self, names, after, sink)
        self._start_following(follower)
        self._look_soon()
        return follower

    def follow_with(self, id: int, names: tuple[str, ...], sink: Sink) -> TcpSubscription:
        """Start a watch with the request of this id, which opens a session and which the caller sends now."""
        follower = TcpSubscription(self, names, None, sink)
        self._followers.begin(id, follower, self._loop.time())
        return follower

    def unfollow(self, follower: TcpSubscription) -> None:
        """End a watch."""
        id = self._followers.end(follower)
        if id is None:
            return
        call = self._calls.get(id)
        if call is not None and isinstance(call.request, wire.OpenSession):  # it may be sent again
            call.request = msgspec.structs.replace(call.request, names=())
        if self.link is not None:
            self.link.send(wire.Unfollow(id))

    def _start_following(self, follower: TcpSubscription) -> None:
        id = self.next_id()
        self._followers.begin(id, follower, self._loop.time())
        if self.link is not None:
            self.link.send(follower.request(id))

    # Answers

    def _on_answer(self, answer: wire.Answer) -> None:
        if isinstance(answer, wire.Changed):
            self._followers.receive(answer.id, answer.listing)
            return
        call = self._calls.get(answer.id)
        if call is not None:
            self.current_at = call.sent_at
            if isinstance(answer, wire.SessionOpened):
                self._on_opened(answer)
            if call.future.done():
                self._drop(answer)
            else:
                call.future.set_result(answer)
        elif answer.id in self._errands:
            self.current_at, take = self._errands.pop(answer.id)
            take(answer)
        elif not (isinstance(answer, wire.Failed) and self._followers.refuse(answer)):
            self._drop(answer)

    def _on_opened(self, opened: wire.SessionOpened) -> None:
        """Serve the watch that starts with a session; request it separately if the server did not start it."""
        follower = self._followers.at(opened.id)
        if follower is None:
            return
        if opened.listing is not None:
            self._followers.receive(opened.id, opened.listing)
        else:
            self._start_following(follower)

    # Connecting

    async def _run(self) -> None:
        failure: DialError | None = None
        while True:
            try:
                if self._prepare is not None:
                    await self._prepare(failure)
                link = await self.dialer.dial(self._make_link)
            except DialError as error:
                failure = error
                if not error.final:
                    self.outage.failed("; ".join(error.causes) or str(error))
                if error.definite:
                    self._reject(str(error), error.final)
            except Exception as error:
                if not self.outage.cause:
                    _log.exception("connecting to %s failed unexpectedly", self.dialer, extra=self.outage.fields)
                self.outage.failed(repr(error))
                self._reject(f"cannot connect to {self.dialer}: {error!r}", final=False)
            else:
                failure = None
                await self._use(link)
            await anyio.sleep(self._backoff.next())

    def _make_link(self) -> Link:
        self.connections += 1
        scope = "" if self._secret is None else self._secret.scope
        hello = wire.Hello(versions.PROTOCOLS, self._client, self.connections, self._revision, new_nonce(), scope)
        return Link(hello, self._secret, self._on_answer)

    async def _use(self, link: Link) -> None:
        welcome = link.welcomed.result()
        self.outage.ended()
        _log.debug("connected to %s (connection %d)", self.dialer, self.connections, extra=self.outage.fields)
        self._silence.linked_at = self._loop.time()
        try:
            self._resume(link, welcome.epoch)
            await asyncio.wait((link.lost,))
        finally:
            link.abort()
            if self.link is link:
                self.link = None
        if self._loop.time() - self._silence.linked_at > _LASTED:
            self._backoff.reset()
        reason = link.why or ConnectionError("the connection was closed")
        _log.debug("lost the connection to %s: %s", self.dialer, reason, extra=self.outage.fields)
        self.dialer.attempts.add(f"{self.dialer}: {reason}")
        for follower, _ in self._followers:
            follower.interrupt()
        if isinstance(link.why, RefusedError):
            self._reject(str(link.why), link.why.final)

    def _resume(self, link: Link, epoch: str) -> None:
        """Continue all sessions, watches and calls on a new connection; sessions first, since calls may need them."""
        self.link = link
        self.dialer.attempts.clear()
        self._errands.clear()
        now = self._loop.time()
        for session in tuple(self._sessions.values()):
            if not session.id.startswith(f"{epoch}."):
                self._lose(session)
            elif lease_now() < session.deadline:
                self._errand(wire.Resume(self.next_id(), session.id), partial(self._session_resumed, session))
            else:
                # Its owner considers it expired already, so the server must not keep it.
                ending = wire.EndSession(self.next_id(), session.id, session.why_out)
                self._errand(ending, partial(self._lose, session))
        for follower, id in self._followers:
            if id not in self._calls:  # otherwise it starts with its session
                self._start_following(follower)
        for id in sorted(self._calls):
            call = self._calls[id]
            call.sent_at = now
            link.send(call.request)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _errand(self, request: wire.Resume | wire.EndSession | wire.Ping, take: Callable[[wire.Answer], None]) -> None:
        assert self.link is not None
        self._errands[request.id] = self._loop.time(), take
        self.link.send(request)

    def _session_resumed(self, session: Session, answer: wire.Answer) -> None:
        if not isinstance(answer, wire.Done):
            self._lose(session)

    def _lose(self, session: Session, _: wire.Answer | None = None) -> None:
        self._sessions.pop(session.id, None)
        session.lost.set()

    # Failing

    def _check_open(self) -> None:
        if self.closed:
            raise closed_error("tcp")

    def _reject(self, message: str, final: bool) -> None:
        lines = self.dialer.attempts.lines()
        text = f"cannot use the server at tcp://{self.dialer}: {message}"
        self._fail_all(lambda: RendezvousConnectionError(text, lines, final=final))

    def _fail_all(self, make_error: Callable[[], Exception]) -> None:
        for call in tuple(self._calls.values()):
            if not call.future.done():
                call.future.set_exception(make_error())
        for follower, _ in self._followers:
            follower.fail(make_error())
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(make_error())

    # Deadlines of calls, and a connection that is silent

    def _look_soon(self) -> None:
        if self._alarm.at is None:
            self._alarm.set_by(self._loop.time() + self._silence.timeout / 4)

    def _look(self, now: float, late: float) -> None:
        """Fail the calls past their deadline, ping a silent server, and drop a connection that stays silent."""
        for call in self._calls.values():
            if call.until <= now:
                call.give_up()
        link, timeout = self.link, self._silence.timeout
        if link is not None:
            if self._silence.is_dead(now, late, link.heard_at):
                link.abort(ConnectionError(f"the server sent nothing for {now - link.heard_at:.1f} s"))
            elif not self._errands and now - min(link.heard_at, self.current_at) > timeout / 2:
                self._errand(wire.Ping(self.next_id()), lambda _: None)
        if self._calls or self._sessions or self._followers:
            waiting = [call.until for call in self._calls.values() if not call.future.done()]
            self._alarm.set_by(min([now + timeout / 4, *waiting]))
