"""``scripts/peers distributedlog-tests [CLASS…]``: tests of DistributedLog's core that need a cluster, on our bookies."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.system.peers.java_tests.command import run_tests
from tests.system.peers.java_tests.running import PeerTests

TESTS = PeerTests(
    folder=Path(__file__).parent,
    jar="distributedlog-core",
    package="org.apache.distributedlog.",
    packages=(),
    cluster_class="org.apache.distributedlog.TestDistributedLogBase",
)


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every class was run, whatever the results of its tests."""
    return run_tests(TESTS, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
