"""``scripts/peers bookkeeper-tests [CLASS…]``: BookKeeper's tests of its client and autorecovery, on Bookspark's bookies."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.system.peers.java_tests.command import run_tests
from tests.system.peers.java_tests.running import PeerTests

TESTS = PeerTests(
    folder=Path(__file__).parent,
    jar="bookkeeper-server",
    package="org.apache.bookkeeper.",
    packages=("org/apache/bookkeeper/client", "org/apache/bookkeeper/replication"),
    cluster_class="org.apache.bookkeeper.test.BookKeeperClusterTestCase",
)


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every class was run, whatever the results of its tests."""
    return run_tests(TESTS, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
