"""``log alter`` at random moments, under a query, a producer and two readers that are killed: for how long does it stop a
writer?

The number of rounds is that of alterations. Each row must exist once, and each reader must read all rows. A second
producer, which is not killed, appends row by row; printed are the usual duration of its appends, and the longest at an
alteration. The aim: p99 of these pauses is at most 50 ms over the usual p99.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from bookspark.local import LocalCluster
from tests.soak._command import main
from tests.spark.faulty_sink import AFTER_COMMIT, BEFORE_COMMIT
from tests.system.many_writers.altering import Altering

_PAUSE_SECONDS_MAX = 2.0


def run(rounds: int) -> Mapping[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="bookspark-altered-") as folder,
        LocalCluster(bookies=4) as cluster,
        cluster.bookkeeper() as bookkeeper,
    ):
        altering = Altering(cluster, bookkeeper, Path(folder))
        counts = dict(altering.run([AFTER_COMMIT, "driver", BEFORE_COMMIT], rounds, _PAUSE_SECONDS_MAX))
    counts["pause p99 over usual p99, ms"] = round(counts["pause p99 ms"] - counts["usual p99 ms"], 2)
    return counts


if __name__ == "__main__":
    main(__doc__, run, 100)
