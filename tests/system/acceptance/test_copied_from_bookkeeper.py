"""Ledgers of a real cluster of BookKeeper 4.17.3, copied as the guide says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from bookspark.lab.bench.peers.bookkeeper_peer import Peer
from bookspark.local import LocalCluster
from bookspark.spark.short_jobs import QUICK_JVM
from tests.pages import path, run, script_of
from tests.servers.bookkeeper.judge import class_path, judging
from tests.system.acceptance.test_bookkeepers_client import DIGESTS, create, payload, told, uri

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800), pytest.mark.spark]
COUNT, SIZE = 150, 700
SUBMIT = [
    str(Path(sys.executable).with_name("spark-submit")),
    *("--master", "local[2]", "--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}"),
    str(Path(__file__).parents[3] / "jobs/copy_ledgers.py"),
]


def test_ledgers_copied_from_a_bookkeeper_cluster_are_read_by_both_clients(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")  # JVMs that live for seconds
    expected = [payload(i, SIZE) for i in range(COUNT)]
    ledgers, environment = {}, {**os.environ, "PATH": path()}
    place = chroot
    with Peer(["-cp", class_path()], tmp_path / "peer", {}) as peer:
        before, after = script_of("guides/bookkeeper.md").split("bookspark ledger delete", 1)
        run(before, tmp_path, environment | {"NEW": place})
        with LocalCluster(3, tmp_path / "bookies", place, bookkeeper_port=-1) as cluster:
            with judging(peer.metadata_uri, tmp_path / "there") as judge:
                for digest, quorums in zip(DIGESTS, cycle(("3 3 2", "3 2 2")), strict=False):
                    name, ledger_id = create(judge, "v3", digest, quorums)
                    judge.ask("pipeline", name, COUNT, SIZE)
                    judge.ask("close", name)
                    ledgers[ledger_id] = digest
                create(judge, "v3")  # a ledger that stays open
            asked = ["--source", peer.metadata_uri.partition("://")[2], "--zookeeper", place, "--tasks", "2"]
            done = subprocess.run(SUBMIT + asked, env=environment, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr[-3000:]
            size = {"entries": 4 * COUNT, "bytes": 4 * COUNT * SIZE, "failed": {}}
            assert json.loads(done.stdout.splitlines()[-1]) == {"copied": 4, "were_there": 0, "open": 1, **size}
            for ledger_id in ledgers:
                with cluster.bookkeeper().open_ledger(ledger_id, b"secret") as reader:
                    assert [entry.payload for entry in reader.read()] == expected
            with judging(uri(cluster), tmp_path / "here") as judge:
                for ledger_id, digest in ledgers.items():
                    assert judge.ask("open", "r", "v3", digest, "secret", ledger_id) == f"{COUNT - 1} {COUNT * SIZE}"
                    assert judge.ask("read", "r", 0, COUNT - 1) == told(expected)
            gone, *left = ledgers
            listed = run(f"bookspark ledger delete{after}", tmp_path, environment | {"NEW": place, "LEDGER": str(gone)})
            assert [one for one in ledgers if re.search(rf"^ *{one}\b", listed, re.MULTILINE)] == left
