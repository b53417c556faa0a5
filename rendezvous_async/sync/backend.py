"""``RendezvousBackend``: the classic's view of a backend, one state behind a fencing token, for blocking code.

It is apart from what handlers keep: a key of its own in the run, for programs that were written against it.
"""

from __future__ import annotations

from typing import Any

from rendezvous_async.backends import start_backend
from rendezvous_async.backends.base import Backend, Token
from rendezvous_async.sync.portal import Lease

__all__ = ["RendezvousBackend"]


class RendezvousBackend:
    """One run's state in a backend; close it, or use it with ``with``.

    Args:
        endpoint: Of the backend, for example ``tcp://head:29400``.
        run_id: Whose state.
        **options: Of the endpoint.

    Raises:
        RendezvousConnectionError: The backend cannot be reached.
    """

    def __init__(self, endpoint: str, run_id: str, **options: Any) -> None:
        self._lease = Lease(f"the backend {endpoint} of run {run_id!r}", self._aclose)
        self._backend: Backend | None = None
        try:
            self._backend = self._lease.call(self._open, endpoint, run_id, options)
        except BaseException:
            self._lease.release()
            raise

    def __repr__(self) -> str:
        return f"<sync {self._backend!r}>"

    @property
    def name(self) -> str:
        """What kind it is."""
        return self._the_backend().name

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None if there is none.

        Raises:
            RendezvousStateError: The state is damaged.
        """
        return self._lease.call(self._the_backend().get_state)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if ``token`` is that of the current one; without a token, create it.

        Returns:
            The state that now stands, its token, and whether it is the one given; None if there is no state at all.
        """
        return self._lease.call(self._the_backend().set_state, state, token)

    def close(self) -> None:
        """Let go of the backend."""
        try:
            self._lease.call(self._aclose)
        finally:
            self._lease.release()

    def __enter__(self) -> RendezvousBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _the_backend(self) -> Backend:
        if self._backend is None:
            raise RuntimeError(f"{self!r} is closed")
        return self._backend

    @staticmethod
    async def _open(endpoint: str, run_id: str, options: dict[str, Any]) -> Backend:
        return await start_backend(endpoint, run_id, **options)

    async def _aclose(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.aclose()
