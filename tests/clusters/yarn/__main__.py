"""``scripts/clusters yarn [client|cluster] [SECONDS] [STEP…]``: the whole story on a real YARN. A host is gone for SECONDS (180).

STEP: the names of ``Story``'s steps; without one, all are told.
"""

from __future__ import annotations

import sys

from tests.clusters.story import Story, kept_if_it_fails
from tests.clusters.yarn.cluster import YarnCluster

GONE_SECONDS = 180.0


def main(arguments: list[str]) -> int:
    """Tell the story. Returns the exit status: 0, or an AssertionError says what did not hold."""
    gone = next((float(word) for word in arguments if word.isdecimal()), GONE_SECONDS)
    with (
        kept_if_it_fails("bookspark-yarn-") as folder,
        YarnCluster(folder, cluster_mode="cluster" in arguments) as cluster,
    ):
        Story(cluster, gone).tell([word for word in arguments if "_" in word])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
