"""What all tests share: hypothesis draws the same examples each time, so that a run can be repeated."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=40, print_blob=False
)
hypothesis.settings.load_profile("repeatable")
