"""The exhaustive check of the protocol: every state that a few nodes can get into, and every guarantee in each of them.

::

    print(explore(Config(nodes=3, min_nodes=2, max_nodes=2, budget=Budget(expire=1, late=1))))

and, for everything, ``python -m tests.proof.model`` (with ``--quick``: what the tests explore each time).

The decisions are made by the real code: ``core.duty``, the coordinator's machine, with its rules, tally and ranks, and
``rules.admit`` and ``rules.change_of`` for the nodes. The model adds what surrounds them: nodes that come, look,
return, leave, die and lose their sessions; coordinators that read and write step by step, several of which may believe
that they hold the post; commits and records that are applied long after their authors gave up; and time that passes at
any speed. How a node's first commit founds a run (``core.arrival``) is not part of it: here the run exists from the
start. ``Budget`` says how much trouble there may be, ``Config`` how many nodes and rounds.

* ``values``: a state, as nested values
* ``protocol``: rows as records and back, and what nodes read from them
* ``store``: conditional commits and sessions
* ``moves``, ``duties``: what nodes and bad luck do; what coordinators do, by their real machine
* ``canonical``: states that differ only in names are one
* ``checks``: the guarantees
* ``explore``: breadth first through all of it; a broken check comes with the shortest way to it, in words

Beyond the guarantees, one check is of progress: from every state, if there is no more trouble, some path leads to a
round in which every node has a place or is a spare, to the close, or to the last round that the configuration allows.
"""

from tests.proof.model.checks import CHECKS
from tests.proof.model.configs import QUICK, THOROUGH
from tests.proof.model.explore import Broken, Result, explore
from tests.proof.model.protocol import Config, Protocol
from tests.proof.model.values import Budget

__all__ = ["CHECKS", "QUICK", "THOROUGH", "Broken", "Budget", "Config", "Protocol", "Result", "explore"]
