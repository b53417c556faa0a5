"""What the workers run: all_reduce after all_reduce, each reported to the test, until the test says stop.

    training.py <socket> <stop file> <crash file>

A report is one datagram: agent, pid, round, rank, size, step, time. A round goes by the port of its store, which is
fresh for each. When the stop file is there, all workers see so in the same step and end well. A worker that finds the
crash file removes it and crashes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    reports, stop, crash = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    step = 0
    while True:
        step += 1
        tensor = torch.tensor([1.0, float(stop.exists())])
        dist.all_reduce(tensor)
        report = {
            "agent": os.environ["TEST_AGENT"],
            "pid": os.getpid(),
            "round": os.environ["MASTER_PORT"],
            "rank": dist.get_rank(),
            "size": int(tensor[0].item()),
            "step": step,
            "at": time.monotonic(),
        }
        with contextlib.suppress(OSError):  # the test has ended
            sock.sendto(json.dumps(report).encode(), reports)
        if tensor[1].item():
            break
        with contextlib.suppress(FileNotFoundError):
            crash.unlink()
            os._exit(3)
        time.sleep(0.02)  # noqa: TID251  # this is the training
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
