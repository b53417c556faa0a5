"""A cluster of three loses members while rounds form, hold and re-form: no promise is broken, and rounds form."""

from __future__ import annotations

import random

import anyio
import msgspec
import pytest

from rendezvous_async.testing.checks import BrokenGuaranteeError
from rendezvous_async.testing.history import Formed
from tests.backends.etcd.drill import FAULTS, Drill, play
from tests.backends.etcd.sound import sound_cluster


async def test_rounds_form_and_nothing_is_lost_while_members_are_killed_and_frozen() -> None:
    faults = ["kill the leader", "freeze the leader", "kill a follower"]
    async with sound_cluster() as cluster:
        with anyio.fail_after(220):
            drill = await play(cluster, seed=1, faults=faults)
    assert len(drill.history.of(Formed)) >= 2
    assert len(drill.operations) > 100
    judge_is_strict(drill)


def judge_is_strict(drill: Drill) -> None:
    """See each kind of breach found in a history that has none."""
    reader = drill.watched[-1]
    reader.view["load/coming"] = b"a deletion was missed"
    with pytest.raises(AssertionError, match="a deletion was missed"):
        drill.judge()
    client = drill.clients[0]
    key, value, revision = client.acknowledged[-1]
    client.acknowledged.append((key, value, revision + 1))
    with pytest.raises(AssertionError, match="was lost"):
        drill.judge()
    read = next(each for each in drill.operations if each.kind == "read" and each.value)
    drill.operations.append(msgspec.structs.replace(read, value=b"never written"))
    with pytest.raises(AssertionError, match="not linearizable"):
        drill.judge()
    drill.history.add(drill.history.of(Formed)[-1])
    with pytest.raises(BrokenGuaranteeError, match="formed twice"):
        drill.judge()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 8))
async def test_rounds_form_and_nothing_is_lost_for_long(seed: int) -> None:
    rng = random.Random(seed)
    faults = [rng.choice(list(FAULTS)) for _ in range(12)]
    async with sound_cluster() as cluster:
        with anyio.fail_after(800):
            drill = await play(cluster, seed, faults, clients=3)
    assert len(drill.history.of(Formed)) >= 8
