"""Kills a launcher's workers when the launcher itself is gone, even if that was killed with SIGKILL.

Run as a script of its own, with nothing but the standard library. It leads the process group that the workers are
started in, so there is no moment at which a worker runs and is not on the leash. It says "ready" when signals to the
group no longer hurt it; the end of its input means that the launcher is gone.
"""

import os
import signal
import sys


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
