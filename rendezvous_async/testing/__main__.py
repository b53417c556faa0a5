"""``python -m rendezvous_async.testing``; see ``command``."""

import sys

from rendezvous_async.testing.command import main

sys.exit(main())
