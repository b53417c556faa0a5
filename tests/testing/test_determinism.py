"""One seed is one history: again, in another process with other hashes and another memory, and on another Python."""

from __future__ import annotations

import os
import subprocess
import sys

from rendezvous_async.testing import scenario_of, simulate

SEEDS = (2, 3, 4, 21)
"""Together they have each kind of server."""
PRINT_DIGESTS = f"""
import logging
from rendezvous_async.testing import scenario_of, simulate
logging.disable(logging.CRITICAL)
for seed in {SEEDS}:
    print(simulate(scenario_of(seed)).digest)
"""


def test_one_seed_is_one_history_byte_for_byte() -> None:
    for seed in SEEDS:
        assert simulate(scenario_of(seed)).digest == simulate(scenario_of(seed)).digest


def test_another_process_plays_the_same_history() -> None:
    """RENDEZVOUS_OTHER_PYTHON names a Python of another version, in a venv with this package."""
    assert {scenario_of(seed).server for seed in SEEDS} == {"memory", "log", "hosted"}
    command = [os.environ.get("RENDEZVOUS_OTHER_PYTHON", sys.executable), "-c", PRINT_DIGESTS]
    for hashes, allocator in (("1", ""), ("2", "malloc")):
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONMALLOC": allocator}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout.split() == [simulate(scenario_of(seed)).digest for seed in SEEDS]
