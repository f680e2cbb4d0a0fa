"""``bookspark bench peers client``: BookKeeper's own client on Bookspark's bookies beside it on BookKeeper's, in turns.

Law: the same Java program, class path and workloads for both; only the bookies behind the client differ, and no two
clusters run at once. In each round the clusters take turns at being the first. A ratio is that of the medians over the
rounds. With ``against``, the bookies of another commit of this checkout take a third turn.

A workload runs with wire protocol 3, the client's default, and with 2, used by Pulsar. All entries are single ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from bookspark.lab.bench.kept_results import Results, checkout
from bookspark.lab.bench.peers.bookkeeper_peer import Peer, build, timed_by_client
from bookspark.lab.bench.trees import checked_out

OURS, THEIRS, OTHER = "bookspark", "bookkeeper", "against"
WIRES = (3, 2)
_PER_CALL = 1000
_SIZES: Mapping[int, int] = {100: 60_000, 1024: 40_000, 16384: 6_000}
"""Entries of each size, added with many in flight."""
_ONE_BY_ONE = 1_000

Line = dict[str, Any]


def workloads(wire: int, scale: float) -> list[str]:
    """The workloads of a client, in the syntax of ``BenchLedger.java``, without reads."""

    def some(count: int) -> int:
        return max(1, int(count * scale))

    deep = [
        f"B2-{size}-v{wire} add size={size} entries={some(count)} in_flight=1000 warm_up={some(count // 2)} wire={wire}"
        for size, count in _SIZES.items()
    ]
    return [
        f"B1-v{wire} add entries={some(_ONE_BY_ONE)} in_flight=1 warm_up={some(_ONE_BY_ONE)} wire={wire}",
        *deep,
    ]


def compare(
    cache: Path, directory: Path | None, rounds: int, scale: float, against: str, alone: bool
) -> tuple[str, list[str]]:
    """Measure. Each line goes to standard output. ``against``: a commit of this checkout, or ""; ``alone``: without
    BookKeeper's bookies. Returns the tables, with the changes since the last run, and the failures. Raises
    ConfigurationError for an unknown commit."""
    class_path = build(cache)
    here, results = checkout(), Results()
    with (
        checked_out(here, against) if against else nullcontext(here) as other,
        tempfile.TemporaryDirectory(prefix="bench-", dir=directory or cache) as place,
    ):
        trees = {OURS: here} | ({OTHER: other} if against else {})
        systems = [*trees, *([] if alone else [THEIRS])]
        for number in range(rounds):
            for system in systems[:: -1 if number % 2 else 1]:
                home = Path(place) / f"{system}-{number}"
                lines = _measured(class_path, home, trees.get(system), scale)
                results.add_turn(lines, system, system=system, round=number)
    return results.table(cache, "client", scale), results.failures


def _measured(class_path: list[str], home: Path, tree: Path | None, scale: float) -> Iterator[Line]:
    """The lines of a cluster: of the code in ``tree``, or of Apache BookKeeper."""
    with Peer(class_path, home, {}) if tree is None else _bookies_of(tree, home) as cluster:
        pids = cluster.pids
        for wire in WIRES:
            asked = workloads(wire, scale)
            written = [
                f"B3-{size}-v{wire} write size={size} entries={max(1, int(count * scale))} in_flight=1000 wire={wire}"
                for size, count in _SIZES.items()
            ]
            found = list(timed_by_client(class_path, home, cluster.metadata_uri, pids, [*asked, *written]))
            yield from found[: len(asked)]
            # A client reads each ledger twice; the second read counts.
            twice = [
                f"{line['label']} read size={line['size']} ledger={line['ledger']} per_call={_PER_CALL} wire={wire}"
                for line in found[len(asked) :]
                for _ in range(2)
            ]
            yield from list(timed_by_client(class_path, home, cluster.metadata_uri, pids, twice))[1::2]


class _Bookies(NamedTuple):
    """Three bookies of Bookspark, started by a separate process."""

    metadata_uri: str
    pids: list[int]


@contextmanager
def _bookies_of(tree: Path, home: Path) -> Iterator[_Bookies]:
    """A cluster of the code in ``tree``, with its data in the new folder ``home``. Raises RuntimeError if it does not start."""
    with tempfile.TemporaryDirectory(prefix="bookspark-", dir=home.parent) as folder:
        home.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        with subprocess.Popen(
            [sys.executable, "-c", _CLUSTER, folder],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                told = process.stdout.readline()
                if not told:
                    raise RuntimeError(f"the bookies of {tree} did not start")
                yield _Bookies(**json.loads(told))
            finally:
                process.stdin.close()


_CLUSTER = """
import json, sys
from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster

with EmbeddedZooKeeper(sys.argv[1] + "/zookeeper", 0) as zookeeper:
    place = zookeeper.connection_string + "/bench"
    begin_cluster(place, LedgerManager.BOOKKEEPER)
    with LocalCluster(3, sys.argv[1] + "/bookies", place, bookkeeper_port=-1) as cluster:
        uri = f"zk+hierarchical://{place.removeprefix('zk://')}/ledgers"
        print(json.dumps({"metadata_uri": uri, "pids": [bookie.pid for bookie in cluster.bookies]}), flush=True)
        sys.stdin.read()
"""
"""Serves a cluster until its input ends. It runs in any tree, so it uses nothing of this module."""
