"""What can happen to whom: each fault does its harm, mends it, and returns.

``choose`` draws a kind; every fault then has random numbers of its own, so that what one does not depend on when
another one drew. A fault that finds nobody to harm says so by returning False.
"""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

import anyio
from anyio import to_thread

from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.proxy import Direction, Proxy
from tests.proof.campaign.processes import Child
from tests.proof.campaign.stage import Place, Stage

__all__ = ["Actor", "Fault", "Scene", "faults_of"]

STOP = 60.0
"""Seconds within which a process that is told to end must have ended."""


class Actor(Protocol):
    """A node or a client, process after process."""

    name: str
    is_node: bool
    busy: bool
    place: Place
    child: Child

    async def start(self, *, fresh: bool) -> None:
        """Start its next process, with a new name or the old one."""


class Scene(Protocol):
    """Where faults happen."""

    stage: Stage
    ttl: float

    @property
    def actors(self) -> Sequence[Actor]:
        """Everybody."""

    def note(self, kind: str, *actors: Actor) -> None:
        """Write down what is done to whom."""


Fault: TypeAlias = Callable[[Scene, random.Random], Awaitable[bool]]


async def kill(scene: Scene, rng: random.Random) -> bool:
    """Kill a node with SIGKILL; a new process comes later, under the same name or another one."""
    return await _kill(scene, rng, is_node=True)


async def kill_client(scene: Scene, rng: random.Random) -> bool:
    """Kill a client with SIGKILL in the middle of its calls."""
    return await _kill(scene, rng, is_node=False)


async def kill_host(scene: Scene, rng: random.Random) -> bool:
    """Kill the process that hosts the server with SIGKILL; another one must take over."""
    return await _end(_pick(scene, rng, _hosts(scene)), scene, rng, "crash")


async def stop_host(scene: Scene, rng: random.Random) -> bool:
    """Let the process that hosts the server end in good order (SIGTERM): it lingers, and another one takes over."""
    return await _end(_pick(scene, rng, _hosts(scene)), scene, rng, "stop")


async def _kill(scene: Scene, rng: random.Random, *, is_node: bool) -> bool:
    return await _end(_pick(scene, rng, lambda actor: actor.is_node == is_node), scene, rng, "crash")


async def _end(actor: Actor | None, scene: Scene, rng: random.Random, how: Literal["crash", "stop"]) -> bool:
    if actor is None:
        return False
    pause, fresh = 3 * rng.random(), rng.random() < 0.5
    actor.busy = True
    scene.note(how, actor)
    if how == "crash":
        await actor.child.kill()
    else:
        actor.child.send(signal.SIGTERM)
        if not await actor.child.ended_within(STOP * scene.stage.pace):
            raise BrokenGuaranteeError("everything_ends", f"{actor} was told to and did not end")
    await anyio.sleep(pause)
    if not fresh:
        scene.note("restart", actor)
    await actor.start(fresh=fresh)
    actor.busy = False
    return True


async def freeze_shortly(scene: Scene, rng: random.Random) -> bool:
    """Freeze a process for less than its TTL (SIGSTOP, SIGCONT)."""
    return await _freeze(scene, rng, scene.ttl * (0.1 + 0.5 * rng.random()))


async def freeze_long(scene: Scene, rng: random.Random) -> bool:
    """Freeze a process for longer than its TTL."""
    return await _freeze(scene, rng, scene.ttl * (1.1 + rng.random()))


async def freeze_host(scene: Scene, rng: random.Random) -> bool:
    """Freeze the process that hosts the server, for less or more than the TTL: nobody can take its place meanwhile."""
    return await _freeze(scene, rng, 2 * scene.ttl * rng.random(), _hosts(scene))


async def _freeze(
    scene: Scene, rng: random.Random, seconds: float, wanted: Callable[[Actor], bool] = lambda actor: True
) -> bool:
    actor = _pick(scene, rng, wanted)
    if actor is None:
        return False
    actor.busy = True
    scene.note("pause", actor)
    actor.child.send(signal.SIGSTOP)
    try:
        await anyio.sleep(seconds)
    finally:
        actor.child.send(signal.SIGCONT)
        scene.note("resume", actor)
        actor.busy = False
    return True


async def cut_one(scene: Scene, rng: random.Random) -> bool:
    """Reset the connections of one process."""
    return await _at_one_place(scene, rng, Proxy.cut)


async def cut_all(scene: Scene, rng: random.Random) -> bool:
    """Reset every connection that there is."""
    for place in scene.stage.places:
        for proxy in place.proxies:
            proxy.cut()
    return True


async def half_close(scene: Scene, rng: random.Random) -> bool:
    """End one direction of one process's connections; the other stays open."""
    direction: Direction = "to_server" if rng.random() < 0.5 else "to_client"
    return await _at_one_place(scene, rng, lambda proxy: proxy.half_close(direction))


async def lose_an_answer(scene: Scene, rng: random.Random) -> bool:
    """Lose the next bytes from or to the server, and cut their connection: it happened, and nobody was told."""
    direction: Direction = "to_client" if rng.random() < 0.7 else "to_server"
    return await _at_one_place(scene, rng, lambda proxy: proxy.lose_next(direction))


async def half_open(scene: Scene, rng: random.Random) -> bool:
    """Let nothing pass between one process and the servers, and close nothing; shorter or longer than its TTL."""
    seconds = 2 * scene.ttl * rng.random()
    actor = _pick(scene, rng)
    if actor is None:
        return False
    scene.note("half-open", actor)
    for proxy in actor.place.proxies:
        proxy.stall()
    try:
        await anyio.sleep(seconds)
    finally:
        for proxy in actor.place.proxies:
            proxy.resume()
    return True


async def delay(scene: Scene, rng: random.Random) -> bool:
    """Let everything that one process sends and gets take longer."""
    seconds, most = 1 + 4 * rng.random(), 0.01 + 0.3 * rng.random()
    actor = _pick(scene, rng)
    if actor is None:
        return False
    scene.note("delay", actor)
    for proxy in actor.place.proxies:
        proxy.delay = most
    try:
        await anyio.sleep(seconds)
    finally:
        for proxy in actor.place.proxies:
            proxy.delay = 0.0
    return True


async def partition(scene: Scene, rng: random.Random) -> bool:
    """Take down the link to the network namespace of a process: packets are lost in silence."""
    seconds = 0.3 + 2 * scene.ttl * rng.random()
    actor = _pick(scene, rng, lambda actor: actor.place.link is not None)
    if actor is None or actor.place.link is None:
        return False
    link = actor.place.link
    scene.note("partition", actor)
    try:
        failure = await to_thread.run_sync(link.cut)
        assert failure is None, f"a link could not be taken down: {failure}"
        await anyio.sleep(seconds)
    finally:
        with anyio.CancelScope(shield=True):
            failure = await to_thread.run_sync(link.mend)
        scene.note("heal", actor)
    assert failure is None, f"a link could not be brought up: {failure}"
    return True


async def fail_sync(scene: Scene, rng: random.Random) -> bool:
    """Let the next sync of a process fail."""
    return await _fail_sync(_pick(scene, rng, lambda actor: actor.child.up), scene)


async def fail_sync_of_host(scene: Scene, rng: random.Random) -> bool:
    """Let the next sync of the process that hosts the server fail: its server ends, and somebody hosts it again."""
    return await _fail_sync(_pick(scene, rng, _hosts(scene)), scene)


async def _fail_sync(actor: Actor | None, scene: Scene) -> bool:
    if actor is None:
        return False
    scene.note("fsync error", actor)
    actor.child.send(signal.SIGUSR1)
    await anyio.lowlevel.checkpoint()
    return True


async def limit_files(scene: Scene, rng: random.Random) -> bool:
    """Let no file of one process grow for a while, as on a full disk, but for this process alone."""
    seconds, limit = 0.3 + 2 * rng.random(), scene.stage.file_limit
    actor = _pick(scene, rng, lambda actor: actor.is_node)
    if actor is None or not limit:
        return False
    actor.busy = True
    scene.note("file too large", actor)
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    pid = actor.child.pid
    try:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        await anyio.sleep(seconds)
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        actor.busy = False
    return True


async def _at_one_place(scene: Scene, rng: random.Random, harm: Callable[[Proxy], None]) -> bool:
    actor = _pick(scene, rng)
    if actor is None:
        return False
    for proxy in actor.place.proxies:
        harm(proxy)
    await anyio.lowlevel.checkpoint()
    return True


def _pick(scene: Scene, rng: random.Random, wanted: Callable[[Actor], bool] = lambda actor: True) -> Actor | None:
    """Choose somebody who runs and to whom nothing else happens."""
    able = [actor for actor in scene.actors if wanted(actor) and not actor.busy and actor.child.running]
    return rng.choice(able) if able else None


def _hosts(scene: Scene) -> Callable[[Actor], bool]:
    """Return what tells whether somebody hosts the server at this moment."""
    port = scene.stage.hosted_port
    return lambda actor: port is not None and actor.child.listens(port)


def faults_of(stage: Stage) -> dict[str, tuple[float, Fault]]:
    """Return what can happen on a stage: its kind, how often it is to be drawn, and what does it."""
    faults: dict[str, tuple[float, Fault]] = {
        "node kill -9": (4, kill),
        "client kill -9": (1.5, kill_client),
        "freeze, shorter than the TTL": (2, freeze_shortly),
        "freeze, longer than the TTL": (2, freeze_long),
    }
    if stage.networked:
        faults |= {
            "connections cut": (2, cut_one),
            "all connections cut": (0.7, cut_all),
            "half-closed connections": (1, half_close),
            "half-open connections": (2, half_open),
            "answer or request lost": (2, lose_an_answer),
            "delay": (1.5, delay),
        }
    if stage.links.links:
        faults["partition (network namespace)"] = (2, partition)
    if stage.syncs_in_nodes:
        faults |= {"fsync error": (2, fail_sync), "file too large": (1, limit_files)}
    if stage.hosted_port is not None:
        faults |= {
            "host kill -9": (4, kill_host),
            "host stop": (3, stop_host),
            "host freeze": (2, freeze_host),
            "host fsync error": (2, fail_sync_of_host),
        }
    for kind, harm in stage.faults.items():
        faults[kind] = (3 if "kill" in kind else 1.2, _of_the_stage(harm))
    return faults


def _of_the_stage(harm: Callable[[random.Random], Awaitable[None]]) -> Fault:
    async def fault(scene: Scene, rng: random.Random) -> bool:
        if scene.stage.busy:
            return False
        scene.stage.busy = True
        try:
            await harm(rng)
        finally:
            scene.stage.busy = False
        return True

    return fault
