"""One connection to the server for everything that a client does, made anew whenever it breaks.

Many calls are under way at a time. Each waits here until it is answered, however often the connection breaks meanwhile:
on a new connection sessions are resumed first, then watches go on from where they were, then every call without an
answer is sent again. Reads may be done twice; a commit carries a number by which the server knows it again. A caller
who will not wait says so (``Patience``) or cancels; its call is dropped and nobody else notices.

Only a definite failure (bad secret, TLS, version, a limit) is raised to the callers; then the channel tries on, and the
next call waits for the next attempt.

The one task here dials. It belongs to the channel from ``start`` to ``aclose``; nobody else's scopes are around it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec

from rendezvous_async.backends.base import Session, Token, closed_error
from rendezvous_async.backends.outage import Outage
from rendezvous_async.backends.tcp import wire
from rendezvous_async.backends.tcp.auth import Secret, new_nonce
from rendezvous_async.backends.tcp.calls import Call, CommitNumbers
from rendezvous_async.backends.tcp.dialing import Backoff, Dialer, DialError
from rendezvous_async.backends.tcp.following import Follower, Followers
from rendezvous_async.backends.tcp.link import Link, RefusedError
from rendezvous_async.clock import Alarm, Patience, lease_now
from rendezvous_async.errors import RendezvousConnectionError

__all__ = ["Channel"]

_log = logging.getLogger("rendezvous_async.connection")

STALL_TIMEOUT = 3.0
LONGEST_STALL = 15.0
_CLOSE_SECONDS = 1.0
_LASTED = 0.1


class Channel:
    """Calls, sessions and watches over one connection at a time.

    Args:
        dialer: Makes connections.
        secret: What both sides must prove to know.
        rng: For the jitter of reconnects.
        prepare: Awaited before each round of dialling: a host's chance to start the server.
        stall_timeout: Seconds without a word from the server after which the connection counts as dead.
        outage: Told of every failed attempt to connect.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        secret: Secret | None = None,
        rng: random.Random | None = None,
        prepare: Callable[[DialError | None], Awaitable[None]] | None = None,
        stall_timeout: float = STALL_TIMEOUT,
        outage: Outage | None = None,
    ) -> None:
        self.dialer = dialer
        self.link: Link | None = None
        self.current_at = 0.0
        self.closed = False
        self.connections = 0
        self.commits = CommitNumbers()
        self._secret = secret
        self._backoff = Backoff(rng or random.Random(secrets.randbits(64)))
        self._prepare = prepare
        self.outage = outage or Outage("a client", f"tcp://{dialer}")
        self._stall_timeout = self._patience = stall_timeout
        self._linked_at = 0.0
        self._looked_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._client = secrets.token_hex(8)
        self._last_id = 0
        self._revision = 0
        self._calls: dict[int, Call] = {}
        # What the channel itself asks, on this connection only: when it was sent, and who takes the answer.
        self._errands: dict[int, tuple[float, Callable[[wire.Answer], None]]] = {}
        self._sessions: dict[str, Session] = {}
        self._followers = Followers()
        self._waiters: set[asyncio.Future[None]] = set()
        self._alarm = Alarm(self._look)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "connected" if self.link is not None else "connecting"
        return f"<Channel to {self.dialer} {state} calls={len(self._calls)} watches={len(self._followers)}>"

    def start(self) -> None:
        """Begin to connect."""
        # The channel's one owner task: entered and left in itself, referenced here, awaited by aclose().
        self._task = asyncio.create_task(self._run(), name=f"channel to {self.dialer}")  # noqa: TID251

    async def connected(self) -> None:
        """Wait for a connection.

        Raises:
            RendezvousConnectionError: It was refused for good.
        """
        while self.link is None:
            self._check_open()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def aclose(self) -> None:
        """Close the connection. Calls under way and watches fail with RendezvousConnectionError."""
        if self.closed:
            return
        self.closed = True
        self._fail_all(lambda: closed_error("tcp"))
        self._alarm.cancel()
        link, self.link = self.link, None
        with anyio.CancelScope(shield=True):  # it is short, and half of it would leave a task or a socket behind
            if link is not None:
                link.send(wire.Goodbye())
                link.close()
                await asyncio.wait((link.lost,), timeout=_CLOSE_SECONDS)
                link.abort()
                await asyncio.wait((link.lost,), timeout=_CLOSE_SECONDS)
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait((self._task,))

    # Calls

    def next_id(self) -> int:
        """Return an id for a request."""
        self._last_id += 1
        return self._last_id

    async def call(self, id: int, request: wire.Request, patience: Patience | None = None) -> wire.Answer:
        """Send a request and return its answer, however many connections that takes.

        Raises:
            RendezvousConnectionError: The server refused us for good, the channel was closed, or patience is at an end.
        """
        self._check_open()
        future: asyncio.Future[wire.Answer] = self._loop.create_future()
        call = self._calls[id] = Call(future, request, self._loop.time(), patience)
        try:
            if self.link is not None:
                if len(self._calls) == 1:
                    self.link.send_now(request)
                else:  # others are under way: this one goes out with those that come in the same turn of the loop
                    self.link.send(request)
            if self._alarm.at is None or call.until < self._alarm.at:
                self._alarm.set_by(min(call.until, call.sent_at + self._stall_timeout / 4))
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:  # It came in that moment.
                self._drop(future.result())
            raise
        finally:
            self._calls.pop(id, None)

    def _drop(self, answer: wire.Answer) -> None:
        """Pass over an answer that nobody waits for any more; a session that was opened is ended again.

        If the connection is lost before it is told, the server ends it for that.
        """
        if isinstance(answer, wire.Opened) and self.link is not None:
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

    def drop_session(self, session: Session) -> None:
        """Do not care for this session any more."""
        self._sessions.pop(session.id, None)

    def follow(self, follower: Follower) -> None:
        """Start a watch, and go on with it on every new connection."""
        self._start_following(follower)
        self._look_soon()

    def follow_with(self, id: int, follower: Follower, sent_at: float) -> None:
        """Take it that the request with this id, which opens a session and is sent now, starts a watch as well."""
        self._followers.begin(id, follower, sent_at)

    def unfollow(self, follower: Follower) -> None:
        """End a watch."""
        id = self._followers.end(follower)
        if id is None:
            return
        call = self._calls.get(id)
        if call is not None and isinstance(call.request, wire.OpenSession):  # It may have to be sent again.
            call.request = msgspec.structs.replace(call.request, names=())
        if self.link is not None:
            self.link.send(wire.Unfollow(id))

    def _start_following(self, follower: Follower) -> None:
        id = self.next_id()
        self._followers.begin(id, follower, self._loop.time())
        if self.link is not None:
            self.link.send(follower.follow_request(id))

    # What comes in

    def _on_answer(self, answer: wire.Answer) -> None:
        if isinstance(answer, wire.Changed):
            self._followers.receive(answer.id, answer.listing)
            return
        call = self._calls.get(answer.id)
        if call is not None:
            self.current_at = call.sent_at
            if isinstance(answer, wire.Opened):
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

    def _on_opened(self, opened: wire.Opened) -> None:
        """See to the watch that was to start with a session; if the server has not started it, that is asked for."""
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
                    _log.exception("connecting to %s failed in an unforeseen way", self.dialer)
                self.outage.failed(repr(error))
                self._reject(f"cannot connect to {self.dialer}: {error!r}", final=False)
            else:
                failure = None
                await self._use(link)
            await anyio.sleep(self._backoff.next())

    def _make_link(self) -> Link:
        self.connections += 1
        scope = "" if self._secret is None else self._secret.scope
        hello = wire.Hello(wire.PROTOCOL, self._client, self.connections, self._revision, new_nonce(), scope)
        return Link(hello, self._secret, self._on_answer)

    async def _use(self, link: Link) -> None:
        welcome = link.welcomed.result()
        self.outage.ended()
        _log.debug("connected to %s (connection %d)", self.dialer, self.connections)
        self._linked_at = self._loop.time()
        try:
            self._resume(link, welcome.epoch)
            await asyncio.wait((link.lost,))
        finally:
            link.abort()
            if self.link is link:
                self.link = None
        if self._loop.time() - self._linked_at > _LASTED:
            self._backoff.reset()
        reason = link.why or ConnectionError("the connection was closed")
        _log.debug("lost the connection to %s: %s", self.dialer, reason)
        self.dialer.attempts.add(f"{self.dialer}: {reason}")
        for follower, _ in self._followers:
            follower.wake()
        if isinstance(link.why, RefusedError):
            self._reject(str(link.why), link.why.final)

    def _resume(self, link: Link, epoch: str) -> None:
        """Go on, on a new connection, with everything that was under way; sessions first, since calls may need them."""
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
                # Its owner counts itself out already: nobody may believe that it is still in.
                self._errand(wire.EndSession(self.next_id(), session.id), partial(self._session_ended, session))
        for follower, id in self._followers:
            if id not in self._calls:  # Otherwise it starts with the session that is still to be opened.
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

    def _session_ended(self, session: Session, _: wire.Answer) -> None:
        self._lose(session)

    def _lose(self, session: Session) -> None:
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
            follower.fail(make_error(), ended=False)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(make_error())

    # Calls that take too long, and a connection that says nothing

    def _look_soon(self) -> None:
        if self._alarm.at is None:
            self._alarm.set_by(self._loop.time() + self._stall_timeout / 4)

    def _look(self, now: float, late: float) -> None:
        """End the calls whose time is over; ping a silent server, give up on one that does not even answer that."""
        for call in self._calls.values():
            if call.until <= now:
                call.give_up()
        link = self.link
        if link is not None:
            silence = now - link.heard_at
            if now - self._linked_at > 4 * self._patience:
                self._patience = self._stall_timeout
            # After a stall of this loop answers may wait to be read; those that had come at the last look were read.
            until = now if late < self._stall_timeout / 4 else self._looked_at
            if until - link.heard_at > self._patience:
                # A server that is only slow is not made faster by clients that all come again.
                self._patience = min(2 * self._patience, max(self._stall_timeout, LONGEST_STALL))
                link.abort(ConnectionError(f"nothing was heard for {silence:.1f} s"))
            elif not self._errands and max(silence, now - self.current_at) > self._stall_timeout / 2:
                self._errand(wire.Ping(self.next_id()), lambda _: None)
        self._looked_at = now
        if self._calls or self._sessions or self._followers:
            waiting = [call.until for call in self._calls.values() if not call.future.done()]
            self._alarm.set_by(min([now + self._stall_timeout / 4, *waiting]))
