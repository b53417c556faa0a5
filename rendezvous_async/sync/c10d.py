"""The counterpart of the classic's c10d backend: a state on ``tcp://`` or ``file://``, or inside any store.

``create_backend`` makes the former, which needs no torch. ``C10dRendezvousBackend`` wraps an existing store, torch's or
this package's.
"""

from __future__ import annotations

import secrets
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rendezvous_async.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rendezvous_async.settings import check_id, parse_endpoint
from rendezvous_async.sync.backend import EndpointRendezvousBackend
from rendezvous_async.sync.interface import RendezvousBackend
from rendezvous_async.sync.options import (
    endpoint_options,
    find_endpoint,
    kind_of,
    read_timeout,
    store_type,
)
from rendezvous_async.sync.params import RendezvousParameters
from rendezvous_async.sync.store import BlockingStore

__all__ = ["C10dRendezvousBackend", "create_backend"]


class C10dRendezvousBackend(RendezvousBackend):
    """A run's state inside a store.

    Each write stores a unique number, so two writers of the same bytes never both win, and an old token never becomes
    valid again.

    Args:
        store: Any store with ``check``, ``get`` and ``compare_set``, torch's or this package's.
        run_id: The run's id.
    """

    def __init__(self, store: Any, run_id: str) -> None:
        self._store = store
        self._key = f"torch.rendezvous.{check_id('run_id', run_id)}"

    def __repr__(self) -> str:
        return f"<C10dRendezvousBackend {self._key} in {self._store!r}>"

    @property
    def name(self) -> str:
        return "c10d"

    def get_state(self) -> tuple[bytes, Any] | None:
        with _store_errors():
            # get() would wait for a missing key.
            stored = self._store.get(self._key) if self._store.check([self._key]) else None
        return None if stored is None else (self._decode(stored), stored)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        if token is None or (isinstance(token, bytes) and token):
            stored = f"{secrets.token_hex(8)}:{b64encode(state).decode()}"
            expected = "" if token is None else token.decode("ascii", "replace")
            with _store_errors():
                found = self._store.compare_set(self._key, expected, stored)
            if found == stored.encode():
                return state, found, True
        current = self.get_state()
        return None if current is None else (*current, False)

    def _decode(self, stored: bytes) -> bytes:
        try:
            _, state = stored.split(b":")
            return b64decode(state, validate=True)
        except ValueError as error:
            raise RendezvousStateError(f"the classic state at {self._key!r} is damaged: {error}") from error


@contextmanager
def _store_errors() -> Iterator[None]:
    """Map a store's errors to RendezvousConnectionError."""
    try:
        yield
    except (ValueError, RuntimeError, TimeoutError) as error:
        raise RendezvousConnectionError(f"the rendezvous backend's store failed: {error}") from error


def create_backend(params: RendezvousParameters) -> tuple[EndpointRendezvousBackend, BlockingStore]:
    """Return a backend on ``tcp://`` or ``file://``, and a store on the same connection that outlives every round.

    Args:
        params: The options are ``store_type`` (``tcp``, the default, or ``file``), ``read_timeout`` (60), ``is_host``
            (by default detected) and all others of ``create_handler``. For ``file`` the endpoint is a directory that
            all nodes share; without one, a temporary directory.

    Raises:
        ValueError: An option is invalid.
        RendezvousConnectionError: The endpoint cannot be reached.
    """
    kind = "file" if kind_of(params) == "file" else store_type(params)
    if kind == "file" and not params.endpoint:
        try:
            endpoint = parse_endpoint(f"file://{tempfile.mkdtemp()}")
        except OSError as error:
            raise RendezvousError(f"cannot create a temporary directory for the store: {error}") from error
    else:
        endpoint = find_endpoint(kind, params)
    options = endpoint_options(kind, params, endpoint)
    seconds = read_timeout(params).total_seconds()
    backend = EndpointRendezvousBackend(endpoint, params.run_id, read_timeout=seconds, **options)
    return backend, backend.make_store()
