"""Collective operations over any store, torch's included: barrier, gather, and synchronize.

Keys and values are the same as in torch's functions of these names, so the two interoperate. Keys are never deleted, so
use each prefix only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

__all__ = ["barrier", "get_all", "store_timeout", "synchronize"]

MOST_NAMED = 16
"""The most missing ranks that an error names."""
_SEEN = "<val_ignored>"


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """Set a store's timeout to ``timeout`` seconds for the block, and restore it. Ignore a store without timeouts."""
    if not hasattr(store, "set_timeout"):
        yield
        return
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[Any]:
    """Wait for every member's value at ``<prefix><rank>``, and return the values by rank.

    Rank 0, which may serve the store, returns only when all members have read the values.
    """
    keys = [f"{prefix}{each}" for each in range(world_size)]
    values = store.multi_get(keys) if hasattr(store, "multi_get") else [store.get(key) for key in keys]
    all_done = _arrive(store, world_size, f"{prefix}/finished")
    if rank == 0:
        store.wait([all_done])
    return list(values)


def synchronize(
    store: Any, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> list[Any]:
    """Share ``data`` with all members, and return every member's data by rank."""
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until ``world_size`` members have called this.

    Args:
        store: The store that all members share.
        world_size: The number of members.
        key_prefix: A prefix used by this barrier only.
        barrier_timeout: Seconds to wait.
        rank: This member's rank. With it, the error on rank 0 names the missing ranks; on other ranks it refers to
            rank 0.
        rank_tracing_decoder: Maps a rank to a name for errors, for example its host.
        trace_timeout: Seconds for which rank 0 waits for the others to report in before it names missing ranks.

    Raises:
        Exception: The store's error for a timed-out wait: RendezvousTimeoutError here, DistStoreError in torch.
    """
    if rank is None and rank_tracing_decoder is not None:
        raise ValueError("rank_tracing_decoder requires rank")
    with store_timeout(store, barrier_timeout):
        all_here = _arrive(store, world_size, key_prefix)
        try:
            store.wait([all_here])
        except (TimeoutError, RuntimeError, LookupError) as error:
            name = rank_tracing_decoder or str
            limits = barrier_timeout, trace_timeout
            missing = None if rank is None else _find_missing(store, world_size, key_prefix, rank, name, *limits)
            if missing is None:
                raise
            raise type(error)(
                f"rank {rank} waited {barrier_timeout:g} s at the barrier {key_prefix!r} of {world_size}: "
                f"missing_ranks=[{', '.join(missing)}]"
            ) from error


def _arrive(store: Any, world_size: int, key_prefix: str) -> str:
    """Count this member at a barrier, and return the key that the last member sets."""
    all_here = f"{key_prefix}/last_member"
    if store.add(f"{key_prefix}/num_members", 1) == world_size:
        store.set(all_here, _SEEN)
    return all_here


def _find_missing(
    store: Any,
    world_size: int,
    key_prefix: str,
    rank: int,
    name: Callable[[int], str],
    barrier_timeout: float,
    trace_timeout: float,
) -> list[str] | None:
    """Return the names of the missing ranks; None if rank 0, which knows them, is missing itself."""
    traces = [f"{key_prefix}{each}/TRACE" for each in range(world_size)]
    looked = f"{key_prefix}/TRACING_GATE"
    store.set(traces[rank], _SEEN)
    if rank != 0:
        # Rank 0 may have arrived up to barrier_timeout later, and looks only after its own wait.
        if not _comes(store, looked, barrier_timeout + trace_timeout):
            return None
        return [f"<check rank 0 ({name(0)}) for missing rank info>"]
    missing: list[str] = []
    for each, trace in enumerate(traces):
        # By the time that the first missing rank has timed out, the others have had just as long.
        if len(missing) == MOST_NAMED:
            break
        if not (_is_there(store, trace) if missing else _comes(store, trace, trace_timeout)):
            missing.append(name(each))
    store.set(looked, _SEEN)
    return missing


def _comes(store: Any, key: str, seconds: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except (TimeoutError, RuntimeError, LookupError):
        return False
    return True


def _is_there(store: Any, key: str) -> bool:
    return bool(store.check([key])) if hasattr(store, "check") else _comes(store, key, 0.1)
