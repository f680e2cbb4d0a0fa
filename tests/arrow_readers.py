"""Readers of Arrow's files and streams, and logs of a live bookie that all of them have to open.

pyarrow, and DuckDB over pyarrow, are Arrow in C++; polars has an implementation in Rust of its own; arro3 and DataFusion are
arrow-rs. ``scripts/peers arrow`` has other languages.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import arro3.io
import datafusion
import duckdb
import polars
import pyarrow
import pyarrow.ipc

from bookspark.local import LocalCluster


def is_file(path: Path) -> bool:
    """Is the log a rewritten one, an Arrow IPC file? Other logs are streams."""
    return path.suffix == ".arrow"


def by_pyarrow(path: Path) -> pyarrow.Table:
    return (pyarrow.ipc.open_file if is_file(path) else pyarrow.ipc.open_stream)(str(path)).read_all()


def by_duckdb(path: Path) -> pyarrow.Table:
    with duckdb.connect() as connection:
        return connection.from_arrow(by_pyarrow(path)).to_arrow_table()


def by_polars(path: Path) -> pyarrow.Table:
    return (polars.read_ipc if is_file(path) else polars.read_ipc_stream)(path).to_arrow()


def by_arro3(path: Path) -> pyarrow.Table:
    return pyarrow.table((arro3.io.read_ipc if is_file(path) else arro3.io.read_ipc_stream)(str(path)).read_all())


def by_datafusion(path: Path) -> pyarrow.Table:
    return datafusion.SessionContext().read_arrow(str(path), file_extension=path.suffix).to_arrow_table()


READERS: dict[str, Callable[[Path], pyarrow.Table]] = {
    "pyarrow": by_pyarrow,
    "duckdb": by_duckdb,
    "polars": by_polars,
    "arro3": by_arro3,
    "datafusion": by_datafusion,
}


# -- Logs of a bookie

LIVES = ("growing", "sealed", "rewritten", "recovered")


class Logs(NamedTuple):
    """Logs that hold all entries of a ledger."""

    ledger_id: int
    entries: int
    paths: list[Path]


def payload(entry_id: int) -> bytes:
    """The payload of an entry of these ledgers."""
    return b"%04d:" % entry_id * (1 + entry_id % 50)


def written_logs(home: Path, zookeeper: str) -> dict[str, Logs]:
    """Copies in ``home`` of a live bookie's logs, by their life: still growing, some sealed, rewritten, and settled by a boot
    after a kill."""
    found = {}
    with LocalCluster(1, home / "cluster", zookeeper, entry_log_bytes_max=1 << 16) as cluster:
        bookie = cluster.bookies[0]
        folder = Path(bookie.directories[0], "logs")

        def keep(life: str, ledger_id: int, entries: int) -> None:
            shutil.copytree(folder, home / life)
            found[life] = Logs(ledger_id, entries, sorted((home / life).glob("*.arrow*")))

        with cluster.bookkeeper() as client:
            deleted = client.create_ledger(1, 1, 1)
            deleted.append_batch([bytes(4000)] * 10)
            deleted.close()
            ledger = client.create_ledger(1, 1, 1)
            for entry_id in range(20):
                ledger.append(payload(entry_id))
            ledger.append_batch([payload(entry_id) for entry_id in range(20, 120)])
            keep("growing", ledger.ledger_id, 120)
            assert len(found["growing"].paths) == 1
            while len(list(folder.glob("*.arrows"))) == 1:
                first = ledger.last_add_confirmed + 1
                ledger.append_batch([payload(entry_id) for entry_id in range(first, first + 20)])
            entries = ledger.last_add_confirmed + 1
            keep("sealed", ledger.ledger_id, entries)
            ledger.close()
            client.delete_ledger(deleted.ledger_id)
            client.collect_now(bookie.bookie_id)
            keep("rewritten", ledger.ledger_id, entries)
            assert any(map(is_file, found["rewritten"].paths))
            later = client.create_ledger(1, 1, 1)
            later.append_batch([payload(entry_id) for entry_id in range(30)])
            bookie.kill()
            bookie.start()
            with client.open_ledger(later.ledger_id) as reader:
                assert len(list(reader.read(0, 29))) == 30
            keep("recovered", later.ledger_id, 30)
    return found
