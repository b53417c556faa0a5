"""Exit codes, and errors as one line on stderr."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from enum import IntEnum

from rendezvous_async.cli.terminal import clean
from rendezvous_async.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
)

__all__ = ["Exit", "Failure", "end", "guarded"]


class Exit(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1  # The job or a check failed (launch: the job's own exit code).
    USAGE = 2  # Usage error, bad argument, or settings that differ from the run's.
    UNREACHABLE = 3  # Endpoint unreachable, or it refuses this client (serve: address or data directory in use).
    CLOSED = 4
    TIMED_OUT = 5
    NOT_FOUND = 6  # No such run, or no such node in it.
    INTERRUPTED = 130  # launch: 128 + the signal that ended it.


class Failure(Exception):
    """Ends a command with a line on stderr and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def guarded(run: Callable[[Namespace], int], options: Namespace) -> int:
    """Run a command; an error becomes one line on stderr and an exit code."""
    try:
        code = _ungrouped(run, options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # The reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except KeyboardInterrupt:
        return end(Exit.INTERRUPTED, "interrupted")
    except Failure as failure:
        return end(failure.code, str(failure))
    except RendezvousTimeoutError as error:  # Its other lines say why.
        return end(Exit.TIMED_OUT, str(error))
    except RendezvousError as error:
        return end(code_of(error), one_line(error))
    except (ValueError, ImportError) as error:
        return end(Exit.USAGE, one_line(error))
    except OSError as error:
        return end(Exit.FAILED, one_line(error))


def _ungrouped(run: Callable[[Namespace], int], options: Namespace) -> int:
    """Run a command; raise the first error of a group."""
    try:
        return run(options)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def code_of(error: RendezvousError) -> Exit:
    """Return the exit code for an error from the library."""
    match error:
        case RendezvousClosedError():
            return Exit.CLOSED
        case RendezvousConnectionError():
            return Exit.UNREACHABLE
        case RendezvousSettingsError():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def one_line(error: Exception | str) -> str:
    """Return an error's first line, with the last one, such as the latest attempt to connect, in parentheses."""
    first, *more = str(error).splitlines() or [type(error).__name__]
    return f"{first} ({more[-1].strip()})" if more else first


def end(code: int, message: str) -> int:
    """Print a message to stderr and return the exit code."""
    print(clean(f"rdzv: {message}"), file=sys.stderr)
    return code
