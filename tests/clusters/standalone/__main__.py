"""``scripts/clusters standalone [plain] [SECONDS] [STEP…]``: the whole story on a standalone master.

A host is gone for SECONDS (180). STEP: the names of ``Story``'s steps; without one, all are told. ``plain``: two clients
without Spark instead of a query and a reader, which takes less time.
"""

from __future__ import annotations

import sys

from tests.clusters.standalone.cluster import StandaloneCluster
from tests.clusters.story import Load, PlainLoad, Story, kept_if_it_fails

GONE_SECONDS = 180.0


def main(arguments: list[str]) -> int:
    """Tell the story. Returns the exit status: 0, or an AssertionError says what did not hold."""
    gone = next((float(word) for word in arguments if word.isdecimal()), GONE_SECONDS)
    with (
        kept_if_it_fails("bookspark-standalone-") as folder,
        StandaloneCluster(folder) as cluster,
    ):
        Story(cluster, gone, PlainLoad if "plain" in arguments else Load).tell(
            [word for word in arguments if "_" in word]
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
