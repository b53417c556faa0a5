"""The same decoders under atheris, which looks for inputs that reach new code; ``pip install atheris`` first.

    python -m tests.hostile.guided "log records" -max_total_time=600

The first argument names a target of ``tests.hostile.decoders``; the others are libFuzzer's. It follows our own Python
code, not the C code of msgspec.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["rendezvous_async"]):
    from tests.hostile.decoders import targets


def main() -> None:
    name, *options = sys.argv[1:]
    with targets() as found:
        target = next(target for target in found if target.name == name)

        def try_one(data: bytes) -> None:
            with suppress(*target.allowed):
                target.read(data)

        atheris.Setup([sys.argv[0], *options], try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
