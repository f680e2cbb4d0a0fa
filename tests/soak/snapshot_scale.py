"""A snapshot and all audits of a cluster with very many ledgers, and their growth: time, memory, shuffled bytes, and
files.

A round is a thousand ledgers, so the default is 10⁵; ``--rounds 10000`` are 10⁷. Their metadata is created in a real
ZooKeeper, as the client writes it, naming running bookies that hold no entries. More than REAL_THOUSANDS_MAX do not fit
beside Spark in a machine of 24 GB: they are made up by their readers (``_made_up_ledgers``), and fewer are made up too
with ``--made-up 1``. First a tenth of them is created and audited, then all: each time by a driver with 4 GB and one
executor with two cores and 4 GB, in processes whose memory and processor time are watched. The audits read that snapshot
and an index made up from its fragments: each bookie has all its entries, except for a thousandth of the ledgers.

The driver's memory must not grow with ledgers: the heap left after collections free nothing more, and the largest Python
process, may be GROWTH_MIB larger at ten times the ledgers. A table of the ledgers may have FILES_MAX files. ``--table
FILE`` writes the rows of docs/performance.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper import embedded
from tests.soak._command import main
from tests.soak.console_scale import FIRST, make_records

GROWTH_MIB, FILES_MAX = 192, 50
REAL_THOUSANDS_MAX = 2_000
# The environment variable with the number of ledgers that the driver and its workers make up.
MADE_UP = "BOOKSPARK_SOAK_MADE_UP_LEDGERS"
_DRIVER_SECONDS_MAX = 24 * 3600.0
_ZOOKEEPER_GB_PER_MILLION = 1.3


def snapshot_scale(thousands: int, made_up: int = 0, table: str = "") -> Mapping[str, object]:
    """Raises AssertionError if memory grows with ledgers, or a table has too many files."""
    ledgers, tenth = 1000 * thousands, 100 * thousands
    if thousands > REAL_THOUSANDS_MAX or made_up:
        made_up = 1
    else:
        embedded._HEAP = f"-Xmx{int(1024 * (1 + _ZOOKEEPER_GB_PER_MILLION * thousands / 1000))}m"
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, LocalCluster(bookies=3) as cluster:
        names = sorted(one.bookie_id for one in cluster.bookies)
        made = 0
        for count in (tenth, ledgers):
            began = time.monotonic()
            if not made_up:
                make_records(cluster.zookeeper, names, count - made, FIRST + made)
                made = count
                print(f"{count:,} records after {time.monotonic() - began:.0f} s", flush=True)
            told.append(_driven(cluster.zookeeper, str(Path(folder, str(count))), count if made_up else 0))
            print(json.dumps(told[-1]), flush=True)
    print(page := _page(told))
    if table:
        Path(table).write_text(page)
    few, many = told
    assert (few["ledgers"], many["ledgers"]) == (tenth, ledgers)
    for what in ("driver_heap_mib", "python_mib"):
        assert many[what] <= few[what] + GROWTH_MIB, (what, told)
    assert all(count <= FILES_MAX for count in many["files"].values()), told
    return {"few": few, "many": many}


def _driven(zookeeper: str, path: str, made_up: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.soak._snapshot_driver", zookeeper, path]
    environment = dict(os.environ)
    if made_up:
        # Spark's workers, which have other working directories, import the stand-in.
        tree = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), environment.get("PYTHONPATH")]))
        environment |= {MADE_UP: str(made_up), "PYTHONPATH": tree}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=_DRIVER_SECONDS_MAX, env=environment
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"records": "made up" if made_up else "real", **found, "load": [round(one, 1) for one in os.getloadavg()]}


_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "ledgers": lambda one: f"{one['ledgers']:,}",
    "snapshot, s": lambda one: one["snapshot"]["seconds"],
    "… processor time": lambda one: one["snapshot"]["processor_seconds"],
    "all audits, s": lambda one: one["audits"]["seconds"],
    "… processor time ": lambda one: one["audits"]["processor_seconds"],
    "driver, MiB": lambda one: one["driver_mib"],
    "… heap in use": lambda one: one["driver_heap_mib"],
    "executor, MiB": lambda one: one["executor_mib"],
    "largest Python process, MiB": lambda one: one["python_mib"],
    "shuffled, MiB": lambda one: one["shuffled_mib"],
    "most files of a table": lambda one: max(one["files"].values()),
    "load": lambda one: one["load"][1],
}


def _page(told: Sequence[Mapping[str, Any]]) -> str:
    """The table of docs/performance.md, with the time and machine of the measurement."""
    lines = [f"- `soak snapshot-scale`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} processors", ""]
    lines += [f"| {' | '.join(map(str.strip, _COLUMNS))} |", "|" + "---|" * len(_COLUMNS)]
    lines += [f"| {' | '.join(str(value(one)) for value in _COLUMNS.values())} |" for one in told]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(__doc__ or "", snapshot_scale, rounds=100)
