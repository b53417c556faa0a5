"""Record the bytes that this version writes, for all later ones to read.

    python -m tests.data.record              # into the next directory, if anything differs from the newest
    python -m tests.data.record --replace    # into the newest directory: only while no release has written those bytes

Each ``v<n>`` holds ``bytes.json`` (records, messages and images in hex, and texts), ``log`` and ``directory`` (of a
file backend). Whoever changes what is written records it before the release that brings it. The older directories stay
as they are: ``test_recorded.py`` reads all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from rendezvous_async.backends.tcp import wire
from rendezvous_async.core.codec import encode
from tests.data.samples import (
    ANSWERS,
    CORE_RECORDS,
    GREETINGS,
    IMAGES,
    LOG_RECORDS,
    REQUESTS,
    TEXTS,
    write_directory,
    write_log,
)

PLACE = Path(__file__).parent


class Recorded(msgspec.Struct, frozen=True):
    """What is in ``bytes.json``: by kind, and then by the name of the sample."""

    core_records: dict[str, str]
    greetings: dict[str, str]
    requests: dict[str, str]
    answers: dict[str, str]
    texts: dict[str, str]
    images: dict[str, str] = {}
    log_records: dict[str, str] = {}


def present() -> Recorded:
    """Return what this version writes."""
    return Recorded(
        {name: encode(record).hex() for name, record in CORE_RECORDS.items()},
        {name: wire.frame(message).hex() for name, message in GREETINGS.items()},
        {name: wire.frame(message).hex() for name, message in REQUESTS.items()},
        {name: wire.frame(message).hex() for name, message in ANSWERS.items()},
        {name: make() for name, make in TEXTS.items()},
        {name: make().data.hex() for name, make in IMAGES.items()},
        {name: msgspec.msgpack.encode([record]).hex() for name, record in LOG_RECORDS.items()},
    )


def recorded(directory: Path) -> Recorded:
    """Return what was recorded."""
    return msgspec.json.decode((directory / "bytes.json").read_bytes(), type=Recorded)


def directories() -> list[Path]:
    """Return the directory of each version, the oldest first."""
    return sorted(PLACE.glob("v[0-9]*"), key=lambda path: int(path.name[1:]))


def write(directory: Path) -> None:
    """Record everything into a new directory."""
    directory.mkdir()
    text = json.dumps(msgspec.to_builtins(present()), indent=1, ensure_ascii=False)
    (directory / "bytes.json").write_text(f"{text}\n")
    write_log(directory / "log")
    with tempfile.TemporaryDirectory() as scratch:
        anyio.run(write_directory, directory / "directory", Path(scratch, "directory"))


def same(one: Path, other: Path) -> bool:
    """Tell whether two directories hold the same."""
    names = [sorted(path.relative_to(top) for path in top.rglob("*") if path.is_file()) for top in (one, other)]
    return names[0] == names[1] and all((one / name).read_bytes() == (other / name).read_bytes() for name in names[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replace", action="store_true", help="replace the newest directory")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        now = Path(scratch, "now")
        write(now)
        newest = directories()[-1] if directories() else PLACE / "v0"
        if newest.exists() and same(now, newest):
            print(f"{newest.name} has just what this version writes")
            return
        place = newest if options.replace else PLACE / f"v{int(newest.name[1:]) + 1}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(now, place)
        print(f"recorded {place.name}; commit it")


if __name__ == "__main__":
    main()
