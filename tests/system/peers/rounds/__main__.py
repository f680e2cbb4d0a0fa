"""``scripts/peers rounds --rounds N --seed S``: BookKeeper's client and ours in turns (``bookkeeper.rounds``).

It continues after a failed round, and prints it: the seed and the number reproduce it. Each bookie is a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from tests.servers.bookkeeper.judge import judging
from tests.servers.bookkeeper.rounds import BOOKIES, Rounds, drawn

_ROUNDS_A_CLUSTER = 100


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every round succeeded."""
    parser = argparse.ArgumentParser("scripts/peers rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--keep", type=Path, help="a folder that keeps what clients and bookies said")
    options = parser.parse_args(arguments)
    numbers = range(options.first, options.first + options.rounds)
    wrong, began = 0, time.monotonic()
    for start in range(0, len(numbers), _ROUNDS_A_CLUSTER):
        wrong += _of_a_cluster(numbers[start : start + _ROUNDS_A_CLUSTER], options.seed, options.keep)
    print(f"{len(numbers)} rounds of seed {options.seed}: {wrong} went wrong; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def _of_a_cluster(numbers: range, seed: int, keep: Path | None) -> int:
    """Play these rounds on a new cluster; returns the number of failed rounds."""
    wrong = 0
    with ExitStack() as stack:
        if keep is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rounds-")))
        else:
            home = keep / f"{seed}-{numbers[0]}"
            home.mkdir(parents=True)
        zookeeper = stack.enter_context(EmbeddedZooKeeper(home / "zookeeper", 0))
        place = f"{zookeeper.connection_string}/for-java"
        begin_cluster(place, LedgerManager.BOOKKEEPER)
        cluster = stack.enter_context(LocalCluster(BOOKIES, home / "bookies", place, bookkeeper_port=-1))
        uri = f"zk+hierarchical://{place.removeprefix('zk://')}/ledgers"
        judge = stack.enter_context(judging(uri, home / "judge"))
        rounds = Rounds(judge, cluster.bookkeeper(), cluster)
        for number in numbers:
            one, began = drawn(seed, number), time.monotonic()
            try:
                rounds.play(one)
            except Exception as error:
                wrong += 1
                print(f"WRONG {one}: {type(error).__name__}: {error}")
                traceback.print_exc()
            else:
                print(f"{one}: well, {time.monotonic() - began:.1f} s")
            sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
