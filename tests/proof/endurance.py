"""``python -m tests.proof endure``: saga after saga until enough rounds have formed, with breaks.

A file records the progress: which seeds were played with which code, what happened, and what failed. It is replaced as
a whole after every saga, so that an interruption costs only seconds. Rounds count only for the code that formed them:
when the library changes, the count starts over, and the file keeps what was proved about the code before. Failures stay
in the file, and make the exit code 1, until the file is deleted.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path

import msgspec

from rendezvous_async.cli.pasting import as_test
from rendezvous_async.testing import shrink
from tests.proof import sagas
from tests.proof.mutations import ROOT as CHECKOUT
from tests.proof.sagas import Deeds, play_saga, saga_of

__all__ = ["Endurance", "Failure", "Stretch", "code_version", "configure", "endure"]

AHEAD = 8
"""Sagas for each process that may be done or under way while an earlier one is still being played."""
ROOT = CHECKOUT / "rendezvous_async"
NOT_SIMULATED = (
    *("cli/", "launch/", "page/", "pytest_plugin", "sync/"),
    *("testing/conformance/", "testing/etcd", "testing/picture", "testing/proxy.py", "testing/shrinking"),
    *("backends/etcd/", "backends/file/", "backends/cas/", "backends/tcp/tls.py"),
)


class Failure(msgspec.Struct, frozen=True):
    """A seed that broke something, and what."""

    seed: int
    text: str


class Stretch(msgspec.Struct, frozen=True):
    """What was played with one version of the code: the seeds before ``seed`` are done."""

    code: str
    seed: int = 0
    deeds: Deeds = Deeds()
    cpu_seconds: float = 0.0
    failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        deeds = self.deeds
        sizes = ", ".join(f"{size}: {deeds.sizes[size]}" for size in sorted(deeds.sizes))
        pace = deeds.rounds / self.cpu_seconds if self.cpu_seconds else 0
        return (
            f"code {self.code}: {deeds.rounds} rounds formed in {deeds.sagas} sagas, {deeds.faults} faults put in, "
            f"{deeds.seconds / 3600:.1f} simulated hours in "
            f"{self.cpu_seconds:.0f} s of CPU ({pace:.0f} rounds/s), {len(self.failures)} failed; "
            f"rounds by size: {sizes}"
        )


class Endurance(msgspec.Struct, frozen=True):
    """The file: one stretch for each version of the code, the present one last."""

    stretches: tuple[Stretch, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Endurance:
        """Read the file; nothing was played yet if there is none."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def save(self, path: Path) -> None:
        """Replace the file as a whole: a reader, or the next start, sees the old one or the new one."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        fresh.replace(path)

    def of(self, code: str) -> Stretch:
        """Return what was played with this code."""
        return next((stretch for stretch in self.stretches if stretch.code == code), Stretch(code))

    def having(self, stretch: Stretch) -> Endurance:
        """Return the same, with this stretch in place of the one of its code."""
        return Endurance((*(other for other in self.stretches if other.code != stretch.code), stretch))


def code_version(root: Path = ROOT) -> str:
    """Name the code that a saga runs, the simulator included: equal names are equal sources."""
    digest = hashlib.sha256()
    for path in [*sorted(root.rglob("*.py")), Path(sagas.__file__)]:
        name = path.name if path.parent == Path(__file__).parent else path.relative_to(root).as_posix()
        if not name.startswith(NOT_SIMULATED):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def play_seed(seed: int) -> tuple[Deeds, float, tuple[Failure, ...]]:
    """Play a saga to its end; returns what came to pass, the CPU seconds, and what failed."""
    begin = time.process_time()
    deeds = Deeds()
    failures: tuple[Failure, ...] = ()
    try:
        deeds = play_saga(saga_of(seed))
    except Exception as error:  # A broken guarantee, or whatever a node failed with.
        failures = (Failure(seed, f"{type(error).__name__}: {error}"),)
    return deeds, time.process_time() - begin, failures


def endure(stretch: Stretch, rounds: int, processes: int) -> Iterator[Stretch]:
    """Go on where ``stretch`` ends, until enough rounds have formed; yield the progress, saga by saga."""
    under_way: deque[Future[tuple[Deeds, float, tuple[Failure, ...]]]] = deque()
    others = active_children()
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare)
    try:
        while stretch.deeds.rounds < rounds:
            while len(under_way) < AHEAD * processes:
                under_way.append(pool.submit(play_seed, stretch.seed + len(under_way)))
            deeds, seconds, failures = under_way.popleft().result()  # In order: what is done has no gaps.
            stretch = Stretch(
                stretch.code,
                stretch.seed + 1,
                stretch.deeds + deeds,
                stretch.cpu_seconds + seconds,
                stretch.failures + failures,
            )
            yield stretch
    finally:
        for child in active_children():
            if child not in others:
                child.terminate()  # In the middle of a saga, which nobody waits for any more.
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Make a process of the pool ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the first process; it ends the others.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # What is there already is no garbage.
    gc.set_threshold(50_000, 20, 50)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1_000_000, help="how many rounds are to form (default 1000000)")
    parser.add_argument("--processes", type=int, default=2, help="how many sagas to play at once (default 2)")
    parser.add_argument(
        "--progress", type=Path, default=Path("endurance.json"), help="the file that remembers (default endurance.json)"
    )
    parser.add_argument(
        "--seed", type=int, help="play only this saga, remember nothing; if it fails, shrink it to a test"
    )


def run(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Do what the command line asks for."""
    if options.seed is not None:
        saga = saga_of(options.seed)
        say(str(saga))
        try:
            print(play_saga(saga))
        except Exception as error:
            print(f"saga {saga.seed}: {type(error).__name__}: {error}", flush=True)
            say("looking for the smallest saga that fails like this")
            print(as_test(shrink(saga, play_saga), play_saga))
            return 1
        return 0
    known = Endurance.load(options.progress)
    start = stretch = known.of(code_version())
    say(f"goes on at saga {start.seed}" if start.seed else "starts over: nothing was played with this code yet")
    shown = len(stretch.failures)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for stretch in endure(start, options.rounds, options.processes):
            known.having(stretch).save(options.progress)
            for failure in stretch.failures[shown:]:
                print(f"saga {failure.seed}: {failure.text}")
                print(f"  repeat it: python -m tests.proof endure --seed {failure.seed}", flush=True)
            shown = len(stretch.failures)
            say(str(stretch))
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return 130
    print(stretch)
    return 1 if stretch.failures else 0
