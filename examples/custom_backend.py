"""A custom driver: it wraps another driver and records every successful write."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import rendezvous_async as rdzv
from rendezvous_async.testing import check_backend, run

AUDIT: list[str] = []


class AuditedDriver(rdzv.Driver):
    name, max_writes, max_bytes = "audited", 128, 1024 * 1024

    def __init__(self, inner: rdzv.Driver) -> None:
        self.inner = inner

    async def get(self, key: str) -> rdzv.Entry | None:
        return await self.inner.get(key)

    async def list(self, name: str) -> rdzv.Listing:
        return await self.inner.list(name)

    async def commit(
        self, writes: tuple[rdzv.Write, ...], when: tuple[rdzv.Condition, ...], deadline: rdzv.Deadline | None = None
    ) -> rdzv.Commit:
        commit = await self.inner.commit(writes, when, deadline)
        AUDIT.extend(f"{commit.token}: {write}" for write in writes if commit.won)
        return commit

    async def open(self, opening: rdzv.Opening, deadline: rdzv.Deadline | None = None) -> rdzv.Granted:
        return rdzv.Granted((await self.inner.open(rdzv.Opening(opening.ttl), deadline)).session)

    async def keep_alive(self, session: str, deadline: rdzv.Deadline | None = None) -> None:
        await self.inner.keep_alive(session, deadline)

    async def end_session(self, session: str, cause: str = "") -> None:
        await self.inner.end_session(session, cause)

    def watch(self, names: tuple[str, ...], after: rdzv.Token | None, sink: rdzv.Sink) -> rdzv.Subscription:
        return self.inner.watch(names, after, sink)

    async def aclose(self) -> None:
        await self.inner.aclose()


@asynccontextmanager
async def make(run_id: str) -> AsyncIterator[rdzv.Backend]:
    async with rdzv.open_backend("memory://example", run_id=run_id) as inner:
        yield rdzv.Backend(AuditedDriver(inner.driver), run_id)


async def main() -> None:
    await check_backend(make)
    async with make("job") as backend, rdzv.connect(backend=backend, run_id="job", nodes=1) as rendezvous:
        print(f"it passes every check; {await rendezvous.join()}; {len(AUDIT)} writes are in the audit")


if __name__ == "__main__":
    run(main)
