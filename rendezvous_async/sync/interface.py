"""The classic's abstract classes: a handler, its result, and a backend that users implement.

Values and signatures only. The handler is in ``handler.py``, the backends are in ``backend.py``; ``carrier.py`` runs a
rendezvous on a user's ``RendezvousBackend``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from rendezvous_async.sync.store import RendezvousStoreInfo

__all__ = ["RendezvousBackend", "RendezvousHandler", "RendezvousInfo"]


@dataclass(frozen=True)
class RendezvousInfo:
    """The result of joining a round.

    Attributes:
        store: The members' shared store: the round's own, or the handler's store under a prefix for this round.
        rank: This node's rank.
        world_size: The number of nodes in the round.
        bootstrap_store_info: An address and a free port of rank 0, for the workers' own store.
    """

    store: Any
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo


class RendezvousHandler(ABC):
    """A node's place in a run, for blocking code."""

    @abstractmethod
    def get_backend(self) -> str:
        """Return the name of the backend."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers can connect to ``info.store`` themselves, at ``info.bootstrap_store_info``."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round: wait until one has formed that includes this node.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousGracefulExitError: The run was closed while this node was a spare.
            RendezvousConnectionError: The backend cannot be reached.
            RendezvousStateError: The stored state is damaged.
            RendezvousTimeoutError: No round formed in time.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the run is closed."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close the run permanently for all nodes."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for the next round; if it is not 0, call ``next_rendezvous()``."""

    @abstractmethod
    def get_run_id(self) -> str:
        """Return the id of the run."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Release all resources; return False if the backend could not be reached."""


class RendezvousBackend(ABC):
    """One state with a fencing token. Implement these three members to run a rendezvous on a store of your own.

    They may be called from any thread, and may block.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The kind of backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Any] | None:
        """Return the state and its token, or None if there is none.

        Raises:
            RendezvousConnectionError: The backend cannot be reached.
            RendezvousStateError: The state is damaged.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Replace the state if ``token`` is the current one; without a token, create the state if there is none.

        Returns:
            The state now stored, its token, and whether this call stored it; None if there is no state.

        Raises:
            RendezvousConnectionError: The backend cannot be reached; the state may or may not be set.
            RendezvousStateError: The state is damaged.
        """
