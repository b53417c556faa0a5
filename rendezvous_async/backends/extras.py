"""Checks for the optional dependencies of a scheme."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["check_installed"]


def check_installed(scheme: str) -> None:
    """Check that the optional dependencies of a scheme are installed, without importing them.

    Raises:
        ImportError: One is missing; the message says what to install.
    """
    if scheme in ("etcd", "etcds"):
        for module in ("aetcd", "grpc"):
            if find_spec(module) is None:
                raise ImportError(
                    f"{scheme}:// needs {module}, which is not installed: pip install 'rendezvous-async[etcd]'",
                    name=module,
                )
