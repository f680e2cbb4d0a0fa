"""The sink's query is hit again and again: its driver (also around the commit entry), executors, tasks, bookies. No row
twice."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from bookspark.local import LocalCluster
from tests.soak._command import main
from tests.spark.query_kills import QueryKills
from tests.spark.standalone import StandaloneCluster


def run(rounds: int) -> Mapping[str, int]:
    with (
        LocalCluster(bookies=5) as cluster,
        tempfile.TemporaryDirectory(prefix="bookspark-kills-") as folder,
        StandaloneCluster(Path(folder), workers=2) as spark,
    ):
        kills = QueryKills(cluster, Path(folder), spark.master, seed=rounds)
        return kills.run(kills.drawn(rounds))


if __name__ == "__main__":
    main(__doc__, run, 30)
