"""``scripts/clusters standalone [plain] [SECONDS] [STEP…]``: the whole story on a standalone master, or some of its steps.

A host is gone for SECONDS (180). ``plain``: two clients without Spark instead of a query and a reader, which takes less time.
"""

from __future__ import annotations

import sys

from tests.system.clusters.standalone.cluster import StandaloneCluster
from tests.system.clusters.story import Story, kept_if_it_fails, plot


def main(arguments: list[str]) -> int:
    """Run the story. Returns the exit status 0; an AssertionError says which check failed."""
    told = plot(arguments, str(__doc__))
    with kept_if_it_fails("bookspark-standalone-") as folder, StandaloneCluster(folder) as cluster:
        Story(cluster, told).tell()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
