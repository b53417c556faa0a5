"""The counterpart of the classic's etcd backend: a state on etcd v3 that expires some time after its last write."""

from __future__ import annotations

from typing import Any

from rendezvous_async.backends.base import OUT_AFTER, Backend, Condition, Put, Session, Token
from rendezvous_async.backends.classic import KEY, close_envelope, open_envelope
from rendezvous_async.errors import RendezvousSessionError
from rendezvous_async.settings import Endpoint
from rendezvous_async.sync.backend import READ_TIMEOUT, EndpointRendezvousBackend
from rendezvous_async.sync.options import endpoint_options, find_endpoint, read_timeout
from rendezvous_async.sync.params import RendezvousParameters
from rendezvous_async.sync.store import BlockingStore

__all__ = ["EtcdRendezvousBackend", "create_backend"]

STATE_TTL = 7200


class EtcdRendezvousBackend(EndpointRendezvousBackend):
    """The state of one run on an etcd cluster.

    Args:
        endpoint: For example ``etcd://h1:2379,h2:2379``.
        run_id: The run's id.
        key_prefix: The prefix of all keys.
        ttl: Seconds for which the state is kept after its last write; None or 0 means two hours.
        read_timeout: Seconds for one call.
        **options: The endpoint's options.
    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        run_id: str,
        key_prefix: str | None = None,
        ttl: int | None = None,
        *,
        read_timeout: float = READ_TIMEOUT,
        **options: Any,
    ) -> None:
        if key_prefix:
            options["namespace"] = key_prefix
        super().__init__(endpoint, run_id, read_timeout=read_timeout, **options)
        self._ttl = float(ttl if ttl and ttl > 0 else STATE_TTL)
        self._session: Session | None = None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        return self._call(self._set_leased, state, token)

    async def _set_leased(self, backend: Backend, state: bytes, token: Any) -> tuple[bytes, Any, bool] | None:
        """Set the state under a session of this process that only the next write keeps alive."""
        if token is None or isinstance(token, Token):
            session = await self._renew(backend)
            commit = await backend.commit(Put(KEY, close_envelope(state), session.id), when=[Condition(KEY, token)])
            if commit.won:
                return state, commit.token, True
        entry = await backend.get(KEY)
        return None if entry is None else (open_envelope(entry), entry.token, False)

    async def _renew(self, backend: Backend) -> Session:
        if self._session is not None:
            try:
                await self._session.keep_alive()
                return self._session
            except RendezvousSessionError:
                pass  # The state was not written for its whole TTL.
        self._session = await backend.open_session(self._ttl / OUT_AFTER)
        return self._session


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, BlockingStore]:
    """Return a backend on etcd, and a store on the same connection that outlives every round.

    Args:
        params: The options are ``protocol`` (``http`` or ``https``), ``ca_cert``, ``ssl_cert``, ``ssl_cert_key``,
            ``read_timeout`` (60) and all others of ``create_handler``.

    Raises:
        ValueError: An option is invalid.
        RendezvousConnectionError: etcd cannot be reached.
    """
    endpoint = find_endpoint("etcd", params)
    options = endpoint_options("etcd", params, endpoint)
    seconds = read_timeout(params).total_seconds()
    backend = EtcdRendezvousBackend(endpoint, params.run_id, read_timeout=seconds, **options)
    return backend, backend.make_store()
