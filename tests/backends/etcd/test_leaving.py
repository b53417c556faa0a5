"""To leave a run whose etcd is gone."""

from __future__ import annotations

from rendezvous_async import connect
from rendezvous_async.aio import clock
from rendezvous_async.testing.etcd import start_etcd


async def test_to_leave_a_run_whose_etcd_is_gone_takes_a_moment() -> None:
    """It took ``timeouts.close``, 30 s."""
    async with start_etcd(1) as etcd:
        async with connect(etcd.endpoint, run_id="job", nodes=1) as rendezvous:
            await rendezvous.join()
            for member in etcd.members:
                member.kill()
            began = clock.now()
        assert clock.now() - began < 10
