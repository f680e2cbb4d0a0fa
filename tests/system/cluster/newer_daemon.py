"""A bookie's process that says it is another version: what an upgrade puts in the place of the old one. ``LocalCluster`` starts
this module when a test puts its name in ``launch.DAEMON``."""

from __future__ import annotations

import sys

import bookspark
from bookspark.servers.daemon.__main__ import main

VERSION = "99.0"

if __name__ == "__main__":
    bookspark.__version__ = VERSION
    sys.exit(main(sys.argv[1:]))
