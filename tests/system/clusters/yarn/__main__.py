"""``scripts/clusters yarn [client|cluster] [plain] [SECONDS] [STEP…]``: the whole story on a real YARN, or some of its steps.

A host is gone for SECONDS (180). ``plain``: two clients without Spark instead of a query and a reader, which takes less time.
"""

from __future__ import annotations

import sys

from tests.system.clusters.story import Story, kept_if_it_fails, plot
from tests.system.clusters.yarn.cluster import YarnCluster


def main(arguments: list[str]) -> int:
    """Run the story. Returns the exit status 0; an AssertionError says which check failed."""
    told = plot(arguments, str(__doc__), "client", "cluster")
    with (
        kept_if_it_fails("bookspark-yarn-") as folder,
        YarnCluster(folder, cluster_mode="cluster" in arguments) as cluster,
    ):
        Story(cluster, told).tell()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
