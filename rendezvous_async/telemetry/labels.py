"""Values of labels, bounded in length."""

from __future__ import annotations

import hashlib

__all__ = ["label_value"]

LONGEST = 128


def label_value(text: str) -> str:
    """Return text as the value of a label: if it is long, its beginning and a digest, so that two stay different."""
    if len(text) <= LONGEST:
        return text
    digest = hashlib.blake2s(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return f"{text[: LONGEST - len(digest) - 1]}~{digest}"
