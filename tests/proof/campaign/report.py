"""A whole campaign: act after act until the time is over, and what is printed about it."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec

from rendezvous_async.testing.checks import CHECKS
from tests.proof.campaign.act import Act
from tests.proof.campaign.performer import Plan
from tests.proof.campaign.stage import FileStage, Stage
from tests.proof.campaign.stage_cas import CasStage
from tests.proof.campaign.stage_etcd import EtcdStage
from tests.proof.campaign.stage_tcp import HostedStage, TcpStage
from tests.proof.campaign.verdict import DATA_CHECKS

__all__ = ["STAGES", "Result", "run_campaign"]

STAGES: dict[str, type[Stage]] = {
    stage.name: stage for stage in (TcpStage, HostedStage, EtcdStage, FileStage, CasStage)
}


class Result(msgspec.Struct):
    """What came of a campaign.

    Attributes:
        breach: What did not hold; empty if everything did.
        act: The act that it happened in.
        kept: Where the histories of that act are.
    """

    backend: str
    seed: int
    pace: float = 1.0
    acts: int = 0
    rounds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    looked: Counter[str] = msgspec.field(default_factory=Counter)
    told: list[float] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)
    breach: str = ""
    act: int = 0
    kept: str = ""

    def __str__(self) -> str:
        lines = [
            f"campaign on {self.backend}, seed {self.seed}: {self.acts} acts in {self.seconds / 60:.1f} minutes, "
            f"{self.rounds} rounds formed, {self.faults.total()} faults put in, {'1' if self.breach else 'no'} breach"
        ]
        lines += [f"  {count:6} {kind}" for kind, count in sorted(self.faults.items(), key=lambda each: -each[1])]
        checked = ", ".join(f"{count} {what}" for what, count in self.looked.items())
        lines.append(f"checked by {len(CHECKS) + len(DATA_CHECKS)} checks after each act: {checked or 'nothing'}")
        if self.told:
            lines.append(
                f"a killed member was known to all others after {statistics.median(self.told):.2f} s (median), "
                f"{max(self.told):.2f} s (longest)"
            )
        lines += [f"remark: {remark}" for remark in self.remarks]
        if self.breach:
            lines += [
                f"BREACH in act {self.act}: {self.breach}",
                f"  histories: {self.kept}",
                f"  repeat it: python -m tests.proof campaign --backend {self.backend} --seed {self.seed} "
                f"--first {self.act} --acts 1 --pace {self.pace:g}",
                "  (the same faults at the same times; how processes interleave is up to the machine)",
            ]
        return "\n".join(lines)


async def run_campaign(
    backend: str,
    seed: int,
    *,
    minutes: float = 1.0,
    first: int = 1,
    acts: int | None = None,
    plan: Plan | None = None,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Play acts until the time is over, or one breaks a promise.

    Args:
        backend: ``tcp``, ``hosted``, ``etcd``, ``file`` or ``cas``.
        seed: Of everything random.
        minutes: No act begins after this many.
        first: The number of the first act; each act has a seed of its own, made of the campaign's and its number.
        acts: How many acts to play at most.
        plan: How large an act is.
        keep: Where to put what an act with a breach has left; by default a new temporary folder.
        say: Told how far it is.
    """
    plan = Plan() if plan is None else plan
    result = Result(backend, seed, plan.pace)
    folder = Path(tempfile.mkdtemp(prefix=f"rendezvous-campaign-{backend}-", dir=keep))
    began = anyio.current_time()
    try:
        async with anyio.create_task_group() as group:
            async with STAGES[backend](folder, group, plan.nodes + plan.clients, plan.pace, plan.ttl) as stage:
                result.remarks = stage.remarks
                while acts is None or result.acts < acts:
                    number = first + result.acts
                    place = folder / f"act-{number}"
                    place.mkdir()
                    act = Act(stage, plan, f"{seed}.{number}", place)
                    try:
                        await act.play()
                    except AssertionError as error:
                        result.breach, result.act = str(error), number
                    except OSError as error:
                        result.breach, result.act = f"none, but the campaign could not go on: {error!r}", number
                    result.acts += 1
                    result.rounds += act.rounds
                    result.faults += act.faults
                    result.looked += act.looked
                    result.told += [] if act.told is None else [act.told]
                    result.seconds = anyio.current_time() - began
                    say(f"act {number}: {act.rounds} rounds, {act.faults.total()} faults; {result.seconds:.0f} s")
                    if result.breach:
                        result.kept = str(place)
                        break
                    shutil.rmtree(place)
                    if result.seconds >= minutes * 60:
                        break
            group.cancel_scope.cancel()
    finally:
        if not result.breach:
            shutil.rmtree(folder, ignore_errors=True)
    return result
