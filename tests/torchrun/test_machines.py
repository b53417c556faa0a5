"""Agents on two machines, as far as the network goes: one is in a namespace of its own, which needs root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blocking import linked
from tests.ports import free_port
from tests.proof.campaign.namespaces import Link
from tests.torchrun.job import start_job

_LATE = """
import socket

look_up, failures = socket.getaddrinfo, ["the first time", "the second", "the third"]

def late(host, *args, **options):
    if host == "head.late" and failures:
        raise socket.gaierror(socket.EAI_AGAIN, f"cannot be looked up {failures.pop(0)}")
    return look_up("HEAD" if host == "head.late" else host, *args, **options)

socket.getaddrinfo = late
"""
"""A name server that learns of the head only after the agents have asked for it, as for a headless service."""


@pytest.fixture
def link() -> Iterator[Link]:
    yield from linked(5)


async def test_an_agent_whose_head_resolves_late_is_reached_at_its_own_address(tmp_path: Path, link: Link) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_LATE.replace("HEAD", link.here))
    port = free_port()
    async with start_job(tmp_path, "async-tcp", f"{link.here}:{port}", "2") as job:
        job.options += ",insecure=true,ranks=sorted"
        job.environment = {"GLOO_SOCKET_IFNAME": link.interface}
        here = await job.start("here", "--local-addr=last-by-its-name")
        job.environment = {"GLOO_SOCKET_IFNAME": link.inside, "PYTHONPATH": str(tmp_path / "site")}
        there = await job.start("there", f"--rdzv-endpoint=head.late:{port}", inside=link.prefix)
        report = await job.trains(2)
        assert job.rank0(report.round) is there, "the one whose address matters"
        await job.ends_well(here, there)


async def test_an_agent_with_a_loopback_address_says_that_others_cannot_reach_it(tmp_path: Path, link: Link) -> None:
    port = free_port()
    async with start_job(tmp_path, "async-tcp", f"{link.here}:{port}", "2") as job:
        job.options += ",insecure=true"
        await job.start("here")
        there = await job.start("there", "--local-addr=127.0.0.1", inside=link.prefix)
        assert await there.ended() != 0
        log = there.log.read_text()
        assert "has the address 127.0.0.1, which only its own machine can reach" in log
        assert "torchrun --local-addr" in log
