"""The README's elastic training script, run as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import free_port
from tests.torchrun.job import start_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_train.py"


async def test_the_example_trains_and_goes_on_from_its_checkpoint(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    lines = await train(tmp_path, 2, checkpoint, 3)
    assert "2 workers start at epoch 0" in lines
    lines = await train(tmp_path_factory.mktemp("again"), 1, checkpoint, 5)
    assert "1 workers start at epoch 3" in lines
    assert "epoch 4 of 5, 1 workers" in lines


async def train(folder: Path, workers: int, checkpoint: Path, epochs: int) -> str:
    """Run a job of one agent to its end, and return what it wrote."""
    async with start_job(folder, "async-tcp", f"localhost:{free_port()}", "1") as job:
        job.script = [str(EXAMPLE), str(checkpoint), str(epochs)]
        agent = await job.start("agent", f"--nproc-per-node={workers}")
        assert await agent.ended() == 0, job.describe()
        return agent.log.read_text()
