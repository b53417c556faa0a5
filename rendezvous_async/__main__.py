"""``python -m rendezvous_async`` is the ``rdzv`` command."""

import sys

from rendezvous_async.cli import main

sys.exit(main())
