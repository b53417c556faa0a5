"""Some seconds of the fuzzing that ``python -m tests.hostile.fuzz`` does for hours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from tests.hostile.decoders import Target, targets
from tests.hostile.fuzz import Tally, fuzz_decoder, main
from tests.hostile.port import GROWTH_KIB, Port
from tests.hostile.victim import State

INPUTS = 300
NAMES = (
    "core.codec Head", "core.codec Node", "core.codec Seat", "core.codec Post", "core.codec HistoryRecord",
    "tcp.wire stream", "tcp.wire greeting", "tcp.wire request", "tcp.wire answer", "tcp.auth secret", "log frame",
    "log records", "log file", "file session names", "etcd keys and leases", "http request", "endpoint", "sizes",
    "ids as segments of keys",
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Target]]:
    with targets() as all_targets:
        yield {target.name: target for target in all_targets}


def test_every_target_is_tried(found: dict[str, Target]) -> None:
    assert tuple(found) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_answers_nonsense_with_its_own_error(found: dict[str, Target], name: str) -> None:
    target = found[name]
    tally = Tally(broken=[])
    fuzz_decoder(target, random.Random(7), INPUTS, tally)
    assert tally.broken == []
    assert tally.inputs == INPUTS
    assert bool(tally.refused) == bool(target.allowed)  # sound or not, some of it is refused where it can be


@pytest.mark.parametrize("secret", [None, "secret"])
async def test_the_port_survives_what_is_thrown_at_it(secret: str | None) -> None:
    rng = random.Random(7)
    async with Port(secret) as port:
        for _ in range(4):
            assert await port.attack(rng, 30) == []
        assert all(look.connections == 0 for look in port.looks)
        assert port.grown_kib < GROWTH_KIB


async def test_a_server_that_grows_is_reported() -> None:
    """As one would that keeps something of every connection: its first look is made to say that it was small."""
    async with Port() as port:
        assert await port.attack(random.Random(7), 1) == []
        small = port.looks[0].rss_kib - GROWTH_KIB - 1024
        port.looks[0] = State(0, small, [])
        (broken,) = await port.attack(random.Random(7), 1)
        assert broken.startswith("the server has grown by")


def test_decoders_and_both_ports_are_tried_by_the_command() -> None:
    said: list[str] = []
    assert main(["--minutes", "0.01", "--seed", "3"], said.append) == 0
    names = [json.loads(line)["target"] for line in said]
    assert names == [*NAMES, "tcp port", "tcp port with a secret"]


def test_a_decoder_that_breaks_is_reported() -> None:
    def broken(data: bytes) -> None:
        raise KeyError(len(data))

    tally = Tally(broken=[])
    fuzz_decoder(Target("broken", broken, (ValueError,), (b"x",)), random.Random(1), 3, tally)
    assert len(tally.broken) == 3
    assert "broken: KeyError(" in tally.broken[0]


@pytest.mark.slow
def test_two_minutes_of_it() -> None:
    assert main(["--minutes", "2", "--seed", "3"]) == 0
