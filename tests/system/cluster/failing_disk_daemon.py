"""A bookie process whose disks fail after SIGUSR1: from then on each call for a file below a failing path is EIO.

``LocalCluster`` starts this module when ``launch.DAEMON`` is its name. The environment holds the paths, separated by ``:``.
"""

from __future__ import annotations

import os
import signal
import sys

from bookspark.servers.daemon.__main__ import main
from bookspark.store.bookie import storage
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.testing.faulty_files import FaultyFileSystem

FAILING = "BOOKSPARK_TEST_FAILING"
FAILS = b"the disks fail from now on\n"
"""Log line at that moment: a request that arrives before it may still be served."""


def run(options: str) -> int:
    """Serve until stopped; returns the exit status."""
    files = FaultyFileSystem(RealFileSystem())
    storage.RealFileSystem = lambda: files  # type: ignore[assignment, misc]

    def fail(*_: object) -> None:
        for path in os.environ[FAILING].split(":"):
            files.add(f"* {path}/* 1.. io-error")
        os.write(sys.stderr.fileno(), FAILS)

    signal.signal(signal.SIGUSR1, fail)
    return main([options])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
