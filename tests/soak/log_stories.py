"""The stories of logs that tests of ``tests/logs`` and ``tests/spark`` draw by seed, over ledgers in memory: producers
whose answers get lost, readers that share lanes or pass gaps, queries and batch writes, lanes that end, retention,
times, several logs, copies of checkpoints. The number of rounds is that of stories of each kind, 1,000 by default."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from tests.soak._command import main
from tests.stories import STORIES

MODULES = (
    "tests/logs/test_gaps.py",
    "tests/logs/test_producer_faults.py",
    "tests/logs/test_shared_lanes.py",
    "tests/spark/test_checkpoint_copies.py",
    "tests/spark/test_ended_lanes.py",
    "tests/spark/test_lanes.py",
    "tests/spark/test_log_times.py",
    "tests/spark/test_lost_entries.py",
    "tests/spark/test_retention.py",
    "tests/spark/test_several_logs.py",
    "tests/spark/test_small_pieces.py",
    "tests/spark/test_trigger_delay.py",
    "tests/spark/test_txn_versions.py",
)


def run(rounds: int) -> Mapping[str, int]:
    os.environ[STORIES] = str(rounds)
    status = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not spark", *MODULES])
    assert status == pytest.ExitCode.OK, "the story that failed is told above, with its seed"
    return {"stories of each kind": rounds}


if __name__ == "__main__":
    main(__doc__, run, 1000)
