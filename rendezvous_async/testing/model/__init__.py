"""The exhaustive check of the protocol: every state that a few nodes can get into, and every guarantee in each of them.

::

    print(explore(Config(nodes=3, min_nodes=2, max_nodes=2, budget=Budget(expire=1, late=1))))

and, for everything, ``python -m rendezvous_async.testing.model`` (with ``--quick``: what the tests explore each time).

What runs is the real thing where it decides: ``core.rules``, ``core.tally`` and ``core.ranks``. Around it are nodes
that come, look, return, leave, die and lose their sessions; coordinators, several of which may believe that they hold
the post, that read and write step by step; commits and records that are applied long after their authors gave up;
and time that passes as it likes. ``Budget`` says how much trouble there may be, ``Config`` how many nodes and rounds.

* ``values``: a state, as nested values
* ``protocol``: the real functions, and the commits of a coordinator; planted bugs override it
* ``store``: conditional commits and sessions
* ``moves``, ``duties``: what nodes and bad luck do; what coordinators do
* ``canonical``: states that differ only in names are one
* ``checks``: the guarantees
* ``explore``: breadth first through all of it; a broken check comes with the shortest way to it, in words

Beyond the guarantees one check is of progress: from every state, if the trouble stops there, some way leads to a round
in which everybody has a place or is a spare, to the close, or to the last round that the configuration allows.
"""

from rendezvous_async.testing.model.checks import CHECKS
from rendezvous_async.testing.model.configs import QUICK, THOROUGH
from rendezvous_async.testing.model.explore import Broken, Result, explore
from rendezvous_async.testing.model.protocol import Config, Protocol
from rendezvous_async.testing.model.values import Budget

__all__ = ["CHECKS", "QUICK", "THOROUGH", "Broken", "Budget", "Config", "Protocol", "Result", "explore"]
