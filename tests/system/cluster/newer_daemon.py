"""A bookie process that reports another version, for tests of upgrades. ``LocalCluster`` starts this module when a test sets
``launch.DAEMON`` to its name."""

from __future__ import annotations

import sys

import bookspark
from bookspark.servers.daemon.__main__ import main

VERSION = "99.0"

if __name__ == "__main__":
    bookspark.__version__ = VERSION
    sys.exit(main(sys.argv[1:]))
