"""Elastic training under torchrun: agents may come and go, and each world goes on from the last checkpoint.

    torchrun --nnodes=1:4 --max-restarts=10 --rdzv-id=job-7 --rdzv-backend=async-tcp --rdzv-endpoint=head:29400 \
        --rdzv-conf=last_call_timeout=5,secret_file=secret.txt torchrun_train.py shared/checkpoint.pt 20

Whenever the world changes, torchrun ends the workers and starts them anew, with other ranks: so keep everything that
must survive in the checkpoint, and split the work by the rank and the size of now.
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
        print(f"{size} workers begin with epoch {first}", flush=True)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    truth = torch.arange(8.0).unsqueeze(1) / 8
    for epoch in range(first, epochs):
        samples = torch.randn(1024, 8, generator=torch.Generator().manual_seed(epoch))
        for batch in samples[rank::size].split(32):  # each worker has its own share, whatever the size is
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
    """Write beside it and rename: whoever is killed here leaves the last checkpoint whole."""
    temporary = checkpoint.with_suffix(f".{os.getpid()}")
    torch.save(state, temporary)
    temporary.replace(checkpoint)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: torchrun ... torchrun_train.py CHECKPOINT EPOCHS", file=sys.stderr)
        sys.exit(2)
    main(Path(sys.argv[1]), int(sys.argv[2]))
