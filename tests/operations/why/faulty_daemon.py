"""A bookie process whose disks and clock go wrong on SIGUSR1, as a file prescribes.

``LocalCluster`` starts this module when ``launch.DAEMON`` names it. The environment names the file. Each line is a rule of
``bookspark.testing.faulty_files``, or ``clock SECONDS``: how far the clock is ahead from then on. A bookie that listens at
another address of this host reports another host name.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from bookspark.servers.daemon.__main__ import main
from bookspark.store.bookie import storage
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.testing.faulty_files import FaultyFileSystem

_HERE = "127.0.0.1"
FAULTS = "BOOKSPARK_TEST_FAULTS"


def run(options: str) -> int:
    """Serve until the process is asked to stop; returns the exit status."""
    files = FaultyFileSystem(RealFileSystem())
    storage.RealFileSystem = lambda: files  # type: ignore[assignment, misc]
    host = msgspec.json.decode(Path(options).read_bytes()).get("host", _HERE)
    if host != _HERE:
        socket.gethostname = lambda: f"host-{host}"
    now_ns, ahead = time.time_ns, [0]
    time.time_ns = lambda: now_ns() + ahead[0]
    time.time = lambda: time.time_ns() / 1e9

    def change(*_: object) -> None:
        for line in Path(os.environ[FAULTS]).read_text().splitlines():
            if line.startswith("clock "):
                ahead[0] = int(line.split()[1]) * 1_000_000_000
            else:
                files.add(line)

    signal.signal(signal.SIGUSR1, change)
    return main([options])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
