"""How fast the etcd backend is, next to bare gRPC stubs against the same etcd in the same run.

    python -m tests.benchmarks.bench_etcd [calls] [formation] [--quick] [--repeat 5] [--processes 2]

One JSON line for each figure: median, least and most of all repeats for ours and for the bare stubs, and what etcd
counted.
Needs an etcd (see rendezvous_async.testing.etcd); data on disk, fsync on.

``formation`` lets worlds of 64, 256 and 1,000 nodes form, as tasks of a few client processes, from nothing but open
clients until the last node has joined (etcd_formation.py). All calls that etcd answered are counted, and what was asked
for on watch streams; also the CPU time of etcd and of the clients, since on a small machine that is the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from statistics import median
from time import perf_counter
from typing import Any

import anyio
from aetcd import rpc
from anyio import to_thread

from rendezvous_async.backends import Backend, open_backend
from rendezvous_async.backends.base import Condition, Put
from rendezvous_async.testing.etcd import EtcdCluster, start_etcd
from tests.benchmarks.figures import summary

VALUE = b"v" * 64


async def together(tasks: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> float:
    """Run ``work`` in this many tasks and return the seconds it took."""
    started = perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(work, number)
    return perf_counter() - started


async def cas_ours(backend: Backend, tasks: int, commits: int) -> float:
    async def work(number: int) -> None:
        key = f"cas/{tasks}/{number}"
        entry = await backend.get(key)
        token = None if entry is None else entry.token
        for _ in range(commits // tasks):
            commit = await backend.commit(Put(key, VALUE), when=[Condition(key, token)])
            assert commit.won
            token = commit.token

    return commits / await together(tasks, work)


async def cas_bare(store: Any, tasks: int, commits: int) -> float:
    async def work(number: int) -> None:
        key = b"/bare/%d/%d" % (tasks, number)
        found = (await store.Range(rpc.RangeRequest(key=key))).kvs
        revision = found[0].mod_revision if found else 0
        for _ in range(commits // tasks):
            compare = rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=VALUE))
            get = rpc.RequestOp(request_range=rpc.RangeRequest(key=key))
            answer = await store.Txn(rpc.TxnRequest(compare=[compare], success=[put], failure=[get]), timeout=2)
            assert answer.succeeded
            revision = answer.header.revision

    return commits / await together(tasks, work)


async def latency_ours(writer: Backend, reader: Backend, names: tuple[str, ...], count: int) -> float:
    """Return the median time in ms from sending a put to reading it from a watch of another client."""
    seconds = []
    async with reader.watch(*names) as watch:
        await anext(watch)
        for number in range(count):
            started = perf_counter()
            async with anyio.create_task_group() as group:
                group.start_soon(writer.commit, Put(names[0], b"%d" % number))
                await anext(watch)
                seconds.append(perf_counter() - started)
    return 1000 * median(seconds)


async def latency_bare(channel: Any, count: int) -> float:
    store, seconds = rpc.KVStub(channel), []
    call = rpc.WatchStub(channel).Watch()
    await call.write(rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=b"/bare/watched")))
    await call.read()
    for number in range(count):
        started = perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(put_bare, store, b"%d" % number)
            await call.read()
            seconds.append(perf_counter() - started)
    call.cancel()
    return 1000 * median(seconds)


async def put_bare(store: Any, value: bytes) -> None:
    await store.Put(rpc.PutRequest(key=b"/bare/watched", value=value))


async def open_watches(backend: Backend, count: int) -> float:
    """Return the seconds until all watches, of a shared name and one of their own each, have their first listing."""

    async def work(number: int) -> None:
        async with backend.watch("state", f"seats/{number}") as watch:
            await anext(watch)

    return await together(count, work)


def report(what: str, unit: str, ours: list[float], bare: list[float] | None = None, **more: object) -> None:
    line: dict[str, object] = {"what": what, "unit": unit, "ours": summary(ours)}
    if bare:
        line |= {"bare_stubs": summary(bare), "ratio": round(median(ours) / median(bare), 2)}
    print(json.dumps(line | more), flush=True)


async def run(etcd: EtcdCluster, repeat: int, commits: int) -> None:
    member = etcd.members[0]
    channel = rpc.insecure_channel(member.address, options=[("grpc.enable_http_proxy", 0)])
    store = rpc.KVStub(channel)
    async with (
        open_backend(etcd.endpoint, run_id="bench") as backend,
        open_backend(etcd.endpoint, run_id="bench") as other,
    ):
        for tasks in (1, 64):
            total = commits // 4 if tasks == 1 else commits
            ours, bare, calls = [], [], 0.0
            for _ in range(repeat):  # in turns, so that both see the same noise
                before = member.metric("grpc_server_handled_total")
                ours.append(await cas_ours(backend, tasks, total))
                calls += member.metric("grpc_server_handled_total") - before
                bare.append(await cas_bare(store, tasks, total))
            each = round(calls / total / repeat, 3)
            report(f"compare-and-set, {tasks} tasks", "per s", ours, bare, calls_per_commit=each)
        for names in (("watched",), ("watched", "quiet", "seats/")):
            ours, bare = [], []
            for _ in range(repeat):
                ours.append(await latency_ours(backend, other, names, 200))
                bare.append(await latency_bare(channel, 200))
            report(f"put to watch, {len(names)} names", "ms p50", ours, bare)
        report("1,000 watches open", "s", [await open_watches(other, 1000) for _ in range(repeat)])
    await channel.close()


class ClientProcess:
    """A process of nodes; see etcd_formation.py."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.etcd_formation", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def cpu(self) -> float:
        return cpu_of(self._process.pid)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def form(etcd: EtcdCluster, kind: str, nodes: int, processes: int) -> dict[str, float]:
    """Let one world form, and return what it took."""
    member = etcd.members[0]
    assert member.process is not None

    def counts() -> tuple[float, float, float]:
        asked = member.metric("grpc_server_msg_received_total", grpc_method="Watch")
        revision = int(member.ask("/v3/maintenance/status")["header"]["revision"])
        return member.metric("grpc_server_handled_total"), asked, revision

    share = -(-nodes // processes)
    firsts = range(0, nodes, share)
    clients = [ClientProcess(kind, etcd.endpoint, "bench", nodes, n, min(share, nodes - n)) for n in firsts]
    for client in clients:
        assert client.read() == "ready"
    before, etcd_cpu, clients_cpu = counts(), cpu_of(member.process.pid), sum(client.cpu() for client in clients)
    started = perf_counter()
    for client in clients:
        client.go_on()
    seconds = max(float(client.read()) for client in clients) - started
    etcd_cpu, clients_cpu = cpu_of(member.process.pid) - etcd_cpu, sum(client.cpu() for client in clients) - clients_cpu
    calls, asked, revisions = (after - old for after, old in zip(counts(), before, strict=True))
    for client in clients:
        client.end()
    return {
        "seconds": seconds,
        "etcd_operations": calls + asked,
        "operations_per_node": (calls + asked) / nodes,
        "revisions": revisions,
        "etcd_cpu": etcd_cpu,
        "clients_cpu": clients_cpu,
    }


def run_formation(repeat: int, processes: int) -> None:
    for nodes in (64, 256, 1000):
        results: dict[str, list[dict[str, float]]] = {"handler": [], "bare": []}
        for _ in range(repeat):  # in turns, so that both see the same noise
            for kind, figures in results.items():
                with EtcdCluster() as etcd:
                    figures.append(form(etcd, kind, nodes, processes))
        for kind, figures in results.items():
            found = {name: summary(each[name] for each in figures) for name in figures[0]}
            line = {"what": f"formation, {nodes} nodes", "by": kind, "processes": processes, **found}
            print(json.dumps(line), flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="calls|formation", help="what to measure; all by default")
    parser.add_argument("--quick", action="store_true", help="once, with fewer commits")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--commits", type=int, default=3000)
    parser.add_argument("--processes", type=int, default=2, help="of clients, in formation")
    arguments = parser.parse_args()
    parts = arguments.parts or ["calls", "formation"]
    if unknown := set(parts) - {"calls", "formation"}:
        parser.error(f"there is no {unknown.pop()!r}")
    repeat, commits = (1, 300) if arguments.quick else (arguments.repeat, arguments.commits)
    if "calls" in parts:
        async with start_etcd() as etcd:
            await run(etcd, repeat, commits)
    if "formation" in parts:
        await to_thread.run_sync(run_formation, repeat, arguments.processes)


if __name__ == "__main__":
    anyio.run(main)
