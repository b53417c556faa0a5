"""Exit codes, and errors as one clear line on stderr.

======  =====================================================================
code    meaning
======  =====================================================================
0       done
1       the job, or one of the checks, failed (``launch``: the job's own code)
2       wrong usage or a bad argument; settings that the run does not have
3       the endpoint cannot be reached, or it refuses this client; ``serve``: its
        address or its data directory is in use
4       the run is closed
5       a deadline passed
6       there is no such run, or no such node in it
130     interrupted (``launch``: 128 + the signal that ended it)
======  =====================================================================
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from enum import IntEnum

from rendezvous_async.cli.terminal import clean, end_bar
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
)

__all__ = ["Exit", "Failure", "end", "guarded"]


class Exit(IntEnum):
    """What a command's exit code says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    CLOSED = 4
    TIMED_OUT = 5
    NOT_FOUND = 6
    INTERRUPTED = 130


class Failure(Exception):
    """Ends a command with a line on stderr and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def guarded(run: Callable[[Namespace], int], options: Namespace) -> int:
    """Run a command; whatever goes wrong becomes a line and an exit code."""
    try:
        code = _alone(run, options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # Whoever read our output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except KeyboardInterrupt:
        return end(Exit.INTERRUPTED, "interrupted")
    except Failure as failure:
        return end(failure.code, str(failure))
    except RendezvousTimeoutError as error:  # Its further lines say why; they are what one wants to read.
        return end(Exit.TIMED_OUT, str(error))
    except RendezvousError as error:
        return end(code_of(error), one_line(error))
    except ValueError as error:
        return end(Exit.USAGE, one_line(error))
    except OSError as error:
        return end(Exit.FAILED, one_line(error))
    except ImportError as error:
        return end(Exit.USAGE, f"this endpoint needs something that is not installed: {one_line(error)}")


def _alone(run: Callable[[Namespace], int], options: Namespace) -> int:
    """Run a command; of errors that come in a group, the first counts."""
    try:
        return run(options)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def code_of(error: RendezvousError) -> Exit:
    """Return the exit code for an error of the library."""
    match error:
        case RendezvousClosedError():
            return Exit.CLOSED
        case RendezvousConnectionError():
            return Exit.UNREACHABLE
        case RendezvousSettingsError():
            return Exit.USAGE
        case RendezvousTimeoutError():
            return Exit.TIMED_OUT
        case _:
            return Exit.FAILED


def one_line(error: Exception | str) -> str:
    """Return an error's text in one line; of many attempts to connect, the last."""
    first, *more = str(error).splitlines() or [type(error).__name__]
    return f"{first} ({more[-1].strip()})" if more else first


def end(code: int, message: str) -> int:
    """Write how a command ended, on a line of its own, and return its exit code."""
    end_bar()
    print(clean(f"rdzv: {message}"), file=sys.stderr)
    return code
