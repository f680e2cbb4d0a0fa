"""A snapshot and all audits of a cluster with very many ledgers, and how they grow: time, memory, and files.

A round is a thousand ledgers, so the default is 10⁵; ``--rounds 10000`` are 10⁷. Their records are made in a real ZooKeeper, as
the client writes them, on bookies that really run and hold nothing. A tenth of them are made first and audited, then all: each
time by a driver of its own on two cores with 4 GB, in a process whose memory, and whose Python processes', is watched. What a
driver holds must not grow with ledgers: what is left of its heap after a collection, and its largest Python process, may be
GROWTH_MIB more at ten times the ledgers. A table of the ledgers may have FILES_MAX files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bookspark.local import LocalCluster
from bookspark.metadata.zookeeper import embedded
from tests.soak._command import main
from tests.soak.console_scale import make_records

GROWTH_MIB, FILES_MAX = 192, 50
_FIRST = 1_000
_DRIVER_SECONDS_MAX = 24 * 3600.0

_DRIVER = """
import json, os, sys, threading, time
import psutil
from bookspark.spark import snapshots
from bookspark.spark.audit import runner
from bookspark.spark.session import session

zookeeper, path = sys.argv[1:]
peaks, ended = {"java": 0, "python": 0}, threading.Event()

def watch():
    this = psutil.Process()
    while not ended.wait(0.2):
        for one in (this, *this.children(recursive=True)):
            try:
                name = "java" if "java" in one.name() else "python"
                peaks[name] = max(peaks[name], one.memory_info().rss >> 20)
            except psutil.Error:
                pass

threading.Thread(target=watch, daemon=True).start()
spark = session("scale", master="local[2]", zookeeper=zookeeper, **{"spark.driver.memory": "4g"})
spark.sparkContext.setLogLevel("OFF")
began = time.monotonic()
took = {}

def begins(table, number, count):
    took[table] = time.monotonic()

snapshots.write(spark, zookeeper, path, begins=begins)
written = time.monotonic()
found = runner.run(spark, path)
audited = time.monotonic()
spark.sparkContext._jvm.System.gc()
runtime = spark.sparkContext._jvm.Runtime.getRuntime()
heap = runtime.totalMemory() - runtime.freeMemory()
ended.set()
files = {}
for table in ("ledgers", "fragments", "accepted_losses", "index_ranges"):
    files[table] = len(spark.read.format("delta").load(f"{path}/{table}").inputFiles())
rows = spark.read.format("delta").load(f"{path}/ledgers").count()
moments = [*took.values(), written]
print("\\n" + json.dumps({
    "ledgers": rows, "snapshot_seconds": round(written - began, 1), "audits_seconds": round(audited - written, 1),
    "tables_seconds": {name: round(end - start, 1) for name, start, end in zip(took, moments, moments[1:])},
    "heap_mib": heap >> 20, "jvm_peak_mib": peaks["java"], "python_peak_mib": peaks["python"], "files": files,
    "audits": len(found),
}), flush=True)
spark.stop()
"""
"""The driver of one snapshot: prints one JSON line at its end."""


def snapshot_scale(thousands: int) -> Mapping[str, object]:
    """Raises AssertionError if memory grows with ledgers, or a table has too many files."""
    ledgers, tenth = 1000 * thousands, 100 * thousands
    embedded._HEAP = f"-Xmx{min(12, 1 + thousands // 1000)}g"
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, LocalCluster(bookies=3) as cluster:
        names = sorted(one.bookie_id for one in cluster.bookies)
        made = 0
        for count in (tenth, ledgers):
            make_records(cluster.zookeeper, names, count - made, _FIRST + made)
            made = count
            told.append(_driven(cluster.zookeeper, str(Path(folder, str(count)))))
            print(json.dumps(told[-1]), flush=True)
    few, many = told
    assert (few["ledgers"], many["ledgers"]) == (tenth, ledgers)
    for what in ("heap_mib", "python_peak_mib"):
        assert many[what] <= few[what] + GROWTH_MIB, (what, told)
    assert all(count <= FILES_MAX for count in many["files"].values()), told
    return {"few": few, "many": many}


def _driven(zookeeper: str, path: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _DRIVER, zookeeper, path]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_DRIVER_SECONDS_MAX)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main(__doc__ or "", snapshot_scale, rounds=100)
