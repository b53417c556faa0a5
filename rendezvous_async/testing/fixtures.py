"""The former place of the pytest fixtures: they now come with the library's plugin, ``rendezvous_async.pytest_plugin``.

A conftest that lists this module in ``pytest_plugins`` still works, also where plugins are not loaded by themselves.
"""

from __future__ import annotations

__all__ = ["pytest_plugins"]

pytest_plugins = ["rendezvous_async.pytest_plugin"]
