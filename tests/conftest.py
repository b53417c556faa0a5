"""Settings for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# The same examples each time, and no limit on their time: machines are slow now and then.
# To search further: pytest --hypothesis-profile=search
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("repeatable")

# A shell that starts pytest in the background has it ignore SIGINT, and every process that a test starts would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
