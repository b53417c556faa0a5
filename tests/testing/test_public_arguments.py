"""Arguments of the testing package that users may pass and no other test does."""

from __future__ import annotations

from typing import Any

import pytest

from rendezvous_async.backends.tcp import serve
from rendezvous_async.node.connect import connect
from rendezvous_async.testing import (
    BrokenGuaranteeError,
    History,
    Operation,
    Proxy,
    check_linearizable,
    scenario_of,
    simulate,
)
from rendezvous_async.testing.history import Formed


def test_a_scenario_of_some_size_and_length() -> None:
    scenario = scenario_of(7, nodes=4, actions=2)
    assert scenario.nodes == 4
    assert len([step for step in scenario.steps if step.do not in ("wait", "close", "scale")]) == 2
    seen: list[History] = []
    report = simulate(scenario, seen.append)
    assert report.rounds == len(seen[0].of(Formed)) > 0


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": -1}, {"nodes": True}, {"nodes": "3"}, {"actions": -1}])
def test_a_scenario_of_a_wrong_size_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        scenario_of(7, **wrong)


def test_whoever_watches_a_scenario_may_raise() -> None:
    def dislike(history: History) -> None:
        raise BrokenGuaranteeError("taste", f"{history}")

    with pytest.raises(BrokenGuaranteeError, match="taste"):
        simulate(scenario_of(7, nodes=2, actions=0), watch=dislike)


def test_what_every_key_holds_at_first() -> None:
    read = Operation("key", "read", 0.0, 1.0, value=b"old", client="somebody")
    check_linearizable([read], initial=b"old")
    with pytest.raises(AssertionError, match="not linearizable"):
        check_linearizable([read])


async def test_a_proxy_listens_where_it_is_told() -> None:
    async with serve("127.0.0.1", 0) as server:
        port = int(server.endpoint.rpartition(":")[2])
        async with Proxy("127.0.0.1", port, listen="127.0.0.2") as proxy:
            endpoint = f"tcp://127.0.0.2:{proxy.port}?is_host=false"
            async with connect(endpoint, run_id="run", nodes=1) as rendezvous:
                assert (await rendezvous.join()).size == 1
            assert proxy.accepted == 1
