"""The same decoders under atheris, which looks for inputs that reach new code; ``pip install atheris`` first.

    python -m tests.hostile.guided "log records" -max_total_time=600

The first argument names a target of ``tests.hostile.decoders``; the others are libFuzzer's. It begins with sound input,
and spoils it in libFuzzer's ways and in ours (``tests.hostile.mangling``). It follows our own Python code, not the C
code of msgspec.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

USAGE = 'python -m tests.hostile.guided "log records" -max_total_time=600'


def main() -> int | str:
    """Fuzz one target until libFuzzer has had enough; returns what to exit with."""
    if find_spec("atheris") is None:
        return "atheris is not installed here: pip install atheris"
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["rendezvous_async"]):
        from tests.hostile.decoders import targets
        from tests.hostile.mangling import mangle

    name, *options = sys.argv[1:] or [""]
    with targets() as found:
        known = {target.name: target for target in found}
        if name not in known:
            return f"which decoder? for example {USAGE}; there are {', '.join(known)}"
        target = known[name]

        def try_one(data: bytes) -> None:
            with suppress(*target.allowed):
                target.read(data)

        def spoil(data: bytes, longest: int, seed: int) -> bytes:
            rng = random.Random(seed)
            spoiled: bytes = mangle(rng, [data]) if rng.random() < 0.5 else atheris.Mutate(data, len(data) + 1)
            return spoiled[:longest]

        with tempfile.TemporaryDirectory(prefix="rendezvous-guided-") as corpus:
            for number, sound in enumerate(target.corpus):
                (Path(corpus) / str(number)).write_bytes(sound)
            if (child := os.fork()) == 0:  # libFuzzer ends the process that it runs in, and cleans up nothing
                atheris.Setup([sys.argv[0], *options, corpus], try_one, custom_mutator=spoil)
                atheris.Fuzz()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
