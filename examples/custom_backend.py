"""A backend of your own: this one keeps its state in another backend, and an audit of every write that won.

It is seven methods on absolute keys; the base class does the rest, and ``check_backend`` proves that it keeps its word.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import rendezvous_async as rdzv
from rendezvous_async.backends.base import Write
from rendezvous_async.testing import check_backend, run

AUDIT: list[str] = []


class AuditedBackend(rdzv.Backend):
    name, max_writes, max_bytes = "audited", 128, 1024 * 1024

    def __init__(self, inner: rdzv.Backend) -> None:
        super().__init__(inner.run_id)
        self._inner = inner

    async def _get(self, key: str) -> rdzv.Entry | None:
        return await self._inner._get(key)

    async def _list(self, name: str) -> rdzv.Listing:
        return await self._inner._list(name)

    async def _commit(self, writes: tuple[Write, ...], when: tuple[rdzv.Condition, ...]) -> rdzv.Commit:
        commit = await self._inner._commit(writes, when)
        AUDIT.extend(f"{commit.token}: {write}" for write in writes if commit.won)
        return commit

    def _watch(self, names: tuple[str, ...], after: rdzv.Token | None) -> rdzv.Watch:
        return self._inner._watch(names, after)

    async def open_session(self, ttl: float) -> rdzv.Session:
        return await self._inner.open_session(ttl)

    async def end_session(self, session: str) -> None:
        await self._inner.end_session(session)

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def make(run_id: str) -> AsyncIterator[rdzv.Backend]:
    async with rdzv.open_backend("memory://example", run_id=run_id) as inner, AuditedBackend(inner) as backend:
        yield backend


async def main() -> None:
    await check_backend(make)
    async with make("job") as backend, rdzv.connect(backend=backend, run_id="job", nodes=1) as rendezvous:
        print(f"it keeps every promise; {await rendezvous.join()}; {len(AUDIT)} writes are in the audit")


if __name__ == "__main__":
    run(main)
