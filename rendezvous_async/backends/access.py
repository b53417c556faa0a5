"""Maps a secret and TLS files to the options of each scheme. Pure.

The command and the classic interface take the same few options for every backend; each backend has its own names.
"""

from __future__ import annotations

__all__ = ["SECRETS", "TLS_FILES", "access_options"]

SECRETS = ("secret", "password")
"""Options of an endpoint that must not be shown."""
TLS_FILES = ("tls_ca", "tls_cert", "tls_key")


def access_options(scheme: str, *, secret: str | None = None, **files: str | None) -> dict[str, str]:
    """Return the endpoint options for a secret and TLS files.

    Args:
        scheme: The endpoint's scheme.
        secret: The shared secret for ``tcp://``; ``user:password`` for etcd.
        **files: Paths by the names in ``TLS_FILES``; None means not given.

    Raises:
        ValueError: The scheme does not support them, or the secret has the wrong form.
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
                    raise ValueError(f"the secret for {scheme}:// must be user:password; it has no colon")
                options |= {"user": user, "password": password}
        case _:
            for what in (*named, *(("secret",) if secret is not None else ())):
                raise ValueError(f"{scheme}:// supports neither secrets nor TLS: leave out {what}")
    return options
