"""Tests of the plugin start real torchrun agents; without torch they are skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("torch") is None:
        for item in items:
            if "tests/torchrun" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="no torch: install it with the extra 'torch'"))
