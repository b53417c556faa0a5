"""Kill the workers when their launcher dies, even by SIGKILL.

Runs as a script and uses only the standard library. It leads the process group that the workers start in, so no worker
ever runs outside the group. It prints "ready" once it ignores signals to the group. End of file on stdin means that the
launcher is gone.
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
