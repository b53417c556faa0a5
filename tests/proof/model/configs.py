"""What is explored: ``QUICK`` with every run of the tests, ``THOROUGH`` by command."""

from __future__ import annotations

from tests.proof.model.protocol import Config
from tests.proof.model.values import Budget

__all__ = ["QUICK", "THOROUGH"]

ONE_EACH = 3
"""Writes in a commit so small that each seat is a batch of its own."""

QUICK = (
    Config(nodes=3, min_nodes=2, max_nodes=2),
    Config(nodes=3, min_nodes=1, max_nodes=2),
    Config(nodes=3, min_nodes=1, max_nodes=1, budget=Budget(expire=1)),
    Config(nodes=3, min_nodes=2, max_nodes=2, budget=Budget(expire=1)),
    Config(nodes=3, min_nodes=2, max_nodes=2, max_writes=ONE_EACH, budget=Budget(late=1)),
    Config(nodes=2, min_nodes=1, max_nodes=2, budget=Budget(leave=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, max_writes=ONE_EACH, doomed=True, budget=Budget(expire=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, budget=Budget(expire=1, close=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, budget=Budget(crash=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, budget=Budget(wipe=1)),
    Config(nodes=3, min_nodes=2, max_nodes=4, step=2),
    Config(nodes=3, min_nodes=2, max_nodes=2, domains=(1, 1, 2), per_domain=2, budget=Budget(leave=1)),
    Config(nodes=3, min_nodes=1, max_nodes=3, domains=(1, 2, 1)),
    Config(nodes=2, min_nodes=1, max_nodes=2, specs=((None, 1), ("1:2", 2)), budget=Budget(scale=2)),
    Config(nodes=2, min_nodes=1, max_nodes=2, specs=(("1:1", None),), budget=Budget(scale=1, expire=1)),
    Config(nodes=3, min_nodes=1, max_nodes=1, specs=(("2:2", None),), budget=Budget(scale=1)),
    Config(nodes=3, min_nodes=1, max_nodes=4, by_hand=True, budget=Budget(grow=1)),
    Config(nodes=2, min_nodes=1, max_nodes=3, by_hand=True, budget=Budget(grow=1, expire=1)),
    Config(nodes=2, min_nodes=1, max_nodes=3, specs=(("1:4", None),), by_hand=True, budget=Budget(scale=1, grow=1)),
    Config(nodes=2, min_nodes=1, max_nodes=1, specs=(("1:3", None),), by_hand=True, budget=Budget(scale=1, grow=1)),
)

THOROUGH = (
    *QUICK,
    Config(nodes=3, min_nodes=2, max_nodes=2, max_writes=ONE_EACH, budget=Budget(expire=1, late=1)),
    Config(nodes=3, min_nodes=2, max_nodes=2, max_writes=ONE_EACH, doomed=True, budget=Budget(expire=1)),
    Config(nodes=3, min_nodes=1, max_nodes=2, budget=Budget(expire=1)),
    Config(nodes=2, min_nodes=1, max_nodes=2, budget=Budget(leave=1, back=1)),
    Config(nodes=3, min_nodes=1, max_nodes=2, budget=Budget(leave=1)),
    Config(nodes=3, min_nodes=2, max_nodes=3, max_writes=ONE_EACH, budget=Budget(late=1)),
    Config(nodes=3, min_nodes=2, max_nodes=3, budget=Budget(leave=1)),
    Config(nodes=3, min_nodes=2, max_nodes=3, budget=Budget(expire=1)),
    Config(nodes=3, min_nodes=2, max_nodes=2, budget=Budget(crash=1, close=1)),
    Config(nodes=3, min_nodes=3, max_nodes=3, budget=Budget(wipe=1)),
    Config(nodes=4, min_nodes=2, max_nodes=2, budget=Budget(expire=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, max_writes=ONE_EACH, budget=Budget(expire=1, late=1, close=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, max_writes=ONE_EACH, budget=Budget(expire=1, late=2)),
    Config(nodes=2, min_nodes=2, max_nodes=2, budget=Budget(crash=1, expire=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, budget=Budget(wipe=1, expire=1)),
    Config(nodes=2, min_nodes=2, max_nodes=2, rounds=3, budget=Budget(expire=1, back=1)),
    Config(nodes=3, min_nodes=1, max_nodes=3, step=2, budget=Budget(leave=1)),
    Config(nodes=3, min_nodes=1, max_nodes=3, domains=(0, 1, 1), per_domain=1, budget=Budget(expire=1)),
    Config(nodes=4, min_nodes=2, max_nodes=4, domains=(1, 1, 2, 2), per_domain=2),
    Config(nodes=3, min_nodes=1, max_nodes=3, specs=(("1:2", None), ("2:3", 3)), budget=Budget(scale=2)),
    Config(nodes=3, min_nodes=2, max_nodes=3, specs=(("1:2", 2),), max_writes=ONE_EACH, budget=Budget(scale=1)),
    Config(nodes=2, min_nodes=1, max_nodes=2, specs=((None, 1),), max_writes=ONE_EACH, budget=Budget(scale=1, late=1)),
    Config(nodes=2, min_nodes=1, max_nodes=2, specs=((None, 1), (None, 2)), budget=Budget(scale=2, crash=1)),
    Config(nodes=3, min_nodes=1, max_nodes=4, by_hand=True, budget=Budget(grow=1, leave=1)),
    Config(
        nodes=2,
        min_nodes=1,
        max_nodes=3,
        specs=(("1:4", None), ("1:3", None)),
        by_hand=True,
        budget=Budget(scale=2, grow=1, expire=1),
    ),
)
