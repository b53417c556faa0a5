"""How a client is let in: what a secret and TLS files are called by each kind of endpoint. Pure.

The command and the classic interface take the same few options for every backend; each backend has names of its own.
"""

from __future__ import annotations

__all__ = ["SECRETS", "TLS_FILES", "access_options"]

SECRETS = ("secret", "password")
"""Options of an endpoint that nobody else may see."""
TLS_FILES = ("tls_ca", "tls_cert", "tls_key")


def access_options(scheme: str, *, secret: str | None = None, **files: str | None) -> dict[str, str]:
    """Return the options of an endpoint for a secret and the TLS files that were named.

    Args:
        scheme: Of the endpoint.
        secret: What ``tcp://`` nodes share; for etcd, ``user:password``.
        **files: By the names of ``TLS_FILES``; None stands for one that was not named.

    Raises:
        ValueError: This kind of endpoint has no use for them, or the secret is not one for it.
    """
    named = {name: file for name in TLS_FILES if (file := files.get(name)) is not None}
    options: dict[str, str] = {}
    match scheme:
        case "tcp":
            options |= named
            if secret is not None:
                options["secret"] = secret
        case "etcd" | "etcds":
            options |= {name.removeprefix("tls_"): file for name, file in named.items()}
            if "cert" in options:
                options.setdefault("key", options["cert"])  # One file may hold both.
            if secret is not None:
                user, colon, password = secret.partition(":")
                if not colon:
                    raise ValueError(f"the secret for {scheme}:// must be user:password, and there is no colon in it")
                options |= {"user": user, "password": password}
        case _:
            for what in (*named, *(("secret",) if secret is not None else ())):
                raise ValueError(f"{scheme}:// knows neither secrets nor TLS: leave out {what}")
    return options
