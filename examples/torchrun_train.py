"""Elastic training under torchrun: agents may come and go, and each world resumes from the last checkpoint.

    torchrun --nnodes=1:4 --max-restarts=10 --rdzv-id=job-7 --rdzv-backend=async-tcp --rdzv-endpoint=head:29400 \
        --rdzv-conf=last_call_timeout=5,secret_file=secret.txt torchrun_train.py shared/checkpoint.pt 20

When the world changes, torchrun restarts the workers with new ranks. So keep everything that must survive in the
checkpoint, and split the work by the current rank and size.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(checkpoint: Path, epochs: int) -> None:
    dist.init_process_group("gloo")  # rank, size and the store's address come from torchrun
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(8, 1)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
    if rank == 0:
        print(f"{size} workers start at epoch {first}", flush=True)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    truth = torch.arange(8.0).unsqueeze(1) / 8
    for epoch in range(first, epochs):
        samples = torch.randn(1024, 8, generator=torch.Generator().manual_seed(epoch))
        for batch in samples[rank::size].split(32):  # each worker's own share
            loss = torch.nn.functional.mse_loss(parallel(batch), batch @ truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            save({"model": model.state_dict(), "epoch": epoch}, checkpoint)
            print(f"epoch {epoch} of {epochs}, {size} workers, loss {loss.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def save(state: dict[str, object], checkpoint: Path) -> None:
    """Write a temporary file and rename it: a worker killed here leaves the last checkpoint intact."""
    temporary = checkpoint.with_suffix(f".{os.getpid()}")
    torch.save(state, temporary)
    temporary.replace(checkpoint)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: torchrun ... torchrun_train.py CHECKPOINT EPOCHS", file=sys.stderr)
        sys.exit(2)
    main(Path(sys.argv[1]), int(sys.argv[2]))
