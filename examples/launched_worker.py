"""A worker for ``rdzv launch``: an all-reduce over plain sockets, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

It uses no code of rendezvous_async. Run this in two or more shells, kill one of them, and start it again:

    rdzv launch tcp://localhost:29400 --run-id sum --nodes 2:4 --last-call 3 -- python examples/launched_worker.py 20

The optional second argument is a checkpoint file, from which the job resumes.
"""

import os
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

if len(sys.argv) < 2 or "RANK" not in os.environ:
    print("usage: rdzv launch ... -- python launched_worker.py STEPS [CHECKPOINT]", file=sys.stderr)
    sys.exit(2)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def connect() -> list[TextIO]:
    """Connect to rank 0; rank 0 accepts all others."""
    if RANK == 0:
        with socket.create_server(MASTER) as server:
            return [server.accept()[0].makefile("rw") for _ in range(SIZE - 1)]
    for _ in range(600):
        try:
            return [socket.create_connection(MASTER).makefile("rw")]
        except ConnectionRefusedError:  # Rank 0 is not up yet.
            time.sleep(0.1)  # noqa: TID251
    raise SystemExit(f"cannot connect to rank 0 at {MASTER}")


def all_reduce(peers: list[TextIO], value: int) -> int:
    """Return the sum of all ranks' values."""
    if RANK == 0:
        value += sum(int(peer.readline()) for peer in peers)
    for peer in peers:
        print(value, file=peer, flush=True)
    return value if RANK == 0 else int(peers[0].readline())


def main() -> None:
    steps, checkpoint = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    first = int(checkpoint.read_text()) if checkpoint is not None and checkpoint.exists() else 0
    peers = connect()
    first = all_reduce(peers, first if RANK == 0 else 0)  # All ranks continue from rank 0's step.
    for step in range(first, steps):
        time.sleep(0.1)  # noqa: TID251 - your training step
        total = all_reduce(peers, 1)
        if RANK == 0 and checkpoint is not None:
            checkpoint.write_text(str(step + 1))
        print(f"round {os.environ['RDZV_ROUND']}: rank {RANK} of {SIZE}: step {step}, {total} hands", flush=True)


if __name__ == "__main__":
    main()
