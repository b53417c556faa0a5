"""What the death of the machine that has etcd's leader costs a world of four, one of whose nodes is on that machine.

    python -m tests.benchmarks.etcd_failover [--trials 6] [--call-timeout 2] [--kill] [--regroup 0.05]
        [--election-timeout 1000]

A trial starts a cluster of three and four nodes, freezes the leader and one node (SIGSTOP: nothing answers, and no
connection breaks; with ``--kill`` SIGKILL) and prints one JSON line: how many survivors were evicted, and the seconds
from the death until each of these:

* ``elected``: the first survivor of etcd names a new leader. Ours cannot make that sooner.
* ``bare stubs``: the first commit of bare stubs that ask the next member after 0.3 s; ``next commit``: ours.
* ``lease gone``: etcd has deleted the dead node's record. The new leader gives each lease its whole time again and an
  election timeout (1 s), since it cannot know what the old leader had promised, and looks for those that are over
  every 0.5 s. So this is ``elected`` + 1 + the lease (0.8 of the TTL, in whole seconds) + up to 0.5.
* ``loss known``: all survivors were told. ``re-formed``: the others have formed the next world, ``regroup`` included.

The last line has the medians, and how many trials took longer than the TTL and 2 s. By default the benchmark sets
``regroup`` to 0.05 s. A user's default is min(last_call, 3 s): by rule a world that may still grow waits that long for
its survivors before it forms again, and that comes on top; the last line says how much.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import anyio
from aetcd import rpc
from anyio import to_thread
from anyio.abc import Process

import rendezvous_async as rdzv
from rendezvous_async.backends import open_backend
from rendezvous_async.backends.base import Put
from rendezvous_async.testing.etcd import EtcdCluster, EtcdMember, start_etcd

NODES = 4
TTL = 5.0
"""Of a session by default."""
ASK_NEXT_AFTER = 0.3
LOOK_EVERY = 0.01
"""Seconds between two looks at whether there is a leader: etcd has no call that waits for that."""
RECORDS = b"/rendezvous_async/failover/nodes/"


class Trial:
    """One death of a machine, and what the others made of it."""

    def __init__(self, cluster: EtcdCluster, arguments: argparse.Namespace) -> None:
        self.cluster = cluster
        self.arguments = arguments
        self.sizes: dict[int, int] = {}
        self.told: set[int] = set()
        self.formed, self.died, self.formed_again = anyio.Event(), anyio.Event(), anyio.Event()
        self.died_at = 0.0
        self.figures: dict[str, float] = {"evicted": 0}

    def note(self, what: str) -> None:
        """Write down the seconds since the death, the first time."""
        self.figures.setdefault(what, round(anyio.current_time() - self.died_at, 2))

    async def node(self, number: int) -> None:
        async with connect(self.cluster.endpoint, self.arguments.call_timeout, self.arguments.regroup) as rendezvous:
            while True:
                world = await rendezvous.join()
                self.sizes[number] = world.size
                if list(self.sizes.values()) == [NODES] * (NODES - 1):
                    self.formed.set()
                if list(self.sizes.values()) == [NODES - 1] * (NODES - 1):
                    self.note("re-formed")
                    self.formed_again.set()
                change = await world.changed()
                if self.died.is_set():
                    self.figures["evicted"] += change is rdzv.Change.EVICTED
                    self.told.add(number)
                    if len(self.told) == NODES - 1:
                        self.note("loss known")

    async def bare(self) -> None:
        """The least that a client can do: a stub for each member, and the next one after a while."""
        channels = [rpc.insecure_channel(member.address) for member in self.cluster.members]
        stubs = [rpc.KVStub(channel) for channel in channels]
        while True:
            try:
                await stubs[0].Put(rpc.PutRequest(key=b"bare", value=b""), timeout=ASK_NEXT_AFTER)
            except rpc.AioRpcError:
                stubs.append(stubs.pop(0))
            else:
                if self.died.is_set():
                    break
                await self.died.wait()
        self.note("bare stubs")
        for channel in channels:
            await channel.close()

    async def look_for_leader(self, member: EtcdMember, leader: int) -> None:
        """Note when this survivor names another leader than the one that has died."""
        async with rpc.insecure_channel(member.address) as channel:
            status = rpc.MaintenanceStub(channel).Status
            while (await status(rpc.StatusRequest())).leader in (0, leader):  # noqa: ASYNC110 - etcd tells nobody
                await anyio.sleep(LOOK_EVERY)
        self.note("elected")

    async def watch_records(self, member: EtcdMember) -> None:
        """Note when a survivor tells of the first record that is deleted."""
        create = rpc.WatchCreateRequest(key=RECORDS, range_end=RECORDS[:-1] + b"0")
        async with rpc.insecure_channel(member.address) as channel:
            call = rpc.WatchStub(channel).Watch()
            await call.write(rpc.WatchRequest(create_request=create))
            async for response in call:
                if any(event.type == event.DELETE for event in response.events):
                    break
        self.note("lease gone")

    async def run(self) -> dict[str, float]:
        options = [str(self.arguments.call_timeout), str(self.arguments.regroup)]
        command = [sys.executable, "-m", "tests.benchmarks.etcd_failover", "--node", self.cluster.endpoint, *options]
        async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=None, stderr=None) as doomed:
            try:
                await self._run(doomed)
            finally:
                with suppress(ProcessLookupError):
                    doomed.kill()
        return self.figures

    async def _run(self, doomed: Process) -> None:
        async with (
            open_backend(self.cluster.endpoint, run_id="other", call_timeout=self.arguments.call_timeout) as other,
            anyio.create_task_group() as group,
        ):
            for number in range(NODES - 1):
                group.start_soon(self.node, number)
            group.start_soon(self.bare)
            await other.commit(Put("a", b"before"))
            await self.formed.wait()
            leader = await to_thread.run_sync(self.cluster.leader)
            status = await to_thread.run_sync(leader.ask, "/v3/maintenance/status")
            survivors = [member for member in self.cluster.members if member is not leader]
            for member in survivors:
                group.start_soon(self.watch_records, member)
            await anyio.sleep(1)  # One keep-alive of everybody.
            doomed.send_signal(signal.SIGKILL if self.arguments.kill else signal.SIGSTOP)
            leader.kill() if self.arguments.kill else leader.freeze()
            self.died_at = anyio.current_time()
            self.died.set()
            for member in survivors:
                group.start_soon(self.look_for_leader, member, int(status["leader"]))
            await other.commit(Put("a", b"after"))
            self.note("next commit")
            with anyio.move_on_after(30):
                await self.formed_again.wait()
            group.cancel_scope.cancel()


def connect(endpoint: str, call_timeout: float, regroup: float) -> Any:
    timeouts = rdzv.Timeouts(regroup=regroup)
    return rdzv.connect(
        endpoint, run_id="failover", nodes=f"{NODES - 2}:{NODES}", timeouts=timeouts, call_timeout=call_timeout
    )


async def be_node(endpoint: str, call_timeout: str, regroup: str) -> None:
    """Be the node that dies."""
    async with connect(endpoint, float(call_timeout), float(regroup)) as rendezvous:
        while True:
            await (await rendezvous.join()).changed()


async def run(arguments: argparse.Namespace) -> None:
    trials: list[dict[str, float]] = []
    election = arguments.election_timeout
    timing = ("--election-timeout", str(election), "--heartbeat-interval", str(election // 10))
    for _ in range(arguments.trials):
        async with start_etcd(3, arguments=timing) as cluster:
            trials.append(await Trial(cluster, arguments).run())
            print(json.dumps(trials[-1]), flush=True)
    print(json.dumps(summary(trials, vars(arguments))))


def summary(trials: list[dict[str, float]], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the medians, and where the time went."""

    def between(first: str, second: str) -> float:
        return round(median(each[second] - each[first] for each in trials), 2)

    parts = {
        "election": round(median(each["elected"] for each in trials), 2),
        "the lease after it": between("elected", "lease gone"),
        "until all are told": between("lease gone", "loss known"),
        "until re-formed": between("loss known", "re-formed"),
    }
    limit = TTL + 2
    added = rdzv.Timeouts().regroup_seconds - settings["regroup"]
    return {
        "what": "medians",
        "trials": len(trials),
        **settings,
        **{what: round(median(each[what] for each in trials), 2) for what in trials[0] if what != "evicted"},
        "parts": parts,
        "limit": limit,
        "over the limit": sum(each["re-formed"] > limit for each in trials),
        "with the default regroup, by rule": f"{added:+g} s",
        "evicted": sum(each["evicted"] for each in trials),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--call-timeout", type=float, default=2.0)
    parser.add_argument("--regroup", type=float, default=0.05)
    parser.add_argument("--election-timeout", type=int, default=1000, help="of etcd, in milliseconds")
    parser.add_argument("--kill", action="store_true", help="SIGKILL instead of SIGSTOP")
    anyio.run(partial(run, parser.parse_args()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        _, _, where, patience, window = sys.argv
        anyio.run(be_node, where, patience, window)
    else:
        main()
