"""A job of real torchrun agents on this machine, and what its workers report."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

__all__ = ["Agent", "Job", "Report", "start_job"]

TRAINING = Path(__file__).with_name("training.py")
MARK = "RENDEZVOUS_ASYNC_TEST_JOB"
PATIENCE = 120.0
"""Seconds after which a test gives up: far longer than anything takes, even on a busy machine."""


class Report(msgspec.Struct, frozen=True):
    """One step of one worker."""

    agent: str
    pid: int
    round: str
    rank: int
    size: int
    step: int
    at: float


class Agent:
    """A torchrun process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, started: float) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.started = started

    def __repr__(self) -> str:
        return f"<Agent {self.name} pid={self.process.pid} code={self.process.returncode}>"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the agent alone."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the agent to end, and return its exit code."""
        with anyio.move_on_after(PATIENCE):
            return await self.process.wait()
        raise AssertionError(f"{self} did not end in {PATIENCE:g} s\n{self.log.read_text(errors='replace')[-6000:]}")


class Job:
    """Agents of one run, started one by one."""

    def __init__(self, folder: Path, backend: str, endpoint: str, nodes: str) -> None:
        self.reports: list[Report] = []
        self.agents: dict[str, Agent] = {}
        self.id = uuid.uuid4().hex
        self.backend = backend
        self.endpoint = endpoint
        self.nodes = nodes
        self.max_restarts = 3
        # An agent that hosts and waits in vain for the others at the end would wait longer than ``ends_well`` does.
        self.options = f"last_call_timeout=1,regroup_timeout=0.5,join_timeout=60,close_timeout={int(PATIENCE)}"
        self.script: list[str] = [str(TRAINING), str(folder / "reports"), str(folder / "stop"), str(folder / "crash-$")]
        self.environment: dict[str, str] = {}
        self._folder = folder
        self._news = asyncio.Event()

    async def start(self, name: str, *arguments: str, inside: tuple[str, ...] = ()) -> Agent:
        """Start an agent; ``inside`` comes before its command, to run it in a network namespace for example."""
        log = self._folder / f"{name}.log"
        command = [
            *inside,
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run"),
            *(f"--rdzv-backend={self.backend}", f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={self.id}"),
            *(f"--nnodes={self.nodes}", "--nproc-per-node=1", f"--max-restarts={self.max_restarts}"),
            *((f"--rdzv-conf={self.options}",) if self.options else ()),
            *arguments,
            *(part.replace("$", name) for part in self.script),
        ]
        environment = os.environ | {
            "TEST_AGENT": name,
            MARK: self.id,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "LOGLEVEL": "INFO",
        }
        with log.open("ab") as out:
            started = asyncio.get_running_loop().time()
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment | self.environment,
                stdout=out,
                stderr=out,
                cwd=self._folder,
                start_new_session=True,
            )
        self.agents[name] = Agent(name, process, log, started)
        return self.agents[name]

    async def until(self, met: Callable[[Report], bool], patience: float = PATIENCE) -> Report:
        """Return the next report from now on for which this is so."""
        seen = len(self.reports)
        with anyio.move_on_after(patience):
            while True:
                for report in self.reports[seen:]:
                    seen += 1
                    if met(report):
                        return report
                self._news.clear()
                await self._news.wait()
        raise AssertionError(f"no such step in {patience:g} s\n{self.describe()}")

    async def trains(self, size: int, *, after: str = "", patience: float = PATIENCE) -> Report:
        """Wait for all of ``size`` agents to train in one round, another one than ``after``; return the last step."""
        members: dict[str, set[str]] = {}

        def complete(report: Report) -> bool:
            if report.size != size or report.round == after:
                return False
            members.setdefault(report.round, set()).add(report.agent)
            return len(members[report.round]) == size

        return await self.until(complete, patience)

    def rank0(self, round: str) -> Agent:
        """Return the agent that had rank 0 in a round."""
        return self.agents[next(report.agent for report in self.reports if report.round == round and report.rank == 0)]

    def stop(self) -> None:
        """Let the workers end well."""
        (self._folder / "stop").touch()

    def crash(self, agent: Agent) -> None:
        """Let an agent's worker crash."""
        (self._folder / f"crash-{agent.name}").touch()

    def kill_node(self, agent: Agent) -> None:
        """Kill an agent and its workers at once, as when their machine dies."""
        for pid in _marked(self.id, agent.name):
            os.kill(pid, signal.SIGKILL)

    async def ends_well(self, *agents: Agent, patience: float = PATIENCE / 2) -> None:
        """Stop the job, and see all these agents end with code 0, soon."""
        self.stop()
        with anyio.move_on_after(patience):
            codes = [await agent.process.wait() for agent in agents]
            assert codes == [0] * len(agents), f"{agents}\n{self.describe()}"
            return
        raise AssertionError(f"not all agents ended in {patience:g} s: {agents}\n{self.describe()}")

    def describe(self) -> str:
        """Return everything that helps to understand a failure."""
        parts = [f"{agent}\n{agent.log.read_text(errors='replace')[-6000:]}" for agent in self.agents.values()]
        return "\n".join([*map(str, self.reports[-12:]), *parts])

    async def aclose(self) -> None:
        """End every process of the job, orphans too: all carry its mark in their environment."""
        for pid in _marked(self.id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for agent in self.agents.values():
            await agent.process.wait()

    def take(self, data: bytes) -> None:
        """Take a report."""
        self.reports.append(msgspec.json.decode(data, type=Report))
        self._news.set()


@asynccontextmanager
async def start_job(folder: Path, backend: str, endpoint: str, nodes: str) -> AsyncIterator[Job]:
    """Make a job without agents; at the end none of its processes is left."""
    job = Job(folder, backend, endpoint, nodes)
    loop = asyncio.get_running_loop()

    class Reports(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, _: Any) -> None:
            job.take(data)

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(str(folder / "reports"))
    transport, _ = await loop.create_datagram_endpoint(Reports, sock=sock)
    try:
        yield job
    finally:
        with anyio.CancelScope(shield=True):
            await job.aclose()
        transport.close()


def _marked(id: str, agent: str = "") -> list[int]:
    """Return the processes that inherited the job's mark, or only those of one agent."""
    marks = {f"{MARK}={id}".encode()} | ({f"TEST_AGENT={agent}".encode()} if agent else set())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found
