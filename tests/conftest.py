"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# The same examples each time, and no limit on their time: machines are slow now and then.
# To search further: pytest --hypothesis-profile=search
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("repeatable")
